// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

// hostile adds a pod of the tenant's that changes its network before anybody hears of it.
func (s *scene) hostile(t *testing.T, change func(inside *network.Pod)) *network.Pod {
	t.Helper()
	s.added++
	name := fmt.Sprint("hostile-", s.added)
	inside, err := s.Network.Nodes[0].AddPod(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.RemovePod(s.background(), tenant, inside); err != nil {
			t.Error(err)
		}
	})
	change(inside)
	if err := s.RegisterPod(t.Context(), lab.Pod{Namespace: tenant, Name: name, Node: 1, Labels: app("client")}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // the agent has had its time
	return inside
}

func ownToLo(t *testing.T) func(*network.Pod) {
	return func(inside *network.Pod) {
		testlab.RunIn(t, inside, "ip", "address", "del", inside.IPv4+"/32", "dev", "eth0")
		testlab.RunIn(t, inside, "ip", "address", "add", inside.IPv4+"/32", "dev", "lo")
		// These went with the interface's last address.
		testlab.RunIn(t, inside, "ip", "route", "replace", "169.254.1.1", "dev", "eth0")
		testlab.RunIn(t, inside, "ip", "route", "replace", "default", "via", "169.254.1.1", "dev", "eth0")
	}
}

func moveToLo(t *testing.T, s *scene) {
	s.expectCeiling(t, s.hostile(t, ownToLo(t)), testlab.Flood{})
}

// take gives a pod another's address.
func (s *scene) take(t *testing.T, by *network.Pod, address string) {
	t.Helper()
	testlab.RunIn(t, by, "ip", "address", "add", address+"/32", "dev", "eth0")
}

func takeToSend(t *testing.T, s *scene) {
	victim := s.Network.Pod("client")
	inside := s.hostile(t, func(inside *network.Pod) { s.take(t, inside, victim.IPv4) })
	before := s.arrived(t)
	testlab.Flood{From: netip.MustParseAddr(victim.IPv4), To: testlab.UDPTo(s.accomplice.IPv4), Mbit: floodMbit}.Run(t, inside, 500*time.Millisecond)
	if got := s.arrived(t) - before; got > 20_000 {
		s.escaped("%d bytes with the victim's address arrived", got)
	}
	s.expectCeiling(t, inside, testlab.Flood{From: netip.MustParseAddr(inside.IPv4)})
}

func flapAddress(t *testing.T, s *scene) {
	var inside *network.Pod
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	t.Cleanup(func() { cancel(); <-stopped })
	inside = s.hostile(t, func(inside *network.Pod) {
		go func() {
			defer close(stopped)
			for ctx.Err() == nil {
				_, _ = inside.Run("ip", "address", "del", inside.IPv4+"/32", "dev", "eth0")
				time.Sleep(20 * time.Millisecond)
				_, _ = inside.Run("ip", "address", "add", inside.IPv4+"/32", "dev", "eth0")
			}
		}()
	})
	s.expectRawCeiling(t, inside)
}

func manyAddresses(t *testing.T, s *scene) {
	// The kernel goes through all addresses of an interface for each new one.
	var commands strings.Builder
	for nic := range 80 {
		fmt.Fprintf(&commands, "link add many%d type bridge\n", nic)
		for i := range 250 {
			fmt.Fprintf(&commands, "address add 172.20.%d.%d/32 dev many%d\n", nic, i, nic)
		}
	}
	s.expectCeiling(t, s.hostile(t, func(inside *network.Pod) {
		command := inside.Command(t.Context(), "ip", "-batch", "-")
		command.Stdin = strings.NewReader(commands.String())
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("adding addresses: %v: %s", err, out)
		}
	}), testlab.Flood{})
}

// expectRawCeiling sends with the pod's address whether the pod has it or not.
func (s *scene) expectRawCeiling(t *testing.T, inside *network.Pod) {
	t.Helper()
	socket := testlab.SocketIn(t, inside, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	defer unix.Close(socket)
	to := testlab.UDPTo(s.accomplice.IPv4)
	packet := testlab.UDP(testlab.AddrPort(inside.IPv4, 9), to, make([]byte, 1300))
	send := func(duration time.Duration) {
		for begin := time.Now(); time.Since(begin) < duration; time.Sleep(time.Millisecond / 2) {
			_ = unix.Sendto(socket, packet, 0, testlab.Sockaddr(netip.AddrPortFrom(to.Addr(), 0)))
		}
	}
	send(burst)
	begin, before := time.Now(), s.arrived(t)
	send(max(time.Until(s.until), 500*time.Millisecond))
	if mbit := float64(s.arrived(t)-before) * 8 / 1e6 / time.Since(begin).Seconds(); mbit > mostPasses {
		s.escaped("the pod sends %.1f Mbit/s, and may send %d", mbit, podMbit)
	}
}

func moveInterface(t *testing.T, s *scene) {
	inner, err := network.New("attacks-inner")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := inner.Delete(); err != nil {
			t.Error(err)
		}
	})
	inside := s.hostile(t, func(inside *network.Pod) {
		testlab.RunIn(t, inside, "ip", "link", "set", "eth0", "netns", inner.Path())
		for _, command := range []string{
			"ip link set lo up", "ip link set eth0 up", "ip address add " + inside.IPv4 + "/32 dev eth0",
			"ip route add 169.254.1.1 dev eth0", "ip route add default via 169.254.1.1",
		} {
			if _, err := inner.Run("sh", "-c", command); err != nil {
				t.Fatal(err)
			}
		}
	})
	moved := *inside
	moved.Namespace = inner
	s.expectCeiling(t, &moved, testlab.Flood{})
}

