// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// A test run shows the verdict. Where a redirected packet goes, and what test
// runs cannot make (short frames, large ones, ones not in one piece, tags beside
// the frame), is seen on the wire.

// virtioHeader is struct virtio_net_hdr, which goes before a frame.
type virtioHeader struct {
	Flags, GSOType                               uint8
	HeaderLength, GSOSize, CsumStart, CsumOffset uint16
}

const (
	virtioLength     = 10
	virtioNeedsCsum  = 1
	virtioGSOTCPv4   = 1
	virtioGSOTCPv6   = 4
	largestFrame     = 70_000
	tcpChecksumField = 16
)

// wire is a node with the programs attached to all of its NICs, and what comes
// out at its peer.
type wire struct {
	*node
	arrivals chan arrival
}

// arrival is a frame that the peer received.
type arrival struct {
	path   int
	header virtioHeader
	frame  []byte
}

func newWire(t *testing.T) *wire {
	t.Helper()
	w := &wire{node: newNode(t), arrivals: make(chan arrival, 1000)}
	for path := range paths {
		w.attach(t, w.to, egress, w.nics[path], ours)
		w.attach(t, w.from, ingress, w.nics[path], ours)
		w.listen(t, path)
	}
	return w
}

// Where a program stands among those of a hook.
const (
	first = 1
	ours  = 10
	last  = 20
)

// The hooks of a NIC.
const (
	egress  = netlink.HANDLE_MIN_EGRESS
	ingress = netlink.HANDLE_MIN_INGRESS
)

// attach attaches by a filter, which every kernel knows.
func (w *wire) attach(t *testing.T, program *ebpf.Program, hook uint32, nic uint32, place uint16) {
	t.Helper()
	require.NoError(t, w.Do(func() error {
		qdisc := &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: int(nic), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}}
		if err := netlink.QdiscReplace(qdisc); err != nil {
			return fmt.Errorf("adding the clsact qdisc: %w", err)
		}
		return netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs:  netlink.FilterAttrs{LinkIndex: int(nic), Parent: hook, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: place},
			Fd:           program.FD(),
			Name:         "braid_test",
			DirectAction: true,
		})
	}))
}

// listen passes on what the peer receives on a path, until the test ends.
func (w *wire) listen(t *testing.T, path int) {
	t.Helper()
	socket := packetSocket(t, w.peer, pathNames[path])
	require.NoError(t, unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20_000}))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		w.receive(t, socket, path, stop)
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
}

func (w *wire) receive(t *testing.T, socket, path int, stop chan struct{}) {
	buffer := make([]byte, virtioLength+largestFrame)
	for {
		select {
		case <-stop:
			return
		default:
		}
		length, from, err := unix.Recvfrom(socket, buffer, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Errorf("receiving on %s: %v", pathNames[path], err)
			return
		}
		if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		a := arrival{path: path, frame: bytes.Clone(buffer[virtioLength:length])}
		if _, err := binary.Decode(buffer, binary.NativeEndian, &a.header); err != nil {
			t.Errorf("reading what came before a frame: %v", err)
		}
		w.arrivals <- a
	}
}

// packetSocket is one for whole frames on a NIC, each after a virtioHeader.
func packetSocket(t *testing.T, ns *network.Namespace, nic string) (socket int) {
	t.Helper()
	index, err := ns.Index(nic)
	require.NoError(t, err)
	require.NoError(t, ns.Do(func() (err error) {
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		return err
	}))
	t.Cleanup(func() { unix.Close(socket) })
	require.NoError(t, unix.SetsockoptInt(socket, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	require.NoError(t, unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: index}))
	return socket
}

// leave sends a frame by one of the node's NICs.
func (w *wire) leave(t *testing.T, nic string, header virtioHeader, frame []byte) {
	t.Helper()
	send(t, packetSocket(t, w.Namespace, nic), header, frame)
}

func send(t *testing.T, socket int, header virtioHeader, frame []byte) {
	t.Helper()
	message, err := binary.Append(nil, binary.NativeEndian, header)
	require.NoError(t, err)
	if _, err := unix.Write(socket, append(message, frame...)); err != nil {
		t.Fatalf("sending %d bytes: %v", len(frame), err)
	}
}

