// SPDX-License-Identifier: Apache-2.0

package mptcpnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Diagnostics finds the MPTCP sockets of one network namespace. It is safe for
// concurrent use.
type Diagnostics struct {
	// asking lets one question be answered at a time.
	asking sync.Mutex
	conn   *netlink.Conn
}

// DialDiagnostics opens socket diagnostics. See Dial for namespace.
func DialDiagnostics(namespace int) (*Diagnostics, error) {
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, &netlink.Config{NetNS: namespace})
	if err != nil {
		return nil, fmt.Errorf("opening socket diagnostics: %w", err)
	}
	return &Diagnostics{conn: conn}, nil
}

// DialDiagnosticsAt opens those of the network namespace at this path.
func DialDiagnosticsAt(path string) (*Diagnostics, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening a network namespace: %w", err)
	}
	defer file.Close()
	return DialDiagnostics(int(file.Fd()))
}

// Close closes the diagnostics.
func (d *Diagnostics) Close() error { return d.conn.Close() }

// Connection is an established MPTCP connection.
type Connection struct {
	Token uint32
	// Local and Remote are those of the first subflow, also when it is closed.
	Local, Remote netip.AddrPort
	// Subflows beyond the first one, as the kernel counts them.
	Subflows uint8
	// Announced is how many addresses of the peer the kernel's path manager took.
	Announced uint8
	// Backlog is what the application has written and the peer has not acknowledged,
	// in bytes; from Linux 6.5 on, as the sequence numbers.
	Backlog uint64
	// UnderWay is the part of Backlog that was sent, on whichever subflow, and the peer has
	// not acknowledged as data of the connection; valid with SequencesKnown.
	UnderWay uint64
	// FirstSent and FirstReceived are the data sequence numbers of the first byte
	// in each direction, SentBytes and ReceivedBytes what came after, repetitions
	// left out; all valid with SequencesKnown, which kernels before 6.5 leave false
	// because they do not count bytes.
	FirstSent, FirstReceived uint64
	SentBytes, ReceivedBytes uint64
	SequencesKnown           bool
	// SendBuffer is how much memory what the application has written and the peer has not
	// acknowledged may take, in bytes, and SendBufferUsed how much it takes. The application
	// waits while two thirds are taken. Only Diagnostics.Connection tells; else both are 0.
	SendBuffer, SendBufferUsed uint64
}

// Subflow is a TCP connection that is part of an MPTCP connection, established
// or about to be.
type Subflow struct {
	// Token of its connection, as this host knows it.
	Token uint32
	// RemoteToken is the peer's token of the connection. The kernel tells it only
	// of subflows that this host joined to a connection; else it is 0.
	RemoteToken   uint32
	Local, Remote netip.AddrPort
	// Established is false while the handshake is under way.
	Established bool
	// First is true for the subflow that the connection began with.
	First bool
	// Initiator is true where this host opened the subflow.
	Initiator bool
	// LocalID and RemoteID are the ids of the addresses.
	LocalID, RemoteID uint8
	// BackupWanted is true where this host made the subflow a backup for what the
	// peer sends, BackupAsked where the peer asked this host for it.
	BackupWanted, BackupAsked bool
	TCP                       TCPInfo
}

// TCPInfo is what TCP knows of a subflow.
type TCPInfo struct {
	// SendScale and ReceiveScale are the shifts of the windows that the peer and
	// this host announce; valid with Scaled.
	SendScale, ReceiveScale uint8
	Scaled                  bool
	// BeganWithData is true where there was data in the SYN, and the peer took it (TCP Fast Open).
	BeganWithData bool
	// RTT is the smoothed round-trip time, 0 while it is not measured; Variation is
	// how much it varies, and LeastRTT the shortest of the last minutes.
	RTT, Variation, LeastRTT time.Duration
	// CongestionWindow and SlowStartThreshold are in bytes; the latter is 0 while no
	// loss has set one.
	CongestionWindow, SlowStartThreshold uint64
	// SentBytes and ReceivedBytes are payload, repetitions left out; 0 on kernels
	// that do not count it.
	SentBytes, ReceivedBytes uint64
	// RepeatedBytes is payload that was sent again; 0 on kernels that do not count it.
	RepeatedBytes uint64
	// AckedBytes is payload that the peer acknowledged, DeliveryRate how fast it did so
	// while there was something under way, in bytes a second, and SendWindow the window
	// that it left; 0 on kernels that do not tell.
	AckedBytes, DeliveryRate, SendWindow uint64
	// Queued is payload that the subflow has taken and the peer has not acknowledged.
	Queued uint64
	// PacingRate is the pace that TCP chose, and MaxPacingRate the most that it may choose, in
	// bytes a second; 0 on kernels that do not tell. Without a limit that has all of its bits.
	PacingRate, MaxPacingRate uint64
	// Retries is how often in a row TCP sent the same again, and heard nothing.
	Retries uint8
	// Timeout is after which time TCP sends again what the peer has not acknowledged, twice as
	// long after each of these.
	Timeout time.Duration
}

