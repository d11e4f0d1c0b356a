// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/network"
)

// patience is how long a test waits for what should take milliseconds.
const patience = 20 * time.Second

// machine is a node of the lab whose Prober and Responder run.
type machine struct {
	*network.Node
	prober    *Prober
	responder *Responder
	paths     []string
}

var twoPaths = []string{"blue", "green"}

// cluster builds nodes with paths, and a Prober and a Responder on each.
func cluster(t *testing.T, spec network.Spec) (*network.Network, []*machine) {
	t.Helper()
	lab := network.ForTest(t, spec)
	var nodes []*machine
	for _, of := range lab.Nodes {
		nodes = append(nodes, start(t, of, spec.Paths))
	}
	return lab, nodes
}

func start(t *testing.T, of *network.Node, paths []string) *machine {
	t.Helper()
	return startWith(t, of, paths, Options{Log: testr.New(t)})
}

func startWith(t testing.TB, of *network.Node, paths []string, options Options) *machine {
	t.Helper()
	handle, err := netns.GetFromPath(of.Path())
	require.NoError(t, err)
	options.Namespace = handle
	n := &machine{Node: of, paths: paths}
	n.prober, err = New(options)
	require.NoError(t, err)
	n.responder, err = NewResponder(options)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{n.prober.Run, n.responder.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
		require.NoError(t, n.prober.Close())
		require.NoError(t, n.responder.Close())
		require.NoError(t, handle.Close())
	})
	return n
}

func (n *machine) address(t testing.TB, path, version int) netip.Addr {
	t.Helper()
	address, err := netip.ParseAddr(n.Address(path, version))
	require.NoError(t, err)
	return address
}

func (n *machine) nic(t testing.TB, path int) int {
	t.Helper()
	index, err := n.Index(n.paths[path])
	require.NoError(t, err)
	return index
}

// listen makes a node answer on all its paths.
func (n *machine) listen(t testing.TB, version int) {
	t.Helper()
	var listeners []Listener
	for i := range n.paths {
		listeners = append(listeners, Listener{Interface: n.nic(t, i), Address: n.address(t, i, version)})
	}
	n.responder.SetListeners(listeners)
}

// probe makes a node probe others on all its paths.
func (n *machine) probe(t testing.TB, version int, active bool, others ...*machine) {
	t.Helper()
	n.prober.SetTargets(n.targets(t, version, active, others...))
}

func (n *machine) targets(t testing.TB, version int, active bool, others ...*machine) (targets []Target) {
	t.Helper()
	for _, other := range others {
		for i, path := range n.paths {
			targets = append(targets, Target{
				Peer: other.NodeName(), Path: path, Interface: n.nic(t, i), Active: active,
				Local: n.address(t, i, version), Remote: other.address(t, i, version),
			})
		}
	}
	return targets
}

// await waits until a sample is as wanted, and returns how long that took.
func (n *machine) await(t testing.TB, peer, path string, what string, wanted func(Sample) bool) time.Duration {
	t.Helper()
	begun, tick := time.Now(), time.NewTicker(100*time.Millisecond)
	defer tick.Stop()
	for {
		sample := n.prober.View().Sample(peer, path)
		if wanted(sample) {
			return time.Since(begun)
		}
		if time.Since(begun) > patience {
			t.Fatalf("path %s to %s is not %s: %+v", path, peer, what, sample)
		}
		select {
		case <-n.prober.Changed():
		case <-tick.C:
		}
	}
}

func (n *machine) awaitState(t testing.TB, peer, path string, state State) time.Duration {
	t.Helper()
	return n.await(t, peer, path, state.String(), func(s Sample) bool { return s.State == state })
}

// pairOf is two nodes that probe each other, and have seen all paths alive.
func pairOf(t *testing.T, spec network.Spec, version int) (*network.Network, *machine, *machine) {
	t.Helper()
	spec.Nodes, spec.Paths = 2, twoPaths
	lab, nodes := cluster(t, spec)
	a, b := nodes[0], nodes[1]
	for _, n := range nodes {
		n.listen(t, version)
	}
	a.probe(t, version, true, b)
	b.probe(t, version, true, a)
	for _, path := range twoPaths {
		a.awaitState(t, "node2", path, Alive)
		b.awaitState(t, "node1", path, Alive)
	}
	return lab, a, b
}