// arrived waits for a frame whose bytes after the Ethernet addresses are these.
// The rest of the traffic is the kernel's own.
func (w *wire) arrived(t *testing.T, frame []byte) arrival {
	t.Helper()
	patience := time.After(5 * time.Second)
	for {
		select {
		case a := <-w.arrivals:
			if len(a.frame) == len(frame) && bytes.Equal(a.frame[12:], frame[12:]) {
				return a
			}
		case <-patience:
			t.Fatalf("a frame of %d bytes did not arrive", len(frame))
		}
	}
}

func TestTheWirePathsOfSegments(t *testing.T) {
	w := newWire(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for path := range paths {
			e := w.begin(t, e.port(uint16(42000+100*path)), uint8(path))
			for nic, name := range pathNames {
				data := e.out().with(func(s *segment) {
					s.sequence += uint32(100 * nic)
					s.options, s.payload = dataSignal(), fmt.Appendf(nil, "from NIC %d", nic)
				}).frame()
				w.leave(t, name, virtioHeader{}, data)
				a := w.arrived(t, data)
				if a.path != path {
					t.Errorf("a segment of %s that left by %s arrived on %s", pathNames[path], name, pathNames[a.path])
				}
				if same := bytes.Equal(a.frame[:12], data[:12]); same != (nic == path) {
					t.Errorf("a segment of %s that left by %s: its Ethernet addresses stayed: %t", pathNames[path], name, same)
				}
			}
		}
	})
}

// A redirected frame is for the peer's own NIC, whoever it was for before.
func TestTheNextHopIsThePeersNIC(t *testing.T) {
	w := newWire(t)
	handle, err := w.peer.Handle()
	require.NoError(t, err)
	nic, err := handle.LinkByName(pathNames[green])
	require.NoError(t, err)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		e = w.begin(t, e, green)
		w.leave(t, "blue", virtioHeader{}, e.out().frame())
		if a := w.arrived(t, e.out().frame()); !bytes.Equal(a.frame[:6], nic.Attrs().HardwareAddr) {
			t.Errorf("the frame is for %x instead of %x", a.frame[:6], nic.Attrs().HardwareAddr)
		}
	})
}

func TestShortFramesPassOnTheWire(t *testing.T) {
	w := newWire(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		e = w.begin(t, e, green)
		socket := packetSocket(t, w.Namespace, "blue")
		other := e.port(e.pod.Port() + 1000).syn(capable(1))
		peer := packetSocket(t, w.peer, "red")
		before := w.countFlows(t)
		data := e.out().with(func(s *segment) { s.options = dataSignal() })
		for length := etherLength; length < data.headers(); length++ {
			frame := data.frame()[:length]
			send(t, socket, virtioHeader{}, frame)
			if a := w.arrived(t, frame); a.path != blue || !bytes.Equal(a.frame, frame) {
				t.Errorf("%d bytes arrived on %s as %x", length, pathNames[a.path], a.frame)
			}
			send(t, peer, virtioHeader{}, other.flip().frame()[:length])
		}
		if flows := w.countFlows(t); flows != before {
			t.Errorf("there were %d flows and are %d", before, flows)
		}
	})
}

// Some drivers leave the headers of a packet outside of its first piece.
func TestHeadersInPiecesAreRead(t *testing.T) {
	w := newWire(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		e = w.begin(t, e, green)
		for _, first := range []uint16{etherLength, etherLength + 1, etherLength + ipv4Length, 60, 100} {
			data := e.out().with(func(s *segment) {
				s.sequence += 10_000 * uint32(first)
				s.options, s.payload = dataSignal(), make([]byte, 5000+int(first))
			}).frame()
			w.leave(t, "blue", virtioHeader{HeaderLength: first}, data)
			if a := w.arrived(t, data); a.path != green {
				t.Errorf("with %d bytes in the first piece it arrived on %s", first, pathNames[a.path])
			}
		}
		if version == 4 {
			long := e.out().with(func(s *segment) {
				s.sequence += 2_000_000
				s.ipOptions, s.payload = slices.Concat([]byte{7, 39}, make([]byte, 37), endOfOptions), make([]byte, 5000)
			})
			w.leave(t, "blue", virtioHeader{HeaderLength: etherLength}, long.frame())
			if a := w.arrived(t, long.frame()); a.path != green {
				t.Errorf("with IP options it arrived on %s", pathNames[a.path])
			}
		}
		// The same for the options of a SYN with much data.
		s := e.port(e.pod.Port() + 1000).syn(join(token)).with(func(s *segment) { s.payload = make([]byte, 5000) })
		w.leave(t, "blue", virtioHeader{HeaderLength: etherLength}, s.frame())
		w.arrived(t, s.frame())
		w.mustFlow(t, s)
	})
}