// Socket is a TCP socket that has a peer, whether it is a subflow or not.
type Socket struct {
	// Subflow has its ends and what TCP knows of it; for a subflow, the rest too.
	Subflow
	// Multipath is true for a subflow of an MPTCP connection.
	Multipath bool
	// FellBack is true where this host asked for MPTCP, and the peer did not answer so.
	FellBack bool
	// Over is true for what is left of a connection after its end, for a minute where
	// this host closed it first. Nobody knows then whether it was a subflow.
	Over bool
	// Opening is true until the peer has answered the first packet.
	Opening bool
}

const (
	messageSockDiagByFamily = 20

	requestLength     = 56 // struct inet_diag_req_v2
	requestExtensions = 2  // offset in it
	requestCookie     = 48 // offset in it
	responseLength    = 72 // struct inet_diag_msg
	responseQueued    = 60 // offset in it

	requestAttributeProtocol = 3  // INET_DIAG_REQ_PROTOCOL
	attributeInfo            = 2  // INET_DIAG_INFO
	attributeMemory          = 7  // INET_DIAG_SKMEMINFO
	attributeULP             = 19 // INET_DIAG_ULP_INFO
	attributeULPMPTCP        = 3  // INET_ULP_INFO_MPTCP

	stateEstablished = 1
	stateSynSent     = 2
	stateSynReceived = 3
	stateTimeWait    = 6
	stateClose       = 7
	stateListen      = 10
)

// EachConnection visits the established MPTCP connections, without those that fell
// back to TCP, until the visitor returns false. Nothing is kept of those that were
// visited: there may be hundreds of thousands. The visitor must not ask for more.
func (d *Diagnostics) EachConnection(visit func(*Connection) bool) error {
	err := d.dumpBoth(unix.IPPROTO_MPTCP, 1<<stateEstablished, func(s socket) bool {
		connection, ok := s.connection()
		return !ok || visit(&connection)
	})
	if err != nil {
		return fmt.Errorf("listing MPTCP connections: %w", err)
	}
	return nil
}

// EachSubflow visits the subflows of all MPTCP connections as EachConnection does.
func (d *Diagnostics) EachSubflow(visit func(*Subflow) bool) error {
	states := uint32(1<<stateEstablished | 1<<stateSynSent | 1<<stateSynReceived)
	err := d.dumpBoth(unix.IPPROTO_TCP, states, func(s socket) bool {
		subflow, ok := s.subflow()
		return !ok || visit(&subflow)
	})
	if err != nil {
		return fmt.Errorf("listing subflows: %w", err)
	}
	return nil
}

// EachSocket visits the TCP sockets that have a peer, or want one, as EachConnection does.
func (d *Diagnostics) EachSocket(visit func(*Socket) bool) error {
	const without = 1<<stateSynReceived | 1<<stateClose | 1<<stateListen
	err := d.dumpBoth(unix.IPPROTO_TCP, (1<<12-2)&^without, func(s socket) bool {
		socket := s.tcp()
		return visit(&socket)
	})
	if err != nil {
		return fmt.Errorf("listing TCP sockets: %w", err)
	}
	return nil
}

