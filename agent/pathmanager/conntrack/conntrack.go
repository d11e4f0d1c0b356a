// SPDX-License-Identifier: Apache-2.0

// Package conntrack asks the kernel's connection tracking where a connection that
// goes to the address of a Service goes in fact.
package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Table is that of one network namespace. It is safe for concurrent use.
type Table struct {
	conn *netlink.Conn
	// asking lets one question go on at a time.
	asking sync.Mutex
}

// Dial opens the table of the network namespace with this open file descriptor; 0
// means the caller's own. To read it needs CAP_NET_ADMIN in that namespace.
func Dial(namespace int) (*Table, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: namespace})
	if err != nil {
		return nil, fmt.Errorf("opening netlink to netfilter: %w", err)
	}
	return &Table{conn: conn}, nil
}

// Close closes the table.
func (t *Table) Close() error { return t.conn.Close() }

const (
	messageGet   = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET
	headerLength = 4                                 // struct nfgenmsg
)

// Attributes, as linux/netfilter/nfnetlink_conntrack.h numbers them.
const (
	attributeOriginal = 1
	attributeReply    = 2

	tupleAddresses = 1
	tupleProtocol  = 2

	sourceIPv4      = 1
	destinationIPv4 = 2
	sourceIPv6      = 3
	destinationIPv6 = 4

	protocolNumber  = 1
	sourcePort      = 2
	destinationPort = 3
)

// Destination finds the TCP connection that its initiator sees between local and
// remote, and returns whose answers count for it: remote itself, or the backend
// that remote is translated to. It returns false where the connection is not
// tracked. The cost is one look-up, however many connections there are.
func (t *Table) Destination(local, remote netip.AddrPort) (netip.AddrPort, bool, error) {
	ends, found, err := t.Find(local, remote)
	return ends.Remote, found, err
}

// Ends are those of a connection as who answers knows them.
type Ends struct {
	// Local is the initiator's, or what it is masqueraded as.
	Local netip.AddrPort
	// Remote is who answers, as Destination tells it.
	Remote netip.AddrPort
}

// Find is Destination, with both ends.
func (t *Table) Find(local, remote netip.AddrPort) (Ends, bool, error) {
	data, err := encode(attributeOriginal, local, remote)
	if err != nil {
		return Ends{}, false, err
	}
	answer, err := t.ask(netlink.Message{
		Header: netlink.Header{Type: messageGet, Flags: netlink.Request}, Data: data,
	})
	if errors.Is(err, os.ErrNotExist) {
		return Ends{}, false, nil
	}
	if err != nil {
		return Ends{}, false, fmt.Errorf("finding the tracked connection from %s to %s: %w", local, remote, err)
	}
	ends, ok := parseAnswering(answer)
	return ends, ok, nil
}

// patience is how long the kernel may take to answer.
const patience = 5 * time.Second

// ask sends a message and returns the data of the one that answers it. The kernel
// marks the single answer as one of several and sends no end, which the netlink
// library would wait for.
func (t *Table) ask(message netlink.Message) ([]byte, error) {
	t.asking.Lock()
	defer t.asking.Unlock()
	if err := t.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	sent, err := t.conn.Send(message)
	if err != nil {
		return nil, err
	}
	buffer := make([]byte, os.Getpagesize())
	for {
		n, err := t.receive(buffer)
		if err != nil {
			return nil, err
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return nil, fmt.Errorf("parsing the answer: %w", err)
		}
		for _, m := range messages {
			if m.Header.Seq == sent.Header.Sequence { // not one that came too late
				return m.Data, errorOf(m)
			}
		}
	}
}

func (t *Table) receive(buffer []byte) (n int, err error) {
	raw, err := t.conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Read(func(descriptor uintptr) bool {
		n, _, failed = unix.Recvfrom(int(descriptor), buffer, unix.MSG_DONTWAIT)
		return !errors.Is(failed, unix.EAGAIN)
	})
	return n, errors.Join(err, failed)
}

func errorOf(message syscall.NetlinkMessage) error {
	if message.Header.Type != unix.NLMSG_ERROR || len(message.Data) < 4 {
		return nil
	}
	if number := int32(binary.NativeEndian.Uint32(message.Data)); number != 0 {
		return unix.Errno(-number)
	}
	return nil
}

// encode makes the content of a message with one tuple.
func encode(kind uint16, source, destination netip.AddrPort) ([]byte, error) {
	family, from, to := unix.AF_INET6, uint16(sourceIPv6), uint16(destinationIPv6)
	if source.Addr().Is4() {
		family, from, to = unix.AF_INET, sourceIPv4, destinationIPv4
	}
	encoder := netlink.NewAttributeEncoder()
	encoder.ByteOrder = binary.BigEndian
	encoder.Nested(kind, func(tuple *netlink.AttributeEncoder) error {
		tuple.Nested(tupleAddresses, func(addresses *netlink.AttributeEncoder) error {
			addresses.Bytes(from, source.Addr().AsSlice())
			addresses.Bytes(to, destination.Addr().AsSlice())
			return nil
		})
		tuple.Nested(tupleProtocol, func(protocol *netlink.AttributeEncoder) error {
			protocol.Uint8(protocolNumber, unix.IPPROTO_TCP)
			protocol.Uint16(sourcePort, source.Port())
			protocol.Uint16(destinationPort, destination.Port())
			return nil
		})
		return nil
	})
	attributes, err := encoder.Encode()
	if err != nil {
		return nil, fmt.Errorf("encoding attributes: %w", err)
	}
	header := []byte{byte(family), unix.NFNETLINK_V0, 0, 0}
	return append(header, attributes...), nil
}

// parseAnswering reads who answers whom: the reply's tuple.
func parseAnswering(data []byte) (ends Ends, found bool) {
	if len(data) < headerLength {
		return ends, false
	}
	decoder, err := netlink.NewAttributeDecoder(data[headerLength:])
	if err != nil {
		return ends, false
	}
	decoder.ByteOrder = binary.BigEndian
	var r reply
	for decoder.Next() {
		if decoder.Type() == attributeReply {
			decoder.Nested(r.read)
		}
	}
	return Ends{Local: r.to.addrPort(), Remote: r.from.addrPort()}, decoder.Err() == nil && r.from.isWhole() && r.to.isWhole()
}

// reply is a tuple.
type reply struct{ from, to end }

type end struct {
	address netip.Addr
	port    uint16
}

func (e end) addrPort() netip.AddrPort { return netip.AddrPortFrom(e.address, e.port) }

func (e end) isWhole() bool { return e.address.IsValid() && e.port != 0 }

func (r *reply) read(decoder *netlink.AttributeDecoder) error {
	for decoder.Next() {
		switch decoder.Type() {
		case tupleAddresses:
			decoder.Nested(r.readAddresses)
		case tupleProtocol:
			decoder.Nested(r.readPorts)
		}
	}
	return decoder.Err()
}

func (r *reply) readAddresses(decoder *netlink.AttributeDecoder) error {
	for decoder.Next() {
		switch decoder.Type() {
		case sourceIPv4, sourceIPv6:
			r.from.address, _ = netip.AddrFromSlice(decoder.Bytes())
		case destinationIPv4, destinationIPv6:
			r.to.address, _ = netip.AddrFromSlice(decoder.Bytes())
		}
	}
	return decoder.Err()
}

func (r *reply) readPorts(decoder *netlink.AttributeDecoder) error {
	for decoder.Next() {
		switch decoder.Type() {
		case sourcePort:
			r.from.port = decoder.Uint16()
		case destinationPort:
			r.to.port = decoder.Uint16()
		}
	}
	return decoder.Err()
}
