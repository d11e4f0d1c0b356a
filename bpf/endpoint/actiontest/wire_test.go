// SPDX-License-Identifier: Apache-2.0

package actiontest_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf/endpoint/actiontest"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/internal/lab/network"
)

// Test runs know neither checksums that a NIC is to fill in nor packets of several
// segments. Those go over a real pair of interfaces here: what an endpoint gets is
// seen at its own end, what a peer gets at the far end of the node's other NIC.

// virtioHeader is struct virtio_net_hdr, which goes before a frame.
type virtioHeader struct {
	Flags, GSOType                               uint8
	HeaderLength, GSOSize, CsumStart, CsumOffset uint16
}

const (
	virtioLength    = 10
	virtioNeedsCsum = 1
	virtioGSOTCPv4  = 1
	virtioGSOTCPv6  = 4
	checksumAt      = 16
)

// wire is a node between an endpoint and a peer, with the harness's programs on
// its end of the endpoint's interface.
type wire struct {
	*harness
	endpoint, peer         *network.Namespace
	hostMAC, endpointMAC   net.HardwareAddr
	atEndpoint, atPeer     int
	intoEndpoint, fromHost int
}

func newWire(t *testing.T) *wire {
	t.Helper()
	w := &wire{harness: newHarness(t), endpoint: network.NamespaceForTest(t), peer: network.NamespaceForTest(t)}
	for _, setting := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		require.NoError(t, w.namespace.Sysctl(setting, "1"))
	}
	require.NoError(t, network.Connect(w.namespace, "endpoint", w.endpoint, "eth0", network.Options{
		MTU: 9000, AddressesA: []string{"10.244.1.1/24", "fd00:244:1::1/64"}, AddressesB: []string{"10.244.1.2/24", "fd00:244:1::2/64"},
	}))
	require.NoError(t, network.Connect(w.namespace, "uplink", w.peer, "eth0", network.Options{
		MTU: 9000, AddressesA: []string{"10.244.2.1/24", "fd00:244:2::1/64"}, AddressesB: []string{"10.244.2.2/24", "fd00:244:2::2/64"},
	}))
	w.hostMAC, w.endpointMAC = macOf(t, w.namespace, "endpoint"), macOf(t, w.endpoint, "eth0")
	index, err := w.namespace.Index("endpoint")
	require.NoError(t, err)
	for attach, program := range map[ebpf.AttachType]*ebpf.Program{ebpf.AttachTCXIngress: w.FromHarness, ebpf.AttachTCXEgress: w.ToHarness} {
		expectAttached(t, w.namespace.Do(func() error {
			attached, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: attach})
			if err == nil {
				t.Cleanup(func() { attached.Close() })
			}
			return err
		}))
	}
	w.atEndpoint, w.atPeer = packetSocket(t, w.endpoint, "eth0"), packetSocket(t, w.peer, "eth0")
	w.fromHost, w.intoEndpoint = packetSocket(t, w.namespace, "endpoint"), w.atEndpoint
	return w
}

func macOf(t *testing.T, ns *network.Namespace, name string) net.HardwareAddr {
	t.Helper()
	handle, err := ns.Handle()
	require.NoError(t, err)
	nic, err := handle.LinkByName(name)
	require.NoError(t, err)
	return nic.Attrs().HardwareAddr
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
	require.NoError(t, unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}))
	require.NoError(t, unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: index}))
	return socket
}

func bigEndian(n uint16) uint16 { return n<<8 | n>>8 }

// fillIn makes a NIC leave nothing to the hardware: checksums are right on its wire.
func fillIn(t *testing.T, ns *network.Namespace, nic string) {
	t.Helper()
	const setTransmitChecksums = 0x17
	require.NoError(t, ns.Do(func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		value := [2]uint32{setTransmitChecksums, 0}
		var request struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			pad  [16]byte
		}
		copy(request.name[:], nic)
		request.data = unsafe.Pointer(&value)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return errno
		}
		return nil
	}))
}

// unfinished is the segment as a stack hands it to a NIC that fills in checksums.
func unfinished(s segment) (virtioHeader, []byte) {
	frame := s.frame()
	l, _ := lay(frame)
	pseudo := slices.Concat(s.from.Addr().AsSlice(), s.to.Addr().AsSlice())
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(l.packetEnd-l.tcp+protocolTCP))
	binary.BigEndian.PutUint16(frame[l.tcp+checksumAt:], packettest.Sum(pseudo))
	return virtioHeader{Flags: virtioNeedsCsum, HeaderLength: uint16(l.end), CsumStart: uint16(l.tcp), CsumOffset: checksumAt}, frame
}

func send(t *testing.T, socket int, header virtioHeader, frame []byte) {
	t.Helper()
	message, err := binary.Append(nil, binary.NativeEndian, header)
	require.NoError(t, err)
	// A packet that a program drops at the sending interface counts as one too many.
	if _, err := unix.Write(socket, append(message, frame...)); err != nil && !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("sending %d bytes: %v", len(frame), err)
	}
}

