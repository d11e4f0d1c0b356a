// SPDX-License-Identifier: Apache-2.0

package mptcpnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf/features"
	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Event is one of ConnectionEvent, AddressEvent, SubflowEvent and ListenerEvent.
type Event interface{ event() }

// Kind is what happened, as enum mptcp_event_type of linux/mptcp_pm.h numbers it.
type Kind uint8

// Kinds of events.
const (
	ConnectionCreated     Kind = 1
	ConnectionEstablished Kind = 2
	ConnectionClosed      Kind = 3
	AddressAnnounced      Kind = 6
	AddressRemoved        Kind = 7
	SubflowEstablished    Kind = 10
	SubflowClosed         Kind = 11
	SubflowPriority       Kind = 13
	ListenerCreated       Kind = 15
	ListenerClosed        Kind = 16
)

// ConnectionEvent tells of a connection: ConnectionCreated, when it may be long
// until it is used; ConnectionEstablished, when further subflows can be opened;
// ConnectionClosed, which has the token alone.
type ConnectionEvent struct {
	Kind  Kind
	Token uint32
	// Local and Remote are those of the first subflow.
	Local, Remote netip.AddrPort
	// ServerSide is true where the peer began the connection.
	ServerSide bool
	// DenyJoinInitial is true where the peer refuses further subflows to the
	// address and port that the connection began with.
	DenyJoinInitial bool
}

// AddressEvent tells of an address of the peer: AddressAnnounced or, with the ID
// alone, AddressRemoved.
type AddressEvent struct {
	Kind  Kind
	Token uint32
	ID    uint8
	// Address has port 0 where the peer announced none.
	Address netip.AddrPort
}

// SubflowEvent tells of a subflow: SubflowEstablished, SubflowClosed or
// SubflowPriority.
type SubflowEvent struct {
	Kind              Kind
	Token             uint32
	LocalID, RemoteID uint8
	Local, Remote     netip.AddrPort
	Backup            bool
	Interface         int32
	// Error is why the subflow closed; 0 for a normal end.
	Error unix.Errno
}

// TellsOfListeners is true where the kernel has ListenerEvent: surely from Linux 6.3
// on.
var TellsOfListeners = sync.OnceValue(func() bool {
	version, err := features.LinuxVersionCode()
	return err == nil && version >= 6<<16|3<<8
})

// TellsOfBacklogs is true where the kernel tells how much of a connection waits to be
// acknowledged (Connection.SequencesKnown): from Linux 6.5 on, or where its version is not known.
var TellsOfBacklogs = sync.OnceValue(func() bool {
	version, err := features.LinuxVersionCode()
	return err != nil || tellsOfBacklogs(version)
})

func tellsOfBacklogs(version uint32) bool { return version >= 6<<16|5<<8 }

// ConnectionsKeepBuffers is true where the receive buffer of a connection does not grow with its
// subflows': from Linux 6.18 on, or where its version is not known.
var ConnectionsKeepBuffers = sync.OnceValue(func() bool {
	version, err := features.LinuxVersionCode()
	return err != nil || version >= 6<<16|18<<8
})

// ListenerEvent tells of a listening MPTCP socket: ListenerCreated or
// ListenerClosed. Those of endpoints with a port are among them.
type ListenerEvent struct {
	Kind    Kind
	Address netip.AddrPort
}

func (ConnectionEvent) event() {}
func (AddressEvent) event()    {}
func (SubflowEvent) event()    {}
func (ListenerEvent) event()   {}

// TokenOf is that of the connection which an event tells of.
func TokenOf(event Event) (token uint32, ok bool) {
	switch event := event.(type) {
	case ConnectionEvent:
		return event.Token, true
	case AddressEvent:
		return event.Token, true
	case SubflowEvent:
		return event.Token, true
	}
	return 0, false
}