// Connections lists those that EachConnection visits, up to a number; 0 is all.
func (d *Diagnostics) Connections(most int) (all []Connection, err error) {
	err = d.EachConnection(func(c *Connection) bool { all = append(all, *c); return len(all) != most })
	return all, err
}

// Subflows lists those that EachSubflow visits, up to a number; 0 is all.
func (d *Diagnostics) Subflows(most int) (all []Subflow, err error) {
	err = d.EachSubflow(func(s *Subflow) bool { all = append(all, *s); return len(all) != most })
	return all, err
}

// Subflow finds one subflow by its ends, at the cost of one look-up however many
// sockets there are. It returns false where there is none.
func (d *Diagnostics) Subflow(local, remote netip.AddrPort) (Subflow, bool, error) {
	d.asking.Lock()
	defer d.asking.Unlock()
	messages, err := d.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: messageSockDiagByFamily, Flags: netlink.Request},
		Data:   endsRequest(local, remote),
	})
	if errors.Is(err, os.ErrNotExist) {
		return Subflow{}, false, nil
	}
	if err != nil {
		return Subflow{}, false, fmt.Errorf("finding subflow from %s to %s: %w", local, remote, err)
	}
	for _, message := range messages {
		if s, ok := parseSocket(message.Data); ok {
			if subflow, ok := s.subflow(); ok {
				return subflow, true, nil
			}
		}
	}
	return Subflow{}, false, nil
}

// Connection finds one by its token, at the cost of one look-up. It returns false where there
// is none.
func (d *Diagnostics) Connection(token uint32) (Connection, bool, error) {
	request, err := diagnosticsRequest(unix.AF_INET, unix.IPPROTO_MPTCP, 0)
	if err != nil {
		return Connection{}, false, err
	}
	request[requestExtensions] |= 1 << (attributeMemory - 1)
	binary.NativeEndian.PutUint32(request[requestCookie:], token)
	d.asking.Lock()
	defer d.asking.Unlock()
	messages, err := d.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: messageSockDiagByFamily, Flags: netlink.Request}, Data: request,
	})
	if errors.Is(err, os.ErrNotExist) {
		return Connection{}, false, nil
	}
	if err != nil {
		return Connection{}, false, fmt.Errorf("finding connection %#x: %w", token, err)
	}
	for _, message := range messages {
		if s, ok := parseSocket(message.Data); ok {
			if connection, ok := s.connection(); ok {
				return connection, true, nil
			}
		}
	}
	return Connection{}, false, nil
}

// endsRequest asks for the TCP socket with these ends.
func endsRequest(local, remote netip.AddrPort) []byte {
	request := make([]byte, requestLength)
	request[0] = unix.AF_INET6
	if local.Addr().Is4() {
		request[0] = unix.AF_INET
	}
	request[1] = unix.IPPROTO_TCP
	request[requestExtensions] = 1 << (attributeInfo - 1)
	binary.BigEndian.PutUint16(request[8:], local.Port())
	binary.BigEndian.PutUint16(request[10:], remote.Port())
	copy(request[12:28], local.Addr().AsSlice())
	copy(request[28:44], remote.Addr().AsSlice())
	for i := 48; i < requestLength; i++ {
		request[i] = 0xff // any cookie
	}
	return request
}

// EachListener visits the addresses on which MPTCP sockets listen, without those that
// the kernel opened for endpoints with a port, as EachConnection does.
func (d *Diagnostics) EachListener(visit func(netip.AddrPort) bool) error {
	err := d.dumpBoth(unix.IPPROTO_MPTCP, 1<<stateListen, func(s socket) bool {
		return s.local.Port() == 0 || visit(s.local) // the kernel's own show none
	})
	if err != nil {
		return fmt.Errorf("listing MPTCP listeners: %w", err)
	}
	return nil
}