// receive waits for a TCP segment between the two ends.
func receive(t *testing.T, socket int) (header virtioHeader, frame []byte) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); {
		if header, frame = tryReceive(t, socket); frame != nil {
			return header, frame
		}
	}
	t.Fatal("nothing came")
	return header, nil
}

func tryReceive(t *testing.T, socket int) (header virtioHeader, frame []byte) {
	t.Helper()
	buffer := make([]byte, 80_000)
	length, from, err := unix.Recvfrom(socket, buffer, 0)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return header, nil
	}
	require.NoError(t, err)
	frame = buffer[virtioLength:length]
	if l, ok := lay(frame); !ok || from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING ||
		(frame[l.tcp] != 0x9c && frame[l.tcp+2] != 0x9c) {
		return header, nil
	}
	_, err = binary.Decode(buffer, binary.NativeEndian, &header)
	require.NoError(t, err)
	return header, frame
}

// sameFromNetwork compares all but the Ethernet addresses.
func sameFromNetwork(t *testing.T, got []byte, want segment) {
	t.Helper()
	mustBe(t, append(bytes.Clone(want.frame()[:12]), got[12:]...), want)
}

// edits are what each actor does to a pure ACK.
var edits = map[string]struct {
	order  action
	before func(t *testing.T, w *wire, version int)
	want   func(version int, s *segment)
}{
	"a window is lowered": {
		before: func(t *testing.T, w *wire, version int) {
			w.begin(t, version, func(s *actiontest.HarnessSubflow) {
				s.Engaged, s.Limit[fromEndpoint].Rate, s.Limit[fromEndpoint].Mechanism = 1, 2_500_000, window
			})
		},
		want: func(version int, s *segment) { s.window = 196 },
	},
	"a priority is told": {
		order: action{kind: setBackup, flag: 1},
		want:  func(version int, s *segment) { s.options = slices.Concat(s.options, sayBackup) },
	},
	"an address is given back beside DSS": {
		order: action{kind: releaseAddAddr},
		before: func(t *testing.T, w *wire, version int) {
			w.hide(t, version, announcement(4, 5, 0, false))
		},
		want: func(version int, s *segment) { s.options = slices.Concat(s.options, announcement(4, 5, 0, false)) },
	},
	"an address is given back instead of DSS": {
		order: action{kind: releaseAddAddr},
		before: func(t *testing.T, w *wire, version int) {
			w.hide(t, version, announcement(6, 5, 0, false))
		},
		want: func(version int, s *segment) {
			s.options = slices.Concat(timestampsOf(77, 66), announcement(6, 5, 0, false))
		},
	},
	"an address is given back instead of all else": {
		order: action{kind: releaseAddAddr},
		before: func(t *testing.T, w *wire, version int) {
			w.hide(t, version, announcement(6, 5, 99, false))
		},
		want: func(version int, s *segment) { s.options = fill(announcement(6, 5, 99, false)) },
	},
}

// hide makes the connection have a hidden address of its peer's.
func (w *wire) hide(t *testing.T, version int, announced []byte) {
	t.Helper()
	w.begin(t, version, signalled)
	w.ask(t, toEndpoint, action{kind: suppressAddAddr})
	w.run(t, toEndpoint, announces(version, announced).flip().frame())
}

func TestChecksumsThatTheNICFillsInAreRightOnTheWire(t *testing.T) {
	w := newWire(t)
	fillIn(t, w.namespace, "endpoint")
	for name, edit := range edits {
		t.Run(name, func(t *testing.T) {
			for _, version := range []int{4, 6} {
				w.begin(t, version)
				if edit.before != nil {
					edit.before(t, w, version)
				}
				w.ask(t, toEndpoint, edit.order)
				for state, prepare := range map[string]func(segment) (virtioHeader, []byte){
					"left to the NIC": unfinished,
					"filled in":       func(s segment) (virtioHeader, []byte) { return virtioHeader{}, s.frame() },
				} {
					w.wait(t, 10*second)
					s := pureACK(version).flip()
					header, frame := prepare(s)
					send(t, w.fromHost, header, frame)
					header, got := receive(t, w.atEndpoint)
					if header.Flags&virtioNeedsCsum != 0 {
						t.Errorf("IPv%d, %s: the checksum was not filled in on the wire", version, state)
					}
					sameFromNetwork(t, got, s.with(func(s *segment) { edit.want(version, s) }))
				}
			}
		})
	}
}

func TestAnAnnouncementInALargePacketIsHiddenAndThePacketStaysWhole(t *testing.T) {
	w := newWire(t)
	w.ask(t, toEndpoint, action{kind: suppressAddAddr})
	for _, version := range []int{4, 6} {
		w.begin(t, version)
		s := pureACK(version).flip().with(func(s *segment) {
			s.options = slices.Concat(announcement(4, 5, 0, false), mapping)
			s.payload = bytes.Repeat([]byte("braid"), 12_000)
		})
		header, frame := unfinished(s)
		header.GSOSize, header.GSOType = 1400, virtioGSOTCPv4
		if version == 6 {
			header.GSOType = virtioGSOTCPv6
		}
		send(t, w.fromHost, header, frame)
		got, large := receive(t, w.atEndpoint)
		if got.GSOSize != header.GSOSize || got.GSOType != header.GSOType || got.Flags&virtioNeedsCsum == 0 {
			t.Errorf("IPv%d: it came with %+v", version, got)
		}
		_, want := unfinished(s.with(func(s *segment) {
			s.options = slices.Concat(bytes.Repeat([]byte{1}, 16), mapping)
		}))
		if !bytes.Equal(large[12:], want[12:]) {
			t.Errorf("IPv%d: it changed beyond the announcement", version)
		}
	}
}