// Attributes of events, as linux/mptcp_pm.h numbers them. Addresses and ports
// are in network byte order, all else in the host's.
const (
	eventToken           = 1
	eventLocalID         = 3
	eventRemoteID        = 4
	eventSourceIPv4      = 5
	eventSourceIPv6      = 6
	eventDestinationIPv4 = 7
	eventDestinationIPv6 = 8
	eventSourcePort      = 9
	eventDestinationPort = 10
	eventBackup          = 11
	eventError           = 12
	eventFlags           = 13
	eventInterface       = 15
	eventServerSide      = 18
)

const (
	flagDenyJoinInitial = 1 << 0
	flagServerSide      = 1 << 1
)

// attributes are those of any event.
type attributes struct {
	token                       uint32
	localID, remoteID           uint8
	source, destination         netip.Addr
	sourcePort, destinationPort uint16
	backup, serverSide          bool
	errno                       uint8
	flags                       uint16
	interfaceIndex              int32
	seen                        uint32 // a bit for each attribute that was there
}

func (a *attributes) has(kinds ...uint16) bool {
	for _, kind := range kinds {
		if a.seen&(1<<kind) == 0 {
			return false
		}
	}
	return true
}

func (a *attributes) local() netip.AddrPort { return netip.AddrPortFrom(a.source, a.sourcePort) }
func (a *attributes) remote() netip.AddrPort {
	return netip.AddrPortFrom(a.destination, a.destinationPort)
}

// ParseEvent reads an event: the command of a message and its attributes. It
// returns false for what it does not understand, such as events of newer
// kernels and malformed ones.
func ParseEvent(command uint8, data []byte) (Event, bool) {
	a, ok := parseAttributes(data)
	if !ok {
		return nil, false
	}
	switch kind := Kind(command); kind {
	case ConnectionCreated, ConnectionEstablished, ConnectionClosed:
		return a.connection(kind)
	case AddressAnnounced, AddressRemoved:
		return a.address(kind)
	case SubflowEstablished, SubflowClosed, SubflowPriority:
		return a.subflow(kind)
	case ListenerCreated, ListenerClosed:
		return ListenerEvent{Kind: kind, Address: a.local()}, a.source.IsValid() && a.has(eventSourcePort)
	}
	return nil, false
}

// What a message of the family begins with: the header of netlink, and in that of
// generic netlink the command.
const (
	commandAt    = unix.NLMSG_HDRLEN
	attributesAt = commandAt + unix.GENL_HDRLEN
)

// ParseMessage reads an event of which the whole message is there.
func ParseMessage(message []byte) (Event, bool) {
	if len(message) < attributesAt {
		return nil, false
	}
	return ParseEvent(message[commandAt], message[attributesAt:])
}

func (a *attributes) connection(kind Kind) (Event, bool) {
	if kind == ConnectionClosed {
		return ConnectionEvent{Kind: kind, Token: a.token}, a.has(eventToken)
	}
	return ConnectionEvent{
		Kind: kind, Token: a.token, Local: a.local(), Remote: a.remote(),
		ServerSide:      a.serverSide || a.flags&flagServerSide != 0,
		DenyJoinInitial: a.flags&flagDenyJoinInitial != 0,
	}, a.hasSubflow()
}

func (a *attributes) address(kind Kind) (Event, bool) {
	event := AddressEvent{Kind: kind, Token: a.token, ID: a.remoteID}
	if kind == AddressAnnounced {
		event.Address = a.remote()
		return event, a.has(eventToken, eventRemoteID) && a.destination.IsValid()
	}
	return event, a.has(eventToken, eventRemoteID)
}

func (a *attributes) subflow(kind Kind) (Event, bool) {
	return SubflowEvent{
		Kind: kind, Token: a.token, LocalID: a.localID, RemoteID: a.remoteID,
		Local: a.local(), Remote: a.remote(),
		Backup: a.backup, Interface: a.interfaceIndex, Error: unix.Errno(a.errno),
	}, a.hasSubflow()
}

// hasSubflow says whether the token and both ends of a subflow were there.
func (a *attributes) hasSubflow() bool {
	return a.has(eventToken, eventSourcePort, eventDestinationPort) && a.source.IsValid() && a.destination.IsValid()
}

func parseAttributes(data []byte) (*attributes, bool) {
	decoder, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil, false
	}
	a := &attributes{}
	for decoder.Next() {
		a.read(decoder)
	}
	return a, decoder.Err() == nil
}

