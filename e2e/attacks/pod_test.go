// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// wait until the attack ends.
func (s *scene) wait() { time.Sleep(time.Until(s.until)) }

// What a flood sends, and what of it may arrive: the ceiling, with what passes at once at
// the beginning.
const (
	floodMbit  = 20
	burst      = 400 * time.Millisecond
	mostPasses = 1.4 * podMbit
)

// expectCeiling floods from a pod of the tenant's for the rest of the attack; what arrives
// at another pod of it must be below the ceiling.
func (s *scene) expectCeiling(t *testing.T, from *network.Pod, flood testlab.Flood) {
	t.Helper()
	flood.To, flood.Mbit = testlab.UDPTo(s.accomplice.IPv4), floodMbit
	flood.Run(t, from, burst)
	begin, before := time.Now(), s.arrived(t)
	flood.Run(t, from, max(time.Until(s.until), 500*time.Millisecond))
	mbit := float64(s.arrived(t)-before) * 8 / 1e6 / time.Since(begin).Seconds()
	if mbit > mostPasses {
		s.escaped("the pod sends %.1f Mbit/s, and may send %d", mbit, podMbit)
	} else if mbit < podMbit/4. {
		t.Errorf("only %.2f Mbit/s arrive, which shows nothing", mbit)
	}
}

// arrived are the bytes that the accomplice has received.
func (s *scene) arrived(t *testing.T) uint64 {
	t.Helper()
	counters, err := s.accomplice.Counters("eth0")
	if err != nil {
		t.Fatal(err)
	}
	return counters.RxBytes
}

func floodManyPorts(t *testing.T, s *scene) {
	s.expectCeiling(t, s.mallory, testlab.Flood{Length: 200})
}

// sendAtOnce has a pod send from the moment in which it has an interface, for as long as
// it takes until everybody has acted, and in the victim's name.
func sendAtOnce(t *testing.T, s *scene) {
	s.added++
	name := fmt.Sprint("at-once-", s.added)
	inside, err := s.Network.Nodes[0].AddPod(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.RemovePod(s.background(), tenant, inside); err != nil {
			t.Error(err)
		}
	})
	registered := make(chan error, 1)
	go func() {
		time.Sleep(settling)
		registered <- s.RegisterPod(s.background(), lab.Pod{Namespace: tenant, Name: name, Node: 1, Labels: app("client")})
	}()
	begin, before := time.Now(), s.arrived(t)
	testlab.Flood{To: testlab.UDPTo(s.accomplice.IPv4), Mbit: floodMbit}.Run(t, inside, time.Second)
	if mbit := float64(s.arrived(t)-before) * 8 / 1e6 / time.Since(begin).Seconds(); mbit > mostPasses {
		s.escaped("in its first second the pod sends %.1f Mbit/s, and may send %d", mbit, podMbit)
	} else if mbit < podMbit/4. {
		t.Errorf("only %.2f Mbit/s arrive, which shows nothing", mbit)
	}
	if err := <-registered; err != nil {
		t.Fatal(err)
	}
	s.waitForPod(t, name)
	s.expectCeiling(t, inside, testlab.Flood{})
}