func avoidRule(t *testing.T, s *scene) {
	s.Apply(t, `
apiVersion: braid.dev/v1alpha1
kind: ClusterMPTCPPolicy
metadata: {name: quarantine}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: tenant}}
  podSelector: {}
  rules:
  - name: closed
    match: {destination: {ports: [{port: 5005}]}}
    actions: [{type: Drop}]
`)
	t.Cleanup(func() {
		if err := s.Client.Delete(s.background(), &v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "quarantine"}}); err != nil {
			t.Error(err)
		}
	})
	time.Sleep(time.Second)
	plain := testlab.Forgery{From: testlab.AddrPort(s.mallory.IPv6, 4000), To: testlab.AddrPort(s.accomplice.IPv6, 5005), Flags: testlab.SYN, Options: testlab.Capable}.Packet()
	header, tcp := plain[:40], plain[40:]
	within := func(next byte, extension ...byte) []byte {
		packet := slices.Concat(header, []byte{unix.IPPROTO_TCP}, extension, tcp)
		packet[6] = next
		binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)-40))
		return packet
	}
	padding := []byte{0, 1, 4, 0, 0, 0, 0}
	for name, packet := range map[string][]byte{
		"no extension header": plain, "destination options": within(60, padding...), "hop by hop": within(0, padding...),
		"a fragment": within(44, 0, 0, 0, 1, 2, 3, 4),
	} {
		s.expectStopped(t, name, packet)
	}
}

func (s *scene) expectStopped(t *testing.T, name string, packet []byte) {
	t.Helper()
	const count = 100
	socket := testlab.SocketIn(t, s.mallory, unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW)
	defer unix.Close(socket)
	before := testlab.Received(t, s.accomplice)
	for range count {
		if err := testlab.SendPatiently(socket, packet, testlab.Sockaddr(netip.AddrPortFrom(netip.MustParseAddr(s.accomplice.IPv6), 0))); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(100 * time.Millisecond)
	if got := testlab.Received(t, s.accomplice) - before; got > count/2 {
		s.escaped("behind %s %d of %d packets arrived", name, got, count)
	}
}

func fillOthersFlows(t *testing.T, s *scene) {
	client, server := s.Network.Pod("client"), s.Network.Pod("server")
	segments := make([]testlab.Forgery, 0, 1000)
	for i := range 20_000 {
		segments = append(segments, testlab.Forgery{
			From: testlab.AddrPort(client.IPv4, uint16(2000+i)), To: testlab.AddrPort(server.IPv4, 9), Flags: testlab.SYN, Options: testlab.Capable,
		})
		if len(segments) == cap(segments) {
			testlab.Forge(t, s.stranger, segments...)
			segments = segments[:0]
			time.Sleep(50 * time.Millisecond)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	connection, err := client.Dial(ctx, "tcp", net.JoinHostPort(server.IPv4, fmt.Sprint(lab.TrafficPort)))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	local := connection.LocalAddr().(*net.TCPAddr).Port
	time.Sleep(200 * time.Millisecond)
	for i, node := range s.Network.Nodes[:2] {
		followed := false
		for key := range s.Flows(t, node) {
			ends := []netip.AddrPort{bpf.AddrPort(key.Local.Word, key.LocalPort), bpf.AddrPort(key.Remote.Word, key.RemotePort)}
			followed = followed || int(ends[i].Port()) == local
		}
		if !followed {
			s.escaped("a new connection of the victim is not followed on node %d", i+1)
		}
	}
}

func (s *scene) restartAgent(t *testing.T) {
	t.Helper()
	s.Kill(t, s.Network.Nodes[0])
	s.Start(t, s.Network.Nodes[0])
}

func moveToLoThenRestart(t *testing.T, s *scene) {
	inside := s.hostile(t, func(*network.Pod) {})
	ownToLo(t)(inside)
	s.restartAgent(t)
	s.expectCeiling(t, inside, testlab.Flood{})
}

func takeToFree(t *testing.T, s *scene) {
	freed := s.hostile(t, func(*network.Pod) {})
	s.hostile(t, func(inside *network.Pod) { s.take(t, inside, freed.IPv4) })
	s.expectCeiling(t, freed, testlab.Flood{})
}

func takeToFreeThenRestart(t *testing.T, s *scene) {
	freed := s.hostile(t, func(*network.Pod) {})
	s.hostile(t, func(inside *network.Pod) { s.take(t, inside, freed.IPv4) })
	s.restartAgent(t)
	s.expectCeiling(t, freed, testlab.Flood{})
}