// large is the least length of packets that the ruler looks at: what the kernel itself sends at
// a NIC, such as which IPv6 multicast groups it has joined, is shorter.
const large = 5000

// ruler is a program that remembers how long the first piece of the last large packet
// was.
func ruler(t *testing.T) (*ebpf.Program, func() uint32) {
	t.Helper()
	length, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	require.NoError(t, err)
	t.Cleanup(func() { length.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:    ebpf.SchedCLS,
		License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R6, asm.R1, lengthOffset, asm.Word),
			asm.JLT.Imm(asm.R6, large, "done"),
			asm.LoadMem(asm.R6, asm.R1, dataEndOffset, asm.Word),
			asm.LoadMem(asm.R7, asm.R1, dataOffset, asm.Word),
			asm.Sub.Reg(asm.R6, asm.R7),
			asm.StoreMem(asm.RFP, -4, asm.R6, asm.Word),
			asm.StoreImm(asm.RFP, -8, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, length.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -8),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, -4),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnMapUpdateElem.Call(),
			asm.Mov.Imm(asm.R0, int32(next)).WithSymbol("done"),
			asm.Return(),
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	return program, func() (last uint32) {
		require.NoError(t, length.Lookup(uint32(0), &last))
		return last
	}
}

// Of fields in struct __sk_buff.
const (
	dataOffset    = 76
	dataEndOffset = 80
)

// The stack keeps nothing but the headers in the first piece. To bring in more
// would mean to copy it for each packet.
func TestTheFirstPieceOfSegmentsIsLeftAlone(t *testing.T) {
	w := newWire(t)
	program, length := ruler(t)
	w.attach(t, program, egress, w.nics[green], last)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		e = w.begin(t, e, green)
		unselected := e.out().with(func(s *segment) { s.from = netip.AddrPortFrom(s.from.Addr().Next(), 7) })
		for name, s := range map[string]segment{"a flow's": e.out(), "an unselected pod's": unselected} {
			for _, options := range [][]byte{nil, slices.Concat(nop, nop, timestamps), slices.Concat(nop, nop, timestamps, dataSignal())} {
				s := s.with(func(s *segment) { s.options, s.payload = options, make([]byte, large+len(options)) })
				w.leave(t, "green", virtioHeader{HeaderLength: uint16(s.headers())}, s.frame())
				w.arrived(t, s.frame())
				if got := length(); got != uint32(s.headers()) {
					t.Errorf("%s segment with %d bytes of options: the first piece had %d bytes and has %d", name, len(options), s.headers(), got)
				}
			}
		}
	})
}

func TestLargePacketsStayWholeOnTheWire(t *testing.T) {
	w := newWire(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		e = w.begin(t, e, green)
		const size = 1428
		data := e.out().with(func(s *segment) { s.options, s.payload = dataSignal(), bytes.Repeat([]byte("braid"), 13_000) })
		header := virtioHeader{Flags: virtioNeedsCsum, GSOType: virtioGSOTCPv4, GSOSize: size, HeaderLength: uint16(data.headers()),
			CsumStart: uint16(shortest(version)), CsumOffset: tcpChecksumField}
		if version == 6 {
			header.GSOType = virtioGSOTCPv6
		}
		for nic, name := range map[int]string{blue: "blue", green: "green"} {
			data.sequence += uint32(len(data.payload))
			w.leave(t, name, header, data.frame())
			a := w.arrived(t, data.frame())
			if a.path != green || a.header.GSOSize != size || a.header.GSOType != header.GSOType || a.header.Flags&virtioNeedsCsum == 0 {
				t.Errorf("%d bytes that left by NIC %d arrived on %s with %+v", len(a.frame), nic, pathNames[a.path], a.header)
			}
		}
	})
}