func leaveByLabels(t *testing.T, s *scene) {
	object := pod(tenant, "mallory")
	patch := func(labels string) {
		if err := s.asTenant.Patch(t.Context(), object, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":`+labels+`}}`))); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"app":"shop","kubernetes.io/metadata.name":"shop"}`)
	t.Cleanup(func() { s.restore(t, object, app("client")) })
	time.Sleep(settling)
	s.expectCeiling(t, s.mallory, testlab.Flood{})
}

// restore gives a pod its labels, and takes its annotations.
func (s *scene) restore(t *testing.T, object client.Object, labels map[string]string) {
	t.Helper()
	if err := s.Client.Get(s.background(), client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal(err)
	}
	object.SetLabels(labels)
	object.SetAnnotations(nil)
	if err := s.Client.Update(s.background(), object); err != nil {
		t.Fatal(err)
	}
}

// addPod adds a pod of the tenant's on mallory's node, and waits until it is programmed.
func (s *scene) addPod(t *testing.T, name string) *network.Pod {
	t.Helper()
	s.added++
	name = fmt.Sprint(name, "-", s.added)
	inside, err := s.AddPod(t.Context(), lab.Pod{Namespace: tenant, Name: name, Node: 1, Labels: app("client")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.RemovePod(s.background(), tenant, inside); err != nil {
			t.Error(err)
		}
	})
	return inside
}

func (s *scene) waitForPod(t *testing.T, name string) {
	t.Helper()
	s.WaitFor(t, name+" is programmed", 5*time.Second, func(ctx context.Context) error { return s.PodProgrammed(ctx, "node1", tenant, name) })
}

func leaveByDeletion(t *testing.T, s *scene) {
	leaver := s.addPod(t, "leaver")
	s.waitForPod(t, leaver.PodName)
	if err := s.asTenant.Delete(t.Context(), pod(tenant, leaver.PodName), client.GracePeriodSeconds(3600)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * settling)
	s.expectCeiling(t, leaver, testlab.Flood{})
}

func leaveByReplacement(t *testing.T, s *scene) {
	inside := s.addPod(t, "twin")
	s.waitForPod(t, inside.PodName)
	object := pod(tenant, inside.PodName)
	if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal(err)
	}
	if err := s.asTenant.Delete(t.Context(), object, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	// The same network namespace and address for a pod that is another one.
	status := object.Status
	object.ResourceVersion, object.UID = "", ""
	s.Create(t, object)
	object.Status = status
	if err := s.Client.Status().Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	s.waitForPod(t, inside.PodName)
	s.expectCeiling(t, inside, testlab.Flood{})
}

// spoofNeighbours tells the node that mallory has the addresses of others.
func spoofNeighbours(t *testing.T, s *scene) {
	eth0, err := s.mallory.Index("eth0")
	if err != nil {
		t.Fatal(err)
	}
	victim := s.Network.Pod("client")
	claimed := []string{victim.IPv4, s.Network.Pod("server").IPv4}
	for path := range s.Paths {
		claimed = append(claimed, s.Network.Nodes[1].Address(path, 4), s.Network.Nodes[0].Address(path, 4))
	}
	socket := testlab.SocketIn(t, s.mallory, unix.AF_PACKET, unix.SOCK_RAW, 0)
	defer unix.Close(socket)
	to := &unix.SockaddrLinklayer{Ifindex: eth0, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	before := testlab.Received(t, s.mallory)
	for s.going() {
		for _, address := range claimed {
			if err := testlab.SendPatiently(socket, arpReply(address), to); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	if got := testlab.Received(t, s.mallory) - before; got > 100 {
		s.escaped("the pod received %d packets", got)
	}
}

// nobody has this hardware address.
var nobody = []byte{2, 0, 0, 0, 0, 9}

// arpReply says to everybody that nobody has the address.
func arpReply(address string) []byte {
	everybody := slices.Repeat([]byte{0xff}, 6)
	ip := netip.MustParseAddr(address).AsSlice()
	return slices.Concat(everybody, nobody, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 2}, nobody, ip, everybody, ip)
}

// forgeICMP tells the victim of segments of its own that are too large, or have a better way, and
// guesses which are in flight: all sequence numbers of one subflow after the other.
func forgeICMP(t *testing.T, s *scene) {
	const (
		step  = 1 << 16 // less than a subflow has in flight
		burst = 100
	)
	client, server := s.Network.Pod("client"), s.Network.Pod("server")
	socket := testlab.SocketIn(t, s.stranger, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	defer unix.Close(socket)
	subflows, guesses := s.victimSubflows(t), uint32(0)
	tell := func(message ...byte) {
		of := subflows[guesses/(1<<32/step)%uint32(len(subflows))]
		about := testlab.Forgery{From: of.Local, To: of.Remote, Sequence: guesses * step, Flags: testlab.ACK}.Packet()
		packet := testlab.ICMP(netip.MustParseAddr(server.IPv4), netip.MustParseAddr(client.IPv4), append(message, about[:28]...))
		if err := testlab.SendPatiently(socket, packet, testlab.Sockaddr(testlab.AddrPort(client.IPv4, 0))); err != nil {
			t.Fatal(err)
		}
	}
	for s.going() {
		for range burst {
			tell(3, 4, 0, 0, 0, 0, 2, 68)
			guesses++
		}
		tell(5, 1, 0, 0, 10, 244, 3, 2)
		time.Sleep(time.Millisecond)
	}
	route, err := client.Run("ip", "route", "get", server.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d sequence numbers; the victim's route is %s", guesses, route)
	if mtu := mtuOf(route); mtu > 0 && mtu < leastMTU || strings.Contains(route, s.stranger.IPv4) {
		s.escaped("the victim's route is %s", route)
	}
}

// leastMTU is that of IPv6, below which a guess that is right is not to bring a connection.
const leastMTU = 1280

var mtuPattern = regexp.MustCompile(`\bmtu (?:lock )?(\d+)`)

// mtuOf is what an error has made of the route's MTU; 0 where none did.
func mtuOf(route string) int {
	found := mtuPattern.FindStringSubmatch(route)
	if found == nil {
		return 0
	}
	mtu, err := strconv.Atoi(found[1])
	if err != nil {
		return 1 // no MTU that anybody could use
	}
	return mtu
}

func (s *scene) victimSubflows(t *testing.T) []traffic.Subflow {
	t.Helper()
	subflows, err := traffic.Subflows(s.victim.Connection)
	if err != nil {
		t.Fatal(err)
	}
	return subflows
}

// scanNode tries each port that somebody listens on at the node. That of the lab's own
// forwarder to the API server answers, and that for metrics, which floodMetrics tries.
func scanNode(t *testing.T, s *scene) {
	out, err := s.mallory.Node.Run("ss", "-Hltn")
	if err != nil {
		t.Fatal(err)
	}
	server := s.Server.Config().Host
	for line := range strings.Lines(out) {
		_, port, _ := net.SplitHostPort(strings.Fields(line)[3])
		if strings.HasSuffix(server, ":"+port) || port == fmt.Sprint(lab.MetricsPort) {
			continue
		}
		for path := range s.Paths {
			address := net.JoinHostPort(s.mallory.Node.Address(path, 4), port)
			if connection, err := s.mallory.Dial(t.Context(), "tcp", address); err == nil {
				s.escaped("%s of the node answers", address)
				_ = connection.Close()
			}
		}
	}
	s.wait()
}

const probePort = 8478

// floodProbes: what is no probe of a peer's gets no more back than it sent.
func floodProbes(t *testing.T, s *scene) {
	socket := testlab.SocketIn(t, s.stranger, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
	defer unix.Close(socket)
	sent := 0
	for i := 0; s.going(); i++ {
		probe := slices.Concat([]byte("BRDP"), []byte{1, byte(1 + i%2)}, binary.BigEndian.AppendUint64(nil, rand.Uint64()), make([]byte, 10))
		if i%3 == 0 {
			probe = probe[:rand.IntN(len(probe))]
		}
		for _, node := range s.Network.Nodes[:2] {
			_ = unix.Sendto(socket, probe, 0, testlab.Sockaddr(testlab.AddrPort(node.Address(i%len(s.Paths), 4), probePort)))
			sent += len(probe)
		}
		if i%4 == 0 { // the stranger's packets take their part of the NICs, as anybody's
			time.Sleep(time.Millisecond)
		}
	}
	if got := receivedBytes(socket); got > sent {
		s.escaped("for %d bytes %d came back", sent, got)
	}
}

// receivedBytes are those that wait at a socket.
func receivedBytes(socket int) (all int) {
	for buffer := make([]byte, 2048); ; {
		n, _, err := unix.Recvfrom(socket, buffer, unix.MSG_DONTWAIT)
		if err != nil {
			return all
		}
		all += n
	}
}

func manyInterfaces(t *testing.T, s *scene) {
	inside := s.addPod(t, "crowded")
	handle, err := inside.Handle()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 400 {
		if err := handle.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("br", i)}}); err != nil {
			t.Fatal(err)
		}
		if !s.going() {
			break
		}
	}
	s.waitForPod(t, inside.PodName)
}

// announceOthers has a genuine connection of the tenant's, whose server announces what is
// not its own.
func announceOthers(t *testing.T, s *scene) {
	testlab.RunIn(t, s.accomplice, "ip", "mptcp", "limits", "set", "subflows", "8", "add_addr_accepted", "8")
	// The kernel has room for eight, and the agent may have put its own there.
	testlab.RunIn(t, s.accomplice, "ip", "mptcp", "endpoint", "flush")
	t.Cleanup(func() { testlab.RunIn(t, s.accomplice, "ip", "mptcp", "endpoint", "flush") })
	id, announced := 100, 0
	for _, node := range s.Network.Nodes {
		for path := range s.Paths[:2] {
			address := node.Address(path, 4)
			testlab.RunIn(t, s.accomplice, "ip", "address", "add", address, "dev", "lo")
			t.Cleanup(func() { testlab.RunIn(t, s.accomplice, "ip", "address", "del", address, "dev", "lo") })
			out, err := s.accomplice.Command(t.Context(), "ip", "mptcp", "endpoint", "add", address, "port", strconv.Itoa(7000+id), "signal", "id", strconv.Itoa(id)).CombinedOutput()
			if err == nil {
				announced++
			} else {
				t.Logf("%s is not announced: %v: %s", address, err, out)
			}
			id++
		}
	}
	if announced == 0 {
		t.Fatal("the pod announces nothing")
	}
	connection, err := s.mallory.Dial(t.Context(), "tcp", net.JoinHostPort(s.accomplice.IPv4, fmt.Sprint(lab.TrafficPort)))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	for s.going() {
		_, err := connection.Write([]byte{0})
		if err != nil {
			break // the server does not know the protocol
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// reflectByXDP has what arrives at a pod sent back to its node, as it is.
func reflectByXDP(t *testing.T, s *scene) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: swapAndReflect()})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	var attached link.Link
	err = s.mallory.Do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err == nil {
			attached, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: eth0.Index, Flags: link.XDPGenericMode})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := attached.Close(); err != nil {
			t.Error(err)
		}
	})
	testlab.Flood{To: testlab.UDPTo(s.mallory.IPv4), Mbit: podMbit}.Run(t, s.accomplice, time.Until(s.until))
}

// swapAndReflect changes the frame's addresses with each other.
func swapAndReflect() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), asm.LoadMem(asm.R3, asm.R1, 4, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2), asm.Add.Imm(asm.R4, 14),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R4, asm.R2, 0, asm.Word), asm.LoadMem(asm.R5, asm.R2, 4, asm.Half),
		asm.LoadMem(asm.R6, asm.R2, 6, asm.Word), asm.LoadMem(asm.R7, asm.R2, 10, asm.Half),
		asm.StoreMem(asm.R2, 0, asm.R6, asm.Word), asm.StoreMem(asm.R2, 4, asm.R7, asm.Half),
		asm.StoreMem(asm.R2, 6, asm.R4, asm.Word), asm.StoreMem(asm.R2, 10, asm.R5, asm.Half),
		asm.Mov.Imm(asm.R0, 3), asm.Return(), // XDP_TX
		asm.Mov.Imm(asm.R0, 2).WithSymbol("pass"), asm.Return(),
	}
}