func TestABlockedPathIsFoundDeadAndAliveAgain(t *testing.T) {
	for name, c := range map[string]struct {
		version    int
		directions []network.Direction
		delays     map[string]time.Duration
	}{
		"both ways":             {4, nil, nil},
		"both ways, IPv6":       {6, nil, nil},
		"one way":               {4, []network.Direction{network.FromNode}, nil},
		"the other way":         {4, []network.Direction{network.ToNode}, nil},
		"one way, IPv6":         {6, []network.Direction{network.FromNode}, nil},
		"paths of 20 and 30 ms": {4, nil, map[string]time.Duration{"blue": 10 * time.Millisecond, "green": 15 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			lab, a, b := pairOf(t, network.Spec{PathDelays: c.delays}, c.version)
			for range 3 {
				time.Sleep(300 * time.Millisecond) // probes at their usual pace
				require.NoError(t, lab.Block(a.Node, "blue", true, c.directions...))
				begun := time.Now()
				a.awaitState(t, "node2", "blue", Dead)
				dead := time.Since(begun)
				b.awaitState(t, "node1", "blue", Dead)
				both := time.Since(begun)
				if both > 300*time.Millisecond {
					t.Errorf("dead after %s, on both nodes after %s", dead, both)
				}
				if green := a.prober.View().Sample("node2", "green"); green.State != Alive {
					t.Errorf("the other path is %+v", green)
				}
				require.NoError(t, lab.Block(a.Node, "blue", false, c.directions...))
				alive := a.awaitState(t, "node2", "blue", Alive)
				t.Logf("dead after %s, on both nodes after %s; alive again after %s", dead.Round(ms), both.Round(ms), alive.Round(ms))
				b.awaitState(t, "node1", "blue", Alive)
			}
		})
	}
}

func TestAPathWithADelayIsDistantFromBothEnds(t *testing.T) {
	for name, version := range map[string]int{"IPv4": 4, "IPv6": 6} {
		t.Run(name, func(t *testing.T) {
			delays := map[string]time.Duration{"green": 2 * time.Millisecond}
			_, a, b := pairOf(t, network.Spec{PathDelays: delays}, version)
			distant := func(s Sample) bool { return s.Distant }
			a.await(t, "node2", "green", "distant", distant)
			b.await(t, "node1", "green", "distant", distant)
			for of, n := range map[string]*machine{"node2": a, "node1": b} {
				require.False(t, n.prober.View().Sample(of, "blue").Distant)
			}
		})
	}
}

// The kernel's own questions go on while nobody answers probes.
func TestAPathThatFiltersProbesAloneIsNotLost(t *testing.T) {
	for name, version := range map[string]int{"IPv4": 4, "IPv6": 6} {
		t.Run(name, func(t *testing.T) {
			lab, a, b := pairOf(t, network.Spec{}, version)
			for _, n := range []*machine{a, b} {
				n.doubtNeighboursSoon(t, strconv.Itoa(version), "blue")
			}
			b.responder.SetListeners([]Listener{{Interface: b.nic(t, 1), Address: b.address(t, 1, version)}})
			a.awaitState(t, "node2", "blue", Dead)
			for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				require.Empty(t, a.prober.View().Lost(), "while probes alone are not answered")
			}
			b.listen(t, version)
			a.awaitState(t, "node2", "blue", Alive)

			lost := func(s Sample) bool { return s.Lost }
			require.NoError(t, lab.Block(a.Node, "blue", true))
			a.await(t, "node2", "blue", "lost", lost)
			b.await(t, "node1", "blue", "lost", lost)
			require.NoError(t, lab.Block(a.Node, "blue", false))
			found := func(s Sample) bool { return s.State == Alive && !s.Lost }
			a.await(t, "node2", "blue", "alive and not lost", found)
			b.await(t, "node1", "blue", "alive and not lost", found)
		})
	}
}

// doubtNeighboursSoon makes the kernel ask for its neighbours on a NIC every second or two,
// and now, so that its timers are the new ones.
func (n *machine) doubtNeighboursSoon(t *testing.T, family, nic string) {
	t.Helper()
	for name, value := range map[string]string{"base_reachable_time_ms": "500", "delay_first_probe_time": "1", "retrans_time_ms": "300"} {
		require.NoError(t, n.Sysctl("net.ipv"+family+".neigh."+nic+"."+name, value))
	}
	_, err := n.Run("ip", "-"+family, "neighbour", "flush", "dev", nic)
	require.NoError(t, err)
}