// tagger is a program that tags every packet as a VLAN's interface does: beside
// the frame.
func tagger(t *testing.T) *ebpf.Program {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:    ebpf.SchedCLS,
		License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, int32(bigEndian(etherVLAN))),
			asm.Mov.Imm(asm.R3, 10),
			asm.FnSkbVlanPush.Call(),
			asm.Mov.Imm(asm.R0, int32(next)),
			asm.Return(),
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	return program
}

// A tagged segment belongs to its VLAN's own interface, also where the tag is
// beside the frame when the NIC below sees it.
func TestATagBesideTheFrameIsLeftAlone(t *testing.T) {
	w := newWire(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		e = w.begin(t, e, green)
		w.leave(t, "blue", virtioHeader{}, e.out().frame())
		if a := w.arrived(t, e.out().frame()); a.path != green {
			t.Errorf("without a tag it arrived on %s", pathNames[a.path])
		}
	})
	w.attach(t, tagger(t), egress, w.nics[blue], first)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		e = w.begin(t, e, green)
		w.leave(t, "blue", virtioHeader{}, e.out().frame())
		if a := w.arrived(t, e.out().frame()); a.path != blue {
			t.Errorf("with a tag it arrived on %s", pathNames[a.path])
		}
		s := e.port(e.pod.Port() + 1000).syn(capable(1))
		w.leave(t, "blue", virtioHeader{}, s.frame())
		w.arrived(t, s.frame())
		if flow := w.flow(t, s); flow != nil {
			t.Errorf("a tagged SYN began the flow %+v", flow)
		}
	})
}

// The kernel takes the tag out of a frame that comes in, before it runs programs.
func TestATaggedSYNThatComesInIsLeftAlone(t *testing.T) {
	w := newWire(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		socket := packetSocket(t, w.peer, "red")
		tagged := e.syn(capable(1)).flip().with(func(s *segment) { s.vlan = 10 })
		send(t, socket, virtioHeader{}, tagged.frame())
		plain := e.port(e.pod.Port() + 1).syn(capable(1))
		send(t, socket, virtioHeader{}, plain.flip().frame())
		w.waitForFlow(t, plain)
		if flow := w.flow(t, e.answer()); flow != nil {
			t.Errorf("a tagged SYN began the flow %+v", flow)
		}
	})
}

func (w *wire) waitForFlow(t *testing.T, out segment) {
	t.Helper()
	testutil.Eventually(t, 5*time.Second, "there is a flow", func() bool { return w.flow(t, out) != nil })
}

func TestADeadPathsSegmentsArriveOnAnother(t *testing.T) {
	w := newWire(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		e = w.begin(t, e, green)
		step := 0
		arrivesOn := func(expected int) {
			t.Helper()
			step++
			data := e.out().with(func(s *segment) {
				s.sequence += uint32(100 * step)
				s.payload = fmt.Appendf(nil, "step %d", step)
			}).frame()
			w.leave(t, "blue", virtioHeader{}, data)
			if a := w.arrived(t, data); a.path != expected {
				t.Errorf("step %d arrived on %s instead of %s", step, pathNames[a.path], pathNames[expected])
			}
		}
		arrivesOn(green)
		w.setPeer(t, 1<<red)
		arrivesOn(red)
		w.setNode(t, 1<<blue)
		w.setPeer(t, allPaths)
		arrivesOn(blue)
		w.setNode(t, 0)
		arrivesOn(blue) // by the route
		w.setNode(t, allPaths)
		arrivesOn(green)
	})
}

func TestAnAnswerLeavesWhereItsSYNCameIn(t *testing.T) {
	w := newWire(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		e = ends{pod: netip.AddrPortFrom(e.pod.Addr(), 443), other: e.other}
		incoming := e.syn(capable(1)).flip()
		send(t, packetSocket(t, w.peer, "red"), virtioHeader{}, incoming.frame())
		w.waitForFlow(t, e.answer())
		answer := e.answer().with(func(s *segment) { s.flags, s.options = syn|ack, capableWithKey(key) }).frame()
		w.leave(t, "blue", virtioHeader{}, answer)
		if a := w.arrived(t, answer); a.path != red {
			t.Errorf("the answer arrived on %s", pathNames[a.path])
		}
	})
}
