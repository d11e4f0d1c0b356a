// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/transport/numbers"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/transport"
	"braid.dev/braid/internal/lab/ends"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// stranger is a client outside of the cluster that has nothing of Braid's: it repeats its
// last acknowledgement with options that it writes itself.
type stranger struct {
	on              *network.World
	seen, sends     int // sockets
	client          net.Conn
	acknowledgement []byte // the last one that was seen
}

func newStranger(t *testing.T, on *network.World, to string) *stranger {
	t.Helper()
	s := &stranger{on: on}
	const all = 0x0300 // ETH_P_ALL in network order: no other socket sees what is sent
	require.NoError(t, on.Do(func() (err error) {
		if s.seen, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		if err := unix.Bind(s.seen, &unix.SockaddrLinklayer{Protocol: all}); err != nil {
			return err
		}
		if s.sends, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW); err != nil {
			return err
		}
		dialer := net.Dialer{KeepAlive: -1}
		dialer.SetMultipathTCP(false)
		s.client, err = dialer.DialContext(t.Context(), "tcp", to)
		return err
	}))
	t.Cleanup(func() { _ = unix.Close(s.seen); _ = unix.Close(s.sends); _ = s.client.Close() })
	return s
}

// look finds the last acknowledgement without data.
func (s *stranger) look(t *testing.T) {
	t.Helper()
	local := netip.MustParseAddrPort(s.client.LocalAddr().String())
	buffer := make([]byte, 1<<17)
	for {
		n, _, err := unix.Recvfrom(s.seen, buffer, 0)
		if err == unix.EAGAIN {
			return
		}
		require.NoError(t, err)
		if n < 40 || buffer[0] != 0x45 {
			continue
		}
		tcp := buffer[20:n]
		if buffer[9] == unix.IPPROTO_TCP && binary.BigEndian.Uint16(tcp) == local.Port() && int(tcp[12]>>4)*4 == len(tcp) && tcp[13] == 0x10 {
			s.acknowledgement = slices.Clone(buffer[:n])
		}
	}
}

// says repeats it with more options.
func (s *stranger) says(t *testing.T, options []byte) {
	t.Helper()
	s.look(t)
	require.NotEmpty(t, s.acknowledgement)
	packet := append(slices.Clone(s.acknowledgement), options...)
	binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
	tcp := packet[20:]
	tcp[12] += byte(len(options) / 4 << 4)
	tcp[16], tcp[17] = 0, 0
	pseudo := slices.Concat(packet[12:20], []byte{0, unix.IPPROTO_TCP}, binary.BigEndian.AppendUint16(nil, uint16(len(tcp))), tcp)
	binary.BigEndian.PutUint16(tcp[16:], ^packettest.Sum(pseudo))
	require.NoError(t, unix.Sendto(s.sends, packet, 0, &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])}))
}

func TestAStrangerThatAsksIsHeededWhereAPolicyAcceptsFromIt(t *testing.T) {
	cubic := numbers.OfName("cubic")
	options := []byte{
		transport.OptionExperiment, 8, transport.Experiment >> 8, transport.Experiment & 0xff,
		transport.RequestCongestionControl, 4, byte(cubic >> 8), byte(cubic),
		transport.OptionUserTimeout, 4, 0, 7,
	}
	for name, test := range map[string]struct {
		from v1alpha1.CIDR
		want shown
	}{
		"of those that are accepted from": {network.WorldIPv4, shown{cubic: true, userTimeout: 7000}},
		"of others":                       {"192.0.2.0/24", shown{}},
	} {
		t.Run(name, func(t *testing.T) {
			n := network.ForTest(t, network.Spec{Nodes: 1, Paths: []string{"net1"}, PodsPerNode: 1, World: true})
			p := &pair{Network: n, server: n.Nodes[0].Pods[0]}
			p.at = ends.ServerAt(p.server.Namespace, port)
			_, err := p.server.Run("sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")
			require.NoError(t, err)
			p.part = Open(Options{PinPath: testutil.BPFFS(t), NamespaceDirectories: []string{network.Directory}, Log: testr.New(t)})
			t.Cleanup(func() { require.NoError(t, p.part.Remove(context.Background())) })
			model := nodetest.Model(nodetest.Pod{UID: "server", Namespace: p.server.Path()})
			model.Endpoints[0].Transport = acceptsAll(test.from)
			model.Endpoints[0].Subflows.Manager = v1alpha1.SubflowManagerAgent
			require.NoError(t, nodetest.Failures(p.part.Apply(t.Context(), model)))
			require.NoError(t, n.Nodes[0].Publish(p.server, port))
			p.serve(t, p.server.IPv4)

			s := newStranger(t, n.World, net.JoinHostPort(n.Nodes[0].Address(0, 4), port))
			server := p.at.Next()
			t.Cleanup(func() { _ = server.Close() })
			require.NoError(t, server.(*net.TCPConn).SetKeepAlive(false))
			for range 4 {
				ends.Talk(t, s.client, server)
				time.Sleep(50 * time.Millisecond)
				s.says(t, options)
			}
			time.Sleep(100 * time.Millisecond)
			got := state(t, server)
			got.window, got.delayedAck, got.probing = 0, 0, keepalive{}
			require.Equal(t, test.want, got)
		})
	}
}