func TestTheRoundTripFollowsAChangedDelay(t *testing.T) {
	delay := 20 * time.Millisecond
	lab, a, _ := pairOf(t, network.Spec{PathDelays: map[string]time.Duration{"blue": delay}}, 4)
	for _, delay = range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 5 * time.Millisecond} {
		require.NoError(t, lab.SetDelay("blue", delay))
		took := a.await(t, "node2", "blue", "as far as its delay", func(s Sample) bool {
			return s.State == Alive && s.RTT > 2*delay-2*ms && s.RTT < 2*delay+2*delay/5+5*ms
		})
		t.Logf("%s of delay: measured %s, after %s", delay, a.prober.View().Sample("node2", "blue").RTT, took.Round(ms))
	}
	if green := a.prober.View().Sample("node2", "green"); green.RTT > 5*ms {
		t.Errorf("the path without a delay measures %s", green.RTT)
	}
}

// deaths counts the paths that die from now on, until the returned function is called.
func (n *machine) deaths(t *testing.T) (count func() int) {
	t.Helper()
	died := 0
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				died += len(n.prober.View().Dead())
			}
		}
	}()
	return func() int {
		close(done)
		<-ended
		return died
	}
}

func TestAnAgentThatIsHeldUpJudgesNothing(t *testing.T) {
	_, a, _ := pairOf(t, network.Spec{}, 4)
	count := a.deaths(t)
	for range 5 {
		time.Sleep(123 * time.Millisecond)
		a.prober.mu.Lock() // its thread waits
		time.Sleep(400 * time.Millisecond)
		a.prober.mu.Unlock()
	}
	time.Sleep(200 * time.Millisecond)
	if died := count(); died > 0 {
		t.Error("a path died")
	}
}

func TestAPeerThatIsHeldUpIsNotDead(t *testing.T) {
	_, a, b := pairOf(t, network.Spec{}, 4)
	count := a.deaths(t)
	for range 5 {
		time.Sleep(123 * time.Millisecond)
		b.responder.mu.Lock()
		time.Sleep(400 * time.Millisecond)
		b.responder.mu.Unlock()
	}
	time.Sleep(200 * time.Millisecond)
	if died := count(); died > 0 {
		t.Error("a path died")
	}
}

func TestABusyMachineKillsNoPath(t *testing.T) {
	_, a, b := pairOf(t, network.Spec{}, 4)
	counts := []func() int{a.deaths(t), b.deaths(t)}
	end := time.Now().Add(3 * time.Second)
	var busy sync.WaitGroup
	for range 4 * runtime.NumCPU() {
		busy.Go(func() {
			for time.Now().Before(end) {
			}
		})
	}
	busy.Wait()
	for _, count := range counts {
		if died := count(); died > 0 {
			t.Error("a path died")
		}
	}
}

func TestDeparturesAreStampedByTheKernel(t *testing.T) {
	_, a, _ := pairOf(t, network.Spec{}, 4)
	a.prober.mu.Lock()
	defer a.prober.mu.Unlock()
	for _, socket := range a.prober.sockets {
		if !socket.stamps {
			t.Errorf("no timestamps of departures on %s", socket.address)
		}
	}
}

// fill sends by a node's first path four times what its NIC of 10 Mbit/s takes, until it is stopped.
func (n *machine) fill(t *testing.T, to *machine) (stop func()) {
	t.Helper()
	sender := datagrams(t, n.Namespace, netip.AddrPort{})
	address := netip.AddrPortFrom(to.address(t, 0, 4), 9)
	var failed error
	ended, running := make(chan struct{}), sync.WaitGroup{}
	running.Go(func() {
		packet := make([]byte, 1200)
		for failed == nil {
			select {
			case <-ended:
				return
			case <-time.After(900 * time.Microsecond):
			}
			for range 4 {
				_, err := sender.WriteToUDPAddrPort(packet, address)
				failed = errors.Join(failed, err)
			}
		}
	})
	return sync.OnceFunc(func() {
		close(ended)
		running.Wait()
		require.NoError(t, failed)
	})
}

func TestTheQueuesOfTheNodesOwnNICsDoNotCount(t *testing.T) {
	_, a, b := pairOf(t, network.Spec{LinkMbit: 10}, 4)
	for name, ends := range map[string][2]*machine{"the prober's": {a, b}, "the responder's": {b, a}} {
		t.Run(name, func(t *testing.T) {
			count := a.deaths(t)
			stop := ends[0].fill(t, ends[1])
			defer stop()
			time.Sleep(time.Second)
			var sum time.Duration
			samples := 0
			for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(900 * time.Microsecond) {
				sum += a.prober.View().Sample("node2", "blue").RTT
				samples++
			}
			stop()
			if died := count(); died > 0 {
				t.Error("a path died under load")
			}
			mean := sum / time.Duration(samples)
			t.Logf("the mean of the smoothed round trip over a full NIC is %s", mean)
			if mean > 10*time.Millisecond {
				t.Errorf("%s: the queue of 20 ms counts", mean)
			}
		})
	}
}