// dumpBoth visits the sockets of both IP versions, until the visitor returns false.
func (d *Diagnostics) dumpBoth(protocol, states uint32, visit func(socket) bool) error {
	d.asking.Lock()
	defer d.asking.Unlock()
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		request, err := diagnosticsRequest(family, protocol, states)
		if err != nil {
			return err
		}
		more, err := d.dump(request, visit)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

func (d *Diagnostics) dump(request []byte, visit func(socket) bool) (more bool, err error) {
	if _, err := d.conn.Send(netlink.Message{
		Header: netlink.Header{Type: messageSockDiagByFamily, Flags: netlink.Request | netlink.Dump},
		Data:   request,
	}); err != nil {
		return false, err
	}
	for message, err := range d.conn.ReceiveIter() {
		if err != nil {
			return false, err
		}
		if s, ok := parseSocket(message.Data); ok && !visit(s) {
			return false, nil // what is left of the answer is read and dropped
		}
	}
	return true, nil
}

func diagnosticsRequest(family uint8, protocol, states uint32) ([]byte, error) {
	request := make([]byte, requestLength)
	request[0] = family
	request[1] = unix.IPPROTO_TCP // eight bits; the attribute has the real one
	request[requestExtensions] = 1 << (attributeInfo - 1)
	binary.NativeEndian.PutUint32(request[4:], states)
	encoder := netlink.NewAttributeEncoder()
	encoder.Uint32(requestAttributeProtocol, protocol)
	attributes, err := encoder.Encode()
	if err != nil {
		return nil, fmt.Errorf("encoding attributes: %w", err)
	}
	return append(request, attributes...), nil
}

// socket is what a message of socket diagnostics says of one socket.
type socket struct {
	state         uint8
	queued        uint32 // for TCP, payload that is not acknowledged
	local, remote netip.AddrPort
	info          []byte // struct mptcp_info or struct tcp_info
	memory        []byte // numbers, as SK_MEMINFO_SNDBUF and others say which
	ulp           *subflowInfo
}

// subflowInfo is what the upper layer protocol says of a subflow.
type subflowInfo struct {
	token, remoteToken uint32
	flags              uint32
	localID, remoteID  uint8
}

// parseSocket reads a struct inet_diag_msg and its attributes. It returns false
// for what it does not understand.
func parseSocket(data []byte) (socket, bool) {
	if len(data) < responseLength {
		return socket{}, false
	}
	s := socket{state: data[1], queued: binary.NativeEndian.Uint32(data[responseQueued:])}
	local, ok1 := diagnosticsAddress(data[0], data[8:24])
	remote, ok2 := diagnosticsAddress(data[0], data[24:40])
	if !ok1 || !ok2 {
		return socket{}, false
	}
	s.local = netip.AddrPortFrom(local, binary.BigEndian.Uint16(data[4:]))
	s.remote = netip.AddrPortFrom(remote, binary.BigEndian.Uint16(data[6:]))
	decoder, err := netlink.NewAttributeDecoder(data[responseLength:])
	if err != nil {
		return socket{}, false
	}
	for decoder.Next() {
		switch decoder.Type() {
		case attributeInfo:
			s.info = decoder.Bytes()
		case attributeMemory:
			s.memory = decoder.Bytes()
		case attributeULP:
			decoder.Nested(s.readULP)
		}
	}
	return s, decoder.Err() == nil
}

func diagnosticsAddress(family uint8, data []byte) (netip.Addr, bool) {
	switch family {
	case unix.AF_INET:
		return netip.AddrFrom4([4]byte(data[:4])), true
	case unix.AF_INET6:
		return netip.AddrFrom16([16]byte(data)).Unmap(), true
	}
	return netip.Addr{}, false
}

// Attributes and flags of a subflow, as linux/mptcp.h numbers them.
const (
	subflowTokenRemote = 1
	subflowTokenLocal  = 2
	subflowFlags       = 8
	subflowIDRemote    = 9
	subflowIDLocal     = 10

	subflowCapableRemote = 1 << 0
	subflowCapableLocal  = 1 << 1
	subflowJoinRemote    = 1 << 2
	subflowJoinLocal     = 1 << 3
	subflowBackupRemote  = 1 << 4
	subflowBackupLocal   = 1 << 5
)

func (s *socket) readULP(decoder *netlink.AttributeDecoder) error {
	for decoder.Next() {
		if decoder.Type() != attributeULPMPTCP {
			continue
		}
		s.ulp = &subflowInfo{}
		decoder.Nested(s.ulp.read)
	}
	return decoder.Err()
}

func (i *subflowInfo) read(decoder *netlink.AttributeDecoder) error {
	for decoder.Next() {
		switch decoder.Type() {
		case subflowTokenLocal:
			i.token = decoder.Uint32()
		case subflowTokenRemote:
			i.remoteToken = decoder.Uint32()
		case subflowFlags:
			i.flags = decoder.Uint32()
		case subflowIDLocal:
			i.localID = decoder.Uint8()
		case subflowIDRemote:
			i.remoteID = decoder.Uint8()
		}
	}
	return decoder.Err()
}

const (
	infoSubflows      = 0  // offset in struct mptcp_info
	infoAnnounced     = 2  // offset
	infoFlags         = 8  // offset
	infoToken         = 12 // offset
	infoEnd           = 16
	infoWritten       = 16 // offset: the data sequence number of the byte that is written next
	infoUnacked       = 24 // offset: the data sequence number that is acknowledged next
	infoNext          = 32 // offset: the one that is received next
	infoBytesRepeated = 48 // offset
	infoBytesSent     = 56 // offset
	infoBytesReceived = 64 // offset
	infoBytesAcked    = 72 // offset
	infoBytesEnd      = 80

	infoFlagFallback = 1

	memorySendBuffer = 12 // offset of SK_MEMINFO_SNDBUF
	memoryQueued     = 20 // offset of SK_MEMINFO_WMEM_QUEUED
	memoryEnd        = 24
)

func (s socket) connection() (Connection, bool) {
	if len(s.info) < infoEnd || binary.NativeEndian.Uint32(s.info[infoFlags:])&infoFlagFallback != 0 {
		return Connection{}, false
	}
	connection := Connection{
		Token: binary.NativeEndian.Uint32(s.info[infoToken:]),
		Local: s.local, Remote: s.remote, Subflows: s.info[infoSubflows], Announced: s.info[infoAnnounced],
	}
	if len(s.info) >= infoBytesEnd {
		number := func(offset int) uint64 { return binary.NativeEndian.Uint64(s.info[offset:]) }
		connection.FirstSent = number(infoUnacked) - number(infoBytesAcked)
		connection.FirstReceived = number(infoNext) - number(infoBytesReceived)
		connection.SentBytes = number(infoBytesSent) - min(number(infoBytesSent), number(infoBytesRepeated))
		connection.ReceivedBytes = number(infoBytesReceived)
		connection.UnderWay = number(infoBytesSent) - min(number(infoBytesSent), number(infoBytesAcked))
		connection.Backlog = number(infoWritten) - number(infoUnacked)
		connection.SequencesKnown = true
	}
	if len(s.memory) >= memoryEnd {
		connection.SendBuffer = uint64(binary.NativeEndian.Uint32(s.memory[memorySendBuffer:]))
		connection.SendBufferUsed = uint64(binary.NativeEndian.Uint32(s.memory[memoryQueued:]))
	}
	return connection, true
}

func (s socket) subflow() (Subflow, bool) {
	if s.ulp == nil {
		return Subflow{}, false
	}
	return Subflow{
		Token: s.ulp.token, RemoteToken: s.ulp.remoteToken, Local: s.local, Remote: s.remote,
		LocalID: s.ulp.localID, RemoteID: s.ulp.remoteID,
		Established:  s.state == stateEstablished,
		First:        s.ulp.flags&(subflowCapableLocal|subflowCapableRemote) != 0,
		Initiator:    s.ulp.flags&(subflowCapableLocal|subflowJoinLocal) != 0,
		BackupWanted: s.ulp.flags&subflowBackupLocal != 0,
		BackupAsked:  s.ulp.flags&subflowBackupRemote != 0,
		TCP:          s.tcpInfo(),
	}, true
}

func (s socket) tcp() Socket {
	subflow, ok := s.subflow()
	if !ok {
		subflow = Subflow{Local: s.local, Remote: s.remote, Established: s.state == stateEstablished, TCP: s.tcpInfo()}
	}
	// A peer that answered, or began, shows in one of these.
	agreed := ok && s.ulp.flags&(subflowCapableRemote|subflowJoinRemote|subflowJoinLocal) != 0
	return Socket{Subflow: subflow, Multipath: agreed, FellBack: ok && !agreed, Over: s.state == stateTimeWait, Opening: s.state == stateSynSent}
}

func (s socket) tcpInfo() TCPInfo {
	info := tcpInfo(s.info)
	info.Queued = uint64(s.queued)
	return info
}

const (
	tcpInfoRetries       = 2  // offset in struct tcp_info
	tcpInfoOptions       = 5  // offset
	tcpInfoScales        = 6  // offset: four bits each, the sender's first
	tcpInfoTimeout       = 8  // offset: microseconds
	tcpInfoSegment       = 16 // offset: bytes
	tcpInfoRTT           = 68 // offset: microseconds
	tcpInfoVariation     = 72 // offset: microseconds
	tcpInfoThreshold     = 76 // offset: segments
	tcpInfoWindow        = 80 // offset: segments
	tcpInfoEnd           = 84
	tcpInfoLeastRTT      = 148 // offset: microseconds
	tcpInfoPacingRate    = 104 // offset: bytes a second
	tcpInfoMaxPacingRate = 112 // offset: bytes a second
	tcpInfoBytesAcked    = 120 // offset
	tcpInfoDeliveryRate  = 160 // offset: bytes a second
	tcpInfoSendWindow    = 228 // offset: bytes
	tcpInfoSendWindowEnd = 232
	tcpInfoBytesReceived = 128 // offset
	tcpInfoBytesSent     = 200 // offset
	tcpInfoBytesRepeated = 208 // offset
	tcpInfoBytesEnd      = 216

	tcpOptionScale   = 1 << 2 // TCPI_OPT_WSCALE
	tcpOptionSYNData = 1 << 5 // TCPI_OPT_SYN_DATA

	tcpInfiniteThreshold = 0x7fffffff
)

// tcpInfo reads a struct tcp_info; a shorter one tells nothing.
func tcpInfo(info []byte) TCPInfo {
	if len(info) < tcpInfoEnd {
		return TCPInfo{}
	}
	send, receive := bitFields(info[tcpInfoScales])
	word := func(offset int) uint32 { return binary.NativeEndian.Uint32(info[offset:]) }
	microseconds := func(offset int) time.Duration { return time.Duration(word(offset)) * time.Microsecond }
	read := TCPInfo{
		SendScale: send, ReceiveScale: receive, Scaled: info[tcpInfoOptions]&tcpOptionScale != 0,
		BeganWithData: info[tcpInfoOptions]&tcpOptionSYNData != 0,
		RTT:           microseconds(tcpInfoRTT), Variation: microseconds(tcpInfoVariation),
		CongestionWindow: uint64(word(tcpInfoWindow)) * uint64(word(tcpInfoSegment)), Retries: info[tcpInfoRetries],
		Timeout: microseconds(tcpInfoTimeout),
	}
	if threshold := word(tcpInfoThreshold); threshold < tcpInfiniteThreshold {
		read.SlowStartThreshold = uint64(threshold) * uint64(word(tcpInfoSegment))
	}
	if len(info) >= tcpInfoBytesEnd {
		number := func(offset int) uint64 { return binary.NativeEndian.Uint64(info[offset:]) }
		read.LeastRTT = microseconds(tcpInfoLeastRTT)
		read.SentBytes = number(tcpInfoBytesSent) - min(number(tcpInfoBytesSent), number(tcpInfoBytesRepeated))
		read.ReceivedBytes, read.RepeatedBytes = number(tcpInfoBytesReceived), number(tcpInfoBytesRepeated)
		read.PacingRate, read.MaxPacingRate = number(tcpInfoPacingRate), number(tcpInfoMaxPacingRate)
		read.AckedBytes, read.DeliveryRate = number(tcpInfoBytesAcked), number(tcpInfoDeliveryRate)
	}
	if len(info) >= tcpInfoSendWindowEnd {
		read.SendWindow = uint64(word(tcpInfoSendWindow))
	}
	return read
}

// bitFields takes two bit fields of four bits apart, whose places in the byte
// depend on the machine's byte order.
func bitFields(value byte) (first, second uint8) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return value & 0xf, value >> 4
	}
	return value >> 4, value & 0xf
}