// The NIC fills their checksums in, so nothing but the window may change.
func TestAWindowIsLoweredInDataWhoseChecksumIsLeftToTheNIC(t *testing.T) {
	w := newWire(t)
	for _, version := range []int{4, 6} {
		for _, size := range []int{1, 1400, 60_000} {
			edits["a window is lowered"].before(t, w, version)
			s := pureACK(version).flip().with(func(s *segment) { s.payload = bytes.Repeat([]byte("b"), size) })
			header, frame := unfinished(s)
			if size > 1400 {
				header.GSOSize, header.GSOType = 1400, virtioGSOTCPv4
				if version == 6 {
					header.GSOType = virtioGSOTCPv6
				}
			}
			send(t, w.fromHost, header, frame)
			got, after := receive(t, w.atEndpoint)
			if got.Flags&virtioNeedsCsum == 0 {
				t.Errorf("IPv%d, %d bytes: the checksum is no longer left to the NIC", version, size)
			}
			_, want := unfinished(s.with(func(s *segment) { edits["a window is lowered"].want(version, s) }))
			if !bytes.Equal(after[12:], want[12:]) {
				t.Errorf("IPv%d, %d bytes: it changed beyond the window", version, size)
			}
		}
	}
}

func TestPolicedLargePacketsPassWholeOrNotAtAll(t *testing.T) {
	w := newWire(t)
	w.begin(t, 4)
	w.ask(t, toEndpoint, action{kind: rateLimit, mechanism: police, rate: 100_000})
	s := pureACK(4).flip().with(func(s *segment) { s.payload = make([]byte, 60_000) })
	header, frame := unfinished(s)
	header.GSOSize, header.GSOType = 1400, virtioGSOTCPv4
	passed := 0
	for range 5 {
		send(t, w.fromHost, header, frame)
		if _, got := tryReceive(t, w.atEndpoint); got != nil {
			if !bytes.Equal(got[12:], frame[12:]) {
				t.Error("policing changed a packet")
			}
			passed++
		}
	}
	if passed != 2 {
		t.Errorf("%d of 5 packets of 60 kB passed a bucket of 64 KiB", passed)
	}
}

// onTheWire gives a segment the Ethernet addresses of the endpoint's interface.
func (w *wire) onTheWire(frame []byte, direction int) []byte {
	to, from := w.hostMAC, w.endpointMAC
	if direction == toEndpoint {
		to, from = from, to
	}
	return slices.Concat(to, from, frame[12:])
}

func TestResetsReachTheirReceiversWithRightChecksums(t *testing.T) {
	w := newWire(t)
	fillIn(t, w.namespace, "endpoint")
	fillIn(t, w.namespace, "uplink")
	for name, c := range resets {
		t.Run(name, func(t *testing.T) {
			for _, version := range []int{4, 6} {
				for direction, receiver := range []int{w.atEndpoint, w.atPeer} {
					for _, large := range []bool{false, true} {
						if large && name != "data" {
							continue
						}
						w.begin(t, version)
						w.ask(t, direction, action{kind: reset})
						s := pureACK(version).with(c.change)
						if large {
							s.payload = make([]byte, 40_000)
						}
						sender := w.intoEndpoint
						if direction == toEndpoint {
							s, sender = s.flip(), w.fromHost
						}
						for _, left := range []bool{false, true} {
							header, frame := unfinished(s)
							if !left && !large {
								header, frame = virtioHeader{}, s.frame()
							}
							if large {
								header.GSOSize, header.GSOType = 1400, map[int]uint8{4: virtioGSOTCPv4, 6: virtioGSOTCPv6}[version]
							}
							send(t, sender, header, w.onTheWire(frame, direction))
							_, got := receive(t, receiver)
							sameFromNetwork(t, hopBack(got, version, direction), answer(s, c.flags, c.sequence, c.acked))
						}
						w.ask(t, direction, action{})
					}
				}
			}
		})
	}
}

// hopBack undoes what forwarding did to a packet that the peer got.
func hopBack(frame []byte, version, direction int) []byte {
	if direction == fromEndpoint {
		return frame
	}
	frame = bytes.Clone(frame)
	if version == 6 {
		frame[14+7]++
		return frame
	}
	frame[14+8]++
	binary.BigEndian.PutUint16(frame[14+10:], 0)
	binary.BigEndian.PutUint16(frame[14+10:], ^packettest.Sum(frame[14:34]))
	return frame
}