// What a connection asks waits in them.
func TestAPathIsDistantWhileTheNICOfEitherEndIsFull(t *testing.T) {
	_, a, b := pairOf(t, network.Spec{LinkMbit: 10}, 4)
	for name, ends := range map[string][2]*machine{"the prober's": {a, b}, "the responder's": {b, a}} {
		t.Run(name, func(t *testing.T) {
			stop := ends[0].fill(t, ends[1])
			defer stop()
			time.Sleep(time.Second)
			a.forgetDistances() // it takes long to forget how short the path was
			a.await(t, "node2", "blue", "distant", func(s Sample) bool { return s.Distant })
			require.False(t, a.prober.View().Sample("node2", "green").Distant)
			stop()
			a.await(t, "node2", "blue", "near", func(s Sample) bool { return !s.Distant })
		})
	}
}

func (n *machine) forgetDistances() {
	n.prober.mu.Lock()
	defer n.prober.mu.Unlock()
	for _, target := range n.prober.tracker.targets {
		target.distance = distance{}
	}
}

// datagrams opens a UDP socket as anybody could; an invalid address means any.
func datagrams(t *testing.T, in *network.Namespace, local netip.AddrPort) *net.UDPConn {
	t.Helper()
	var connection *net.UDPConn
	require.NoError(t, in.Do(func() (err error) {
		var address *net.UDPAddr
		if local.IsValid() {
			address = net.UDPAddrFromAddrPort(local)
		}
		connection, err = net.ListenUDP("udp", address)
		return err
	}))
	t.Cleanup(func() { connection.Close() })
	return connection
}

// hops sets the hop limit of what a socket sends over IPv4.
func hops(t *testing.T, of *net.UDPConn, limit int) {
	t.Helper()
	raw, err := of.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, limit)
	}))
	require.NoError(t, err)
}