func floodMarks(t *testing.T, s *scene) {
	s.expectCeiling(t, s.mallory, testlab.Flood{Prepare: func(socket int) error {
		err := unix.SetsockoptInt(socket, unix.IPPROTO_IP, unix.IP_TOS, 0xff)
		return errors.Join(err, unix.SetsockoptInt(socket, unix.IPPROTO_IP, unix.IP_TTL, 2+rand.IntN(250)))
	}})
}

// churnConnections are real ones, which end by a reset.
func churnConnections(t *testing.T, s *scene) {
	server := net.JoinHostPort(s.Network.Pod("server").IPv4, fmt.Sprint(lab.TrafficPort))
	for s.going() {
		connection, err := s.stranger.Dial(t.Context(), "tcp", server)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(connection.(*net.TCPConn).SetLinger(0), connection.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func floodJoins(t *testing.T, s *scene) {
	for s.going() {
		var segments []testlab.Forgery
		for range 50 {
			segments = append(segments, testlab.Forgery{
				From: testlab.AddrPort(s.stranger.IPv4, uint16(rand.Uint32())|1024), To: testlab.AddrPort(s.Network.Pod("server").IPv4, 7001),
				Sequence: rand.Uint32(), Flags: testlab.SYN, Options: testlab.Joining(rand.Uint32()),
			})
		}
		testlab.Forge(t, s.stranger, segments...)
		time.Sleep(5 * time.Millisecond)
	}
}
