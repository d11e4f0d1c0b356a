// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
)

// othersFrames is how many frames of others leave by each NIC, and how many datagrams of pods
// that no policy selects go through the overlay and back.
const othersFrames = 2000

// countOthersChanged counts of other traffic than that of selected pods what does not arrive
// byte for byte, or by the same NIC: frames of many kinds that leave by the NICs of a node,
// and datagrams between pods that no policy selects.
func countOthersChanged(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	changed, random := 0, rand.New(rand.NewPCG(1, 2))
	for _, path := range l.Network.Spec.Paths {
		of, err := framesChanged(l, path, random)
		if err != nil {
			return fmt.Errorf("frames of others by %s: %w", path, err)
		}
		changed += of
	}
	of, err := datagramsChanged(ctx, l, random)
	m.Add("overlay.others_changed", float64(changed+of))
	m.Add("overlay.others", float64(othersFrames*(len(l.Network.Spec.Paths)+1)))
	return err
}

// framesChanged sends frames by a NIC, and counts which do not arrive as they are behind it.
func framesChanged(l *rig.Lab, path string, random *rand.Rand) (changed int, err error) {
	node := l.Sender.Node
	nic, err := frameSocket(node.Namespace, path)
	if err != nil {
		return 0, err
	}
	defer unix.Close(nic)
	wire, err := frameSocket(l.Network.Fabric, path+"."+strconv.Itoa(node.Number))
	if err != nil {
		return 0, err
	}
	defer unix.Close(wire)
	for range othersFrames {
		frame := frameOfOthers(l, random)
		if _, err := unix.Write(nic, frame); err != nil {
			return 0, fmt.Errorf("sending %d bytes: %w", len(frame), err)
		}
		if !arrives(wire, frame) {
			changed++
		}
	}
	return changed, nil
}

// frameSocket sends whole frames by an interface, and has what comes in there.
func frameSocket(of *network.Namespace, name string) (socket int, err error) {
	index, err := of.Index(name)
	if err != nil {
		return 0, err
	}
	err = of.Do(func() error {
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("opening a packet socket on %s: %w", name, err)
	}
	patience := unix.NsecToTimeval(int64(time.Second))
	const everyProtocol = 0x0300 // in the network's order
	err = errors.Join(
		unix.SetsockoptInt(socket, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
		unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: everyProtocol, Ifindex: index}),
	)
	if err != nil {
		return 0, errors.Join(fmt.Errorf("setting up a packet socket on %s: %w", name, err), unix.Close(socket))
	}
	return socket, nil
}

// arrives waits for this frame among those of the nodes themselves.
func arrives(wire int, frame []byte) bool {
	buffer := make([]byte, 64<<10)
	for until := time.Now().Add(time.Second); time.Now().Before(until); {
		length, _, err := unix.Recvfrom(wire, buffer, 0)
		if err == nil && string(buffer[:length]) == string(frame) {
			return true
		}
	}
	return false
}

// mptcpOfOthers are options as MPTCP's data, SYNs and joins have them.
var mptcpOfOthers = [][]byte{
	append([]byte{30, 20, 0x20, 5}, make([]byte, 16)...), {30, 4, 1, 1}, {30, 12, 0x10, 1, 1, 2, 3, 4, 5, 6, 7, 8}, nil,
}

// frameOfOthers is a segment between addresses that no policy selects, or what only looks like
// one: as it is, or in a tunnel, in fragments, of another protocol or with headers of its own.
func frameOfOthers(l *rig.Lab, random *rand.Rand) []byte {
	s := packettest.Segment{
		From: addressOfOthers(1, random), Sequence: random.Uint32(), Acknowledge: random.Uint32(), Window: uint16(random.Uint32()),
		Flags: uint8(random.Uint32()), Options: mptcpOfOthers[random.IntN(len(mptcpOfOthers))], Payload: bytesOf(random, random.IntN(1000)),
		Protocol: []uint8{0, 0, 0, packettest.UDP, 1, 132}[random.IntN(6)],
	}
	for s.To = addressOfOthers(2, random); s.To.Addr().Is6() != s.From.Addr().Is6(); {
		s.To = addressOfOthers(2, random)
	}
	if random.IntN(8) == 0 {
		s.Fragment = uint16(random.Uint32())
	}
	if random.IntN(2) == 0 {
		return s.Frame()
	}
	return packettest.Tunnel{
		From: netip.MustParseAddr(l.Sender.Node.Address(0, 4)), To: netip.MustParseAddr(l.Receiver.Node.Address(0, 4)),
		Port: uint16(network.TunnelPort - random.IntN(2)), Check: packettest.Check(random.IntN(2)),
	}.Frame(s.Frame())
}

// addressOfOthers is one of a node's pods that there are not.
func addressOfOthers(node int, random *rand.Rand) netip.AddrPort {
	text := fmt.Sprintf("10.244.%d.%d", node, 200+random.IntN(50))
	if random.IntN(2) == 0 {
		text = fmt.Sprintf("fd00:244:%d::%x", node, 200+random.IntN(50))
	}
	return netip.AddrPortFrom(netip.MustParseAddr(text), uint16(random.Uint32()))
}

func bytesOf(random *rand.Rand, size int) []byte {
	bytes := make([]byte, size)
	for i := range bytes {
		bytes[i] = byte(random.Uint32())
	}
	return bytes
}

// datagramsChanged sends datagrams from pod to pod, which returns them, and counts those that
// do not come back as they were within a second.
func datagramsChanged(ctx context.Context, l *rig.Lab, random *rand.Rand) (changed int, err error) {
	const port = 7
	from, to := l.Network.Pod("other"), l.Network.Pod("server-other")
	var server net.PacketConn
	if err := to.Do(func() (err error) {
		server, err = new(net.ListenConfig).ListenPacket(ctx, "udp4", net.JoinHostPort(to.IPv4, strconv.Itoa(port)))
		return err
	}); err != nil {
		return 0, err
	}
	defer server.Close()
	go echo(server)
	var client net.Conn
	if err := from.Do(func() (err error) {
		client, err = new(net.Dialer).DialContext(ctx, "udp4", server.LocalAddr().String())
		return err
	}); err != nil {
		return 0, err
	}
	defer client.Close()
	buffer := make([]byte, 64<<10)
	for i := range othersFrames {
		datagram := append(binary.BigEndian.AppendUint32(nil, uint32(i)), bytesOf(random, random.IntN(8000))...)
		if _, err := client.Write(datagram); err != nil {
			return changed, fmt.Errorf("sending a datagram: %w", err)
		}
		if err := client.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return changed, err
		}
		length, err := client.Read(buffer)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return changed, fmt.Errorf("waiting for a datagram: %w", err)
		}
		if string(buffer[:length]) != string(datagram) {
			changed++
		}
	}
	return changed, nil
}

// echo returns each datagram until the socket is closed.
func echo(of net.PacketConn) {
	buffer := make([]byte, 64<<10)
	for {
		length, from, err := of.ReadFrom(buffer)
		if err != nil {
			return
		}
		if _, err := of.WriteTo(buffer[:length], from); err != nil {
			return
		}
	}
}