// replies sends something and returns what comes back soon.
func replies(t *testing.T, by *net.UDPConn, to netip.AddrPort, what []byte) (got [][]byte) {
	t.Helper()
	_, err := by.WriteToUDPAddrPort(what, to)
	require.NoError(t, err)
	require.NoError(t, by.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	for {
		reply := make([]byte, 2048)
		n, err := by.Read(reply)
		if err != nil {
			return got
		}
		got = append(got, reply[:n])
	}
}

func TestAResponderAnswers(t *testing.T) {
	lab, nodes := cluster(t, network.Spec{Nodes: 2, Paths: twoPaths, PodsPerNode: 1})
	a, b := nodes[0], nodes[1]
	b.listen(t, 4)
	a.probe(t, 4, true, b)
	a.awaitState(t, "node2", "blue", Alive) // it listens
	a.awaitState(t, "node2", "green", Alive)
	request := packet{kind: kindRequest, nonce: 0x1122334455667788}.bytes()
	with := func(at int, value byte) []byte {
		changed := request
		changed[at] = value
		return changed[:]
	}
	blue, green := netip.AddrPortFrom(b.address(t, 0, 4), DefaultPort), netip.AddrPortFrom(b.address(t, 1, 4), DefaultPort)
	neighbour := datagrams(t, a.Namespace, netip.AddrPortFrom(a.address(t, 0, 4), 0))
	hops(t, neighbour, 255)
	elsewhere := datagrams(t, a.Namespace, netip.AddrPortFrom(a.address(t, 0, 4), 0))
	pod := datagrams(t, lab.Pod("pod-1-1").Namespace, netip.AddrPort{})
	hops(t, pod, 255)
	require.NoError(t, a.AddRoute(network.Route{Destination: b.Address(1, 4) + "/32", Gateway: b.Address(0, 4), Interface: "blue"}))
	own := datagrams(t, lab.Pod("pod-2-1").Namespace, netip.AddrPort{})
	hops(t, own, 255)

	for name, c := range map[string]struct {
		by       *net.UDPConn
		to       netip.AddrPort
		what     []byte
		answered bool
	}{
		"a request":                          {neighbour, blue, request[:], true},
		"a large one, with a short answer":   {neighbour, blue, append(with(5, kindLarge), make([]byte, 1000)...), true},
		"no large one that is short":         {neighbour, blue, with(5, kindLarge), false},
		"no answer":                          {neighbour, blue, with(5, kindReply), false},
		"no other version":                   {neighbour, blue, with(4, 2), false},
		"no other magic":                     {neighbour, blue, with(0, 'X'), false},
		"nothing shorter":                    {neighbour, blue, request[:23], false},
		"nothing longer":                     {neighbour, blue, append(request[:], make([]byte, 1000)...), false},
		"nothing empty":                      {neighbour, blue, nil, false},
		"nothing that a router passed on":    {elsewhere, blue, request[:], false},
		"no pod of another node":             {pod, blue, request[:], false},
		"no pod of its own":                  {own, blue, request[:], false},
		"not for the address of another NIC": {neighbour, green, request[:], false},
	} {
		t.Run(name, func(t *testing.T) {
			got := replies(t, c.by, c.to, c.what)
			if !c.answered {
				if len(got) > 0 {
					t.Errorf("answered with %x", got)
				}
				return
			}
			if len(got) != 1 || len(got[0]) > len(c.what) {
				t.Fatalf("%d bytes were answered with %x", len(c.what), got)
			}
			if reply, ok := parse(got[0]); !ok || reply.kind != kindReply || reply.nonce != 0x1122334455667788 {
				t.Errorf("the answer reads %+v %v", reply, ok)
			}
		})
	}
}

// probeLarge has packets of a size probed, too.
func (n *machine) probeLarge(t testing.TB, version, size int, active bool, other *machine) {
	t.Helper()
	targets := n.targets(t, version, active, other)
	for i := range targets {
		targets[i].Size = size
	}
	n.prober.SetTargets(targets)
}

func TestAPathThatLosesLargePacketsAloneIsDead(t *testing.T) {
	for name, version := range map[string]int{"IPv4": 4, "IPv6": 6} {
		t.Run(name, func(t *testing.T) {
			lab, a, b := pairOf(t, network.Spec{}, version)
			a.probeLarge(t, version, 1500, true, b)
			expect := func(path string, state State, why string, losesLarge bool) {
				t.Helper()
				a.await(t, "node2", path, why, func(s Sample) bool { return s.State == state && s.LosesLarge == losesLarge && s.Answers })
			}
			a.awaitLarge(t, "node2", twoPaths...)
			require.NoError(t, lab.LoseLarge(b.Node, "blue", 1499))
			expect("blue", Dead, "dead for large packets", true)
			b.awaitState(t, "node1", "blue", Alive) // it does not ask
			a.probeLarge(t, version, 1499, true, b)
			expect("blue", Alive, "alive for smaller ones", false)
			a.probeLarge(t, version, 1500, true, b)
			expect("blue", Dead, "dead again", true)
			a.probeLarge(t, version, 1500, false, b)
			time.Sleep(2 * largeInterval)
			expect("blue", Dead, "dead while nothing is sent", true)
			expect("green", Alive, "alive", false)
			require.NoError(t, lab.Block(b.Node, "blue", false))
			expect("blue", Alive, "alive again", false)
		})
	}
}

// Large probes are rare: what a path loses of them while it loses everything says nothing of
// their size, and must not keep it dead.
func TestAPathThatLostEverythingIsBackAsSoonAsSmallProbesAreAnswered(t *testing.T) {
	lab, a, b := pairOf(t, network.Spec{}, 4)
	a.probeLarge(t, 4, 1500, true, b)
	a.awaitLarge(t, "node2", twoPaths...)
	require.NoError(t, lab.Block(b.Node, "blue", true))
	a.awaitState(t, "node2", "blue", Dead)
	time.Sleep((largeLostToDie + 2) * largeInterval) // large ones are judged meanwhile
	require.NoError(t, lab.Block(b.Node, "blue", false))
	require.Less(t, a.awaitState(t, "node2", "blue", Alive), 2*largeInterval)
	require.NoError(t, lab.LoseLarge(b.Node, "blue", 1499))
	a.await(t, "node2", "blue", "dead for large packets", func(s Sample) bool { return s.State == Dead && s.LosesLarge })
}

// awaitLarge waits until large probes were answered.
func (n *machine) awaitLarge(t testing.TB, peer string, paths ...string) {
	t.Helper()
	n.await(t, peer, paths[0], "answering large probes", func(Sample) bool {
		n.prober.mu.Lock()
		defer n.prober.mu.Unlock()
		return !slices.ContainsFunc(paths, func(path string) bool {
			of := n.prober.large.targets[pair{peer, path}]
			return of == nil || of.state != Alive
		})
	})
}

// As where no switch takes them, or the other agent is an older one: pods may never send
// such ones.
func TestNoPathIsDeadWhereNoneTakesLargePackets(t *testing.T) {
	lab, a, b := pairOf(t, network.Spec{}, 4)
	for _, path := range twoPaths {
		require.NoError(t, lab.LoseLarge(b.Node, path, 1400))
	}
	a.probeLarge(t, 4, 1500, true, b)
	time.Sleep((largeLostToDie + 3) * largeInterval)
	for _, path := range twoPaths {
		sample := a.prober.View().Sample("node2", path)
		require.Equal(t, Alive, sample.State, "%s: %+v", path, sample)
		require.Zero(t, sample.Loss)
	}
}

func TestForgedAnswersDoNotCountOnTheWire(t *testing.T) {
	_, nodes := cluster(t, network.Spec{Nodes: 2, Paths: twoPaths})
	a, b := nodes[0], nodes[1]
	blue := netip.AddrPortFrom(b.address(t, 0, 4), DefaultPort)
	forger := datagrams(t, b.Namespace, blue)
	others := map[string]*net.UDPConn{
		"from another address": datagrams(t, b.Namespace, netip.AddrPortFrom(b.address(t, 1, 4), DefaultPort)),
		"from another port":    datagrams(t, b.Namespace, netip.AddrPortFrom(b.address(t, 0, 4), 9999)),
	}
	routed := datagrams(t, b.Namespace, netip.AddrPort{})
	hops(t, forger, 255)
	for _, other := range others {
		hops(t, other, 255)
	}
	hops(t, routed, 254)
	a.probe(t, 4, true, b)
	buffer := make([]byte, 2048)
	for range 5 {
		require.NoError(t, forger.SetReadDeadline(time.Now().Add(patience)))
		n, from, err := forger.ReadFromUDPAddrPort(buffer)
		require.NoError(t, err)
		request, ok := parse(buffer[:n])
		if !ok {
			t.Fatalf("a probe reads %x", buffer[:n])
		}
		send := func(by *net.UDPConn, nonce uint64) {
			wire := packet{kind: kindReply, nonce: nonce}.bytes()
			_, err := by.WriteToUDPAddrPort(wire[:], from)
			require.NoError(t, err)
		}
		send(forger, request.nonce+1)
		send(routed, request.nonce)
		for _, other := range others {
			send(other, request.nonce)
		}
	}
	time.Sleep(100 * time.Millisecond)
	if sample := a.prober.View().Sample("node2", "blue"); sample.State != Unknown || sample.Answers {
		t.Errorf("forged answers made the path %+v", sample)
	}
	a.prober.mu.Lock()
	unasked := a.prober.counts.unasked
	a.prober.mu.Unlock()
	if unasked < 10 {
		t.Errorf("%d answers counted as unasked for, of 10 and more", unasked)
	}
	n, from, err := forger.ReadFromUDPAddrPort(buffer)
	require.NoError(t, err)
	genuine, _ := parse(buffer[:n])
	wire := packet{kind: kindReply, nonce: genuine.nonce}.bytes()
	_, err = forger.WriteToUDPAddrPort(wire[:], from)
	require.NoError(t, err)
	a.awaitState(t, "node2", "blue", Alive) // so it was not for another reason
}

func TestNothingIsLeftOpen(t *testing.T) {
	files := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(open)
	}
	before := files()
	t.Run("run", func(t *testing.T) {
		_, a, b := pairOf(t, network.Spec{}, 6)
		a.probe(t, 4, false, b) // other sockets
		b.listen(t, 4)
		a.awaitState(t, "node2", "blue", Alive)
	})
	if after := files(); after > before {
		t.Errorf("%d files are open, %d before", after, before)
	}
}

func TestANICThatGoesAwayAndComesBackIsProbedAgain(t *testing.T) {
	lab, a, b := pairOf(t, network.Spec{}, 4)
	require.NoError(t, lab.SetNIC(a.Node, "green", false))
	a.prober.SetTargets(slices.DeleteFunc(a.prober.Targets(), func(target Target) bool { return target.Path == "green" }))
	a.await(t, "node2", "green", "unknown", func(s Sample) bool { return s == Sample{} })
	require.NoError(t, lab.SetNIC(a.Node, "green", true))
	a.probe(t, 4, true, b)
	a.awaitState(t, "node2", "green", Alive)
}
