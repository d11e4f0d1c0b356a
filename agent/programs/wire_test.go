// SPDX-License-Identifier: Apache-2.0

package programs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/network"
)

// wire is a node between an endpoint and a peer, with the real chain on its end of
// the endpoint's interface.
type wire struct {
	node, endpoint, peer *network.Namespace
}

const (
	endpointAddress = "10.244.1.2"
	peerAddress     = "10.244.2.2"
)

func newWire(t *testing.T, c *realChain) *wire {
	t.Helper()
	w := &wire{node: network.NamespaceForTest(t), endpoint: network.NamespaceForTest(t), peer: network.NamespaceForTest(t)}
	require.NoError(t, w.node.Sysctl("net.ipv4.ip_forward", "1"))
	require.NoError(t, network.Connect(w.node, "endpoint", w.endpoint, "eth0", network.Options{
		AddressesA: []string{"10.244.1.1/24"}, AddressesB: []string{endpointAddress + "/24"},
	}))
	require.NoError(t, network.Connect(w.node, "uplink", w.peer, "eth0", network.Options{
		AddressesA: []string{"10.244.2.1/24"}, AddressesB: []string{peerAddress + "/24"},
	}))
	require.NoError(t, w.endpoint.AddRoute(network.Route{Destination: "10.244.2.0/24", Gateway: "10.244.1.1", Interface: "eth0"}))
	require.NoError(t, w.peer.AddRoute(network.Route{Destination: "10.244.1.0/24", Gateway: "10.244.2.1", Interface: "eth0"}))
	for _, end := range []*network.Namespace{w.endpoint, w.peer} {
		fillIn(t, end, "eth0")
	}
	c.attach(t, w.node, "endpoint")
	return w
}

// attach puts the real chain on the node's end of an interface of an endpoint.
func (c *realChain) attach(t *testing.T, node *network.Namespace, nodeEnd string) {
	t.Helper()
	index, err := node.Index(nodeEnd)
	require.NoError(t, err)
	c.on = uint32(index)
	for attach, program := range map[ebpf.AttachType]*ebpf.Program{
		ebpf.AttachTCXIngress: c.from.Programs["from_endpoint"], ebpf.AttachTCXEgress: c.to.Programs["to_endpoint"],
	} {
		require.NoError(t, node.Do(func() error {
			attached, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: attach})
			if err == nil {
				t.Cleanup(func() { require.NoError(t, attached.Close()) })
			}
			return err
		}))
	}
}

// fillIn makes a NIC leave nothing to the hardware: checksums are right on its wire.
func fillIn(t *testing.T, ns *network.Namespace, nic string) {
	t.Helper()
	const setTransmitChecksums = 0x17
	require.NoError(t, ns.Do(func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
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

// capture collects the TCP segments that come in at the eth0 of a namespace.
type capture struct {
	socket int
}

func newCapture(t *testing.T, ns *network.Namespace) *capture {
	t.Helper()
	index, err := ns.Index("eth0")
	require.NoError(t, err)
	c := &capture{}
	require.NoError(t, ns.Do(func() (err error) {
		c.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	}))
	t.Cleanup(func() { require.NoError(t, unix.Close(c.socket)) })
	require.NoError(t, unix.SetsockoptInt(c.socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
	protocol := bits16(unix.ETH_P_IP)
	require.NoError(t, unix.Bind(c.socket, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: index}))
	return c
}

func bits16(n uint16) uint16 { return n<<8 | n>>8 }

// segments are those that came so far.
func (c *capture) segments(t *testing.T) (found [][]byte) {
	t.Helper()
	buffer := make([]byte, 1<<17)
	for {
		length, from, err := unix.Recvfrom(c.socket, buffer, 0)
		if errors.Is(err, unix.EAGAIN) {
			return found
		}
		require.NoError(t, err)
		if from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING && length > 54 && buffer[23] == unix.IPPROTO_TCP {
			found = append(found, bytes.Clone(buffer[14:length]))
		}
	}
}

// checksumsHold looks at those of IP and TCP.
func checksumsHold(packet []byte) bool {
	length := int(binary.BigEndian.Uint16(packet[2:]))
	tcp := packet[20:length]
	pseudo := binary.BigEndian.AppendUint32(bytes.Clone(packet[12:20]), uint32(len(tcp)+unix.IPPROTO_TCP))
	return onesSum(packet[:20]) == 0xffff && onesSum(slices.Concat(pseudo, tcp)) == 0xffff
}

func onesSum(data []byte) uint16 {
	total := uint32(0)
	for i, b := range data {
		total += uint32(b) << (8 * (1 - i%2))
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

// stamps counts the segments with the example's option, and says of wrong ones.
func stamps(t *testing.T, packets [][]byte) (count int) {
	t.Helper()
	for _, packet := range packets {
		if !checksumsHold(packet) {
			t.Errorf("the checksums of this packet are wrong: %x", packet[:min(len(packet), 100)])
		}
		options := packet[40 : 20+int(packet[32]>>4)*4]
		if bytes.Contains(options, []byte{253, 8, 0xb5, 0xa1, 0, 0, 0, 42}) {
			count++
		}
	}
	return count
}

// echo sends random bytes there and back over an MPTCP connection.
func (w *wire) echo(t *testing.T, size int) {
	t.Helper()
	listener, err := w.peer.Listen(t.Context(), "tcp4", peerAddress+":7000")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() {
		accepted, err := listener.Accept()
		if err == nil {
			_, err = io.Copy(accepted, accepted)
			err = errors.Join(err, accepted.Close())
		}
		served <- err
	}()
	connection, err := w.endpoint.Dial(t.Context(), "tcp4", peerAddress+":7000")
	require.NoError(t, err)
	sent := make([]byte, size)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(sent)
	go func() { _, _ = connection.Write(sent) }()
	received := make([]byte, size)
	_, err = io.ReadFull(connection, received)
	require.NoError(t, err)
	if !bytes.Equal(sent, received) {
		t.Error("what came back is not what was sent")
	}
	require.NoError(t, errors.Join(connection.Close(), <-served, listener.Close()))
}

func TestABlockOnRealConnections(t *testing.T) {
	n, c := newChainNode(t)
	w := newWire(t, c)
	slots := n.applyAll(t, n.put(t, "stamp", "examples/stamp.bpf.c", ""), n.put(t, "nothing", "testdata/nothing.bpf.c", "")).Slots
	atPeer, atEndpoint := newCapture(t, w.peer), newCapture(t, w.endpoint)

	c.set(t, rule{custom(slots["policy/nothing"], 0), custom(slots["policy/stamp"], 42)})
	w.echo(t, 4<<20)
	if there, back := stamps(t, atPeer.segments(t)), stamps(t, atEndpoint.segments(t)); there == 0 || back == 0 {
		t.Errorf("%d stamped segments came to the peer, %d to the endpoint", there, back)
	}

	c.set(t, rule{custom(slots["policy/nothing"], 0)})
	_, _ = atPeer.segments(t), atEndpoint.segments(t) // the first connection's last ones
	w.echo(t, 1<<20)
	if there, back := stamps(t, atPeer.segments(t)), stamps(t, atEndpoint.segments(t)); there != 0 || back != 0 {
		t.Errorf("without the rule %d stamped segments came to the peer, %d to the endpoint", there, back)
	}
}