func (a *attributes) read(decoder *netlink.AttributeDecoder) {
	kind := decoder.Type()
	switch kind {
	case eventToken:
		a.token = decoder.Uint32()
	case eventLocalID:
		a.localID = decoder.Uint8()
	case eventRemoteID:
		a.remoteID = decoder.Uint8()
	case eventSourceIPv4, eventSourceIPv6:
		a.source = readAddress(decoder)
	case eventDestinationIPv4, eventDestinationIPv6:
		a.destination = readAddress(decoder)
	case eventSourcePort:
		a.sourcePort = readPort(decoder)
	case eventDestinationPort:
		a.destinationPort = readPort(decoder)
	case eventBackup:
		a.backup = decoder.Uint8() != 0
	case eventError:
		a.errno = decoder.Uint8()
	case eventFlags:
		a.flags = decoder.Uint16()
	case eventInterface:
		a.interfaceIndex = decoder.Int32()
	case eventServerSide:
		a.serverSide = decoder.Uint8() != 0
	default:
		return
	}
	a.seen |= 1 << kind
}

// readAddress reads an address; an IPv4 address in IPv6 form becomes an IPv4 one.
func readAddress(decoder *netlink.AttributeDecoder) netip.Addr {
	address, _ := netip.AddrFromSlice(decoder.Bytes())
	return address.Unmap()
}

func readPort(decoder *netlink.AttributeDecoder) uint16 {
	data := decoder.Bytes()
	if len(data) != 2 {
		return 0
	}
	return binary.BigEndian.Uint16(data)
}

// ErrEventsLost says that events came faster than they were received, and the
// kernel dropped some.
var ErrEventsLost = errors.New("events of the path manager were lost")

// eventBuffer is the size of the socket's receive buffer in bytes: room for the
// events of some ten thousand connections that begin at once.
const eventBuffer = 8 << 20

// Subscription receives the events of one network namespace.
type Subscription struct{ conn *genetlink.Conn }

// Subscribe begins to receive events. See Dial for namespace.
func Subscribe(namespace int) (*Subscription, error) {
	conn, family, err := dialFamily(namespace)
	if err != nil {
		return nil, err
	}
	subscription := &Subscription{conn: conn}
	if err := subscription.join(family); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return subscription, nil
}

// Filter has the kernel ask a socket filter which events are to be received. It returns
// the socket's cookie, by which the filter knows it.
func (s *Subscription) Filter(program int) (cookie uint64, err error) {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("filtering events: %w", err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if cookie, failed = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE); failed == nil {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_BPF, program)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("filtering events: %w", err)
	}
	return cookie, nil
}

func (s *Subscription) join(family genetlink.Family) error {
	if err := s.conn.SetReadBuffer(eventBuffer); err != nil {
		return fmt.Errorf("enlarging the receive buffer for events: %w", err)
	}
	for _, group := range family.Groups {
		if group.Name != eventGroup {
			continue
		}
		if err := s.conn.JoinGroup(group.ID); err != nil {
			return fmt.Errorf("joining multicast group %s: %w", eventGroup, err)
		}
		return nil
	}
	return fmt.Errorf("netlink family %s has no multicast group %s", familyName, eventGroup)
}

// Receive waits for events; those that are not understood are left out, so the
// list may be empty. It returns ErrEventsLost where the kernel dropped events,
// after which further ones can be received, and os.ErrClosed after Close.
func (s *Subscription) Receive() ([]Event, error) {
	messages, _, err := s.conn.Receive()
	if errors.Is(err, unix.ENOBUFS) {
		return nil, ErrEventsLost
	}
	if err != nil {
		return nil, fmt.Errorf("receiving events: %w", err)
	}
	var events []Event
	for _, message := range messages {
		if event, ok := ParseEvent(message.Header.Command, message.Data); ok {
			events = append(events, event)
		}
	}
	return events, nil
}

// Close ends the subscription, and a Receive that waits.
func (s *Subscription) Close() error { return s.conn.Close() }
