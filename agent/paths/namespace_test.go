// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// patience is how long a test waits for what should take milliseconds.
const patience = 10 * time.Second

func openNode(t *testing.T, namespace *network.Namespace) *Node {
	t.Helper()
	handle, err := netns.GetFromPath(namespace.Path())
	if err != nil {
		t.Fatal(err)
	}
	node, err := Open(handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { require.NoError(t, node.Close()) })
	require.NoError(t, handle.Close())
	return node
}

func watch(t *testing.T, node *Node) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	changes, err := node.Watch(ctx)
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		for range changes {
		}
	})
	return changes
}

// awaitPaths resolves on each notification until the paths are as wanted.
func awaitPaths(t *testing.T, node *Node, changes <-chan struct{}, query Query, want ...string) {
	t.Helper()
	timeout := time.After(patience)
	var got []string
	for {
		result, err := node.Resolve(query)
		require.NoError(t, err)
		got = nil
		for _, path := range result.Paths {
			got = append(got, summary(path))
		}
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-changes:
		case <-timeout:
			t.Fatalf("paths stayed\n%s\nwanted\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestNICsAreFoundInANamespace(t *testing.T) {
	lab := network.ForTest(t, network.Spec{Nodes: 1, Paths: []string{"nic1", "nic2"}, PodsPerNode: 2})
	node := openNode(t, lab.Nodes[0].Namespace)
	for name, test := range map[string]struct {
		plan v1alpha1.PlanPath
		want string
	}{
		"by name":            {byName("blue", "nic2"), "blue +nic2"},
		"by pattern":         {byName("blue", "nic?"), "blue +nic1 nic1 is used, the first by name; also matching: nic2"},
		"by IPv4 range":      {byRange("blue", "10.21.0.0/16"), "blue +nic2"},
		"by IPv6 range":      {byRange("blue", "fd00:20::/32"), "blue +nic1"},
		"not a pod's":        {byName("blue", "*"), "blue +nic1 nic1 is used, the first by name; also matching: nic2, veth1, veth2"},
		"not by a local one": {byRange("blue", "fe80::/10", "127.0.0.0/8"), "blue - no NIC has an address in fe80::/10 or 127.0.0.0/8"},
		"by both": {
			v1alpha1.PlanPath{Name: "blue", Interfaces: []v1alpha1.InterfacePattern{"nic*"}, AddressRanges: []v1alpha1.CIDR{"10.21.0.0/24"}},
			"blue +nic2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := node.Resolve(Query{Paths: []v1alpha1.PlanPath{test.plan}})
			require.NoError(t, err)
			if got := summary(result.Paths[0]); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestResolvedNICIsDescribed(t *testing.T) {
	lab := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}})
	node := openNode(t, lab.Nodes[0].Namespace)
	query := Query{Paths: []v1alpha1.PlanPath{byName("second", "green")}, Peers: []Peer{{Name: "node2", Addresses: addrs("10.20.0.2")}}}
	result, err := node.Resolve(query)
	require.NoError(t, err)
	index, err := lab.Nodes[0].Index("green")
	require.NoError(t, err)
	path := result.Paths[0]
	want := NIC{Name: "green", Index: index, MTU: 1500, Up: true, MAC: path.MAC, Addresses: prefixes("10.21.0.1/24", "fd00:21::1/64")}
	if diff := cmp.Diff(want, path.NIC, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("NIC (-want +got):\n%s", diff)
	}
	if len(path.MAC) != 6 {
		t.Errorf("MAC %q", path.MAC)
	}
	if len(result.Uplinks) != 1 || result.Uplinks[0].Name != "blue" {
		t.Errorf("the NIC of the route to node2 is no uplink: %+v", result.Uplinks)
	}
}

func TestChangesOfNICsAreSeen(t *testing.T) {
	lab := network.ForTest(t, network.Spec{Nodes: 1, Paths: []string{"blue", "green"}})
	host := lab.Nodes[0]
	node := openNode(t, host.Namespace)
	changes := watch(t, node)
	query := Query{Paths: []v1alpha1.PlanPath{byName("blue", "blue"), byName("green", "green"), byName("late", "late")}}
	await := func(want ...string) { t.Helper(); awaitPaths(t, node, changes, query, want...) }
	const noLate = "late - no NIC is called late"
	await("blue +blue", "green +green", noLate)

	begin := time.Now()
	require.NoError(t, lab.SetCarrier(host, "green", false))
	await("blue +blue", "green -green green has no carrier", noLate)
	took := time.Since(begin)
	t.Logf("carrier loss seen after %s", took)
	if took > time.Second {
		t.Errorf("carrier loss seen after %s", took)
	}
	require.NoError(t, lab.SetCarrier(host, "green", true))
	await("blue +blue", "green +green", noLate)

	require.NoError(t, lab.SetNIC(host, "green", false))
	await("blue +blue", "green -green green is set down", noLate)
	_, err := host.Run("ip", "link", "set", "green", "name", "late")
	require.NoError(t, err)
	await("blue +blue", "green - no NIC is called green", "late -late late is set down")
	require.NoError(t, host.SetUp("late"))
	await("blue +blue", "green - no NIC is called green", "late +late")

	_, err = host.Run("ip", "link", "delete", "late")
	require.NoError(t, err)
	await("blue +blue", "green - no NIC is called green", noLate)
	addresses := network.Options{AddressesA: []string{"10.21.0.1/24", "fd00:21::1/64"}}
	require.NoError(t, network.Connect(host.Namespace, "green", lab.Fabric, "again", addresses))
	await("blue +blue", "green +green", noLate)
}

func TestANICThatBecomesAPortOfABridgeIsLeftAndReturnedTo(t *testing.T) {
	lab := network.ForTest(t, network.Spec{Nodes: 1, Paths: []string{"blue"}})
	host := lab.Nodes[0]
	node := openNode(t, host.Namespace)
	changes := watch(t, node)
	query := Query{Paths: []v1alpha1.PlanPath{byName("blue", "blue")}}
	ip := func(arguments ...string) {
		t.Helper()
		_, err := host.Run("ip", arguments...)
		require.NoError(t, err)
	}
	awaitPaths(t, node, changes, query, "blue +blue")
	ip("link", "add", "br0", "type", "bridge")
	ip("link", "set", "blue", "master", "br0")
	awaitPaths(t, node, changes, query, "blue -blue blue belongs to br0 (bridge), which has what comes in there: name br0 in the MPTCPPath, or take blue out of it")
	ip("link", "set", "blue", "nomaster")
	awaitPaths(t, node, changes, query, "blue +blue")
}

func TestALostIPv6AddressIsSeen(t *testing.T) {
	lab := network.ForTest(t, network.Spec{Nodes: 1, Paths: []string{"blue"}})
	host := lab.Nodes[0]
	require.NoError(t, host.Sysctl("net.ipv6.conf.blue.keep_addr_on_down", "0"))
	require.NoError(t, host.Sysctl("net.ipv6.conf.all.keep_addr_on_down", "-1"))
	node := openNode(t, host.Namespace)
	changes := watch(t, node)
	query := Query{Paths: []v1alpha1.PlanPath{byName("blue", "blue")}}
	awaitPaths(t, node, changes, query, "blue +blue")
	require.NoError(t, lab.SetNIC(host, "blue", false))
	awaitPaths(t, node, changes, query, "blue -blue blue is set down")
	require.NoError(t, host.SetUp("blue"))
	awaitPaths(t, node, changes, query, "blue +blue blue has lost its IPv6 addresses")
	require.NoError(t, host.AddAddress("blue", "fd00:20::1/64"))
	awaitPaths(t, node, changes, query, "blue +blue")
}

func TestWatchTellsManyChangesInFewNotifications(t *testing.T) {
	namespace := network.NamespaceForTest(t)
	node := openNode(t, namespace)
	changes := watch(t, node)
	<-changes // what is there already
	var added []string
	for i := range 2000 {
		added = append(added, fmt.Sprintf("address add 10.9.%d.%d/32 dev lo", i/200, i%200))
	}
	command := namespace.Command(t.Context(), "ip", "-batch", "-")
	command.Stdin = strings.NewReader(strings.Join(added, "\n"))
	notifications, begin := 0, time.Now()
	stopped := make(chan error)
	go func() {
		out, err := command.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		stopped <- err
	}()
	for running := true; running; {
		select {
		case <-changes:
			notifications++
		case err := <-stopped:
			require.NoError(t, err)
			running = false
		}
	}
	if limit := int(time.Since(begin)/quiet) + 2; notifications == 0 || notifications > limit {
		t.Errorf("2000 changes were told in %d notifications, more than the %d that the time allows", notifications, limit)
	}
}

func TestWatchTellsThatMessagesWereLost(t *testing.T) {
	for name, test := range map[string]struct {
		buffer int
		told   bool
	}{
		"if they were":  {1, true}, // the kernel makes it a few kilobytes
		"but only then": {receiveBuffer, false},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := network.NamespaceForTest(t)
			node := openNode(t, namespace)
			socket, err := subscribe(node.namespace, unix.RTNLGRP_IPV4_ROUTE)
			require.NoError(t, err)
			require.NoError(t, socket.SetReceiveBufferSize(test.buffer, true))
			command := namespace.Command(t.Context(), "ip", "-batch", "-")
			var added []string
			for i := range 200 {
				added = append(added, fmt.Sprintf("route add unreachable 10.9.%d.0/24 table 7", i))
			}
			command.Stdin = strings.NewReader(strings.Join(added, "\n"))
			out, err := command.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			changed := make(chan struct{}, 1)
			_ = (&Node{}).receive(ctx, socket, changed) // ends with the context
			if told := len(changed) > 0; told != test.told {
				t.Errorf("told: %v, though no message that was received mattered", told)
			}
		})
	}
}

func TestManyChangesAtOnceMayHaveBeenOfAnyInterface(t *testing.T) {
	namespace := network.NamespaceForTest(t)
	node := openNode(t, namespace)
	socket, err := subscribe(node.namespace, unix.RTNLGRP_LINK)
	require.NoError(t, err)
	t.Cleanup(socket.Close)
	require.NoError(t, socket.SetReceiveBufferSize(1, true)) // the kernel makes it a few kilobytes
	log := downLog{socket}
	for range 10 {
		require.NoError(t, namespace.SetDown("lo"))
		require.NoError(t, namespace.SetUp("lo"))
	}
	first, err := log.read()
	require.NoError(t, err)
	second, err := log.read()
	require.NoError(t, err)
	if !first.has(12345) || second.has(1) {
		t.Errorf("after an overrun: %+v, and then %+v", first, second)
	}
}

func TestWatchSubscribesAgainWhenItsSocketBreaks(t *testing.T) {
	namespace := network.NamespaceForTest(t)
	node := openNode(t, namespace)
	broken, err := subscribe(node.namespace, watchedGroups...)
	require.NoError(t, err)
	broken.Close()
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan struct{}, 1)
	go node.follow(ctx, broken, watchedGroups, changed)
	await := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(patience):
			t.Fatalf("not told of %s", what)
		}
	}
	await("what was missed meanwhile")
	require.NoError(t, namespace.AddAddress("lo", "10.9.0.1/32"))
	await("a change after that")
	cancel()
	for range changed {
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	node := openNode(t, network.NamespaceForTest(t))
	ctx, cancel := context.WithCancel(t.Context())
	changes, err := node.Watch(ctx)
	require.NoError(t, err)
	cancel()
	timeout := time.After(patience)
	for {
		select {
		case _, open := <-changes:
			if !open {
				return
			}
		case <-timeout:
			t.Fatal("the channel stays open")
		}
	}
}

// agents are one for each node of a lab, which follow their NICs and tell each
// other of them, as over the API server.
type agents struct {
	t      *testing.T
	lab    *network.Network
	plans  []v1alpha1.PlanPath
	mu     sync.Mutex
	said   map[string]v1alpha1.MPTCPNode
	wake   []chan struct{}
	agents []*agent
}

type agent struct {
	*agents
	number  int
	node    *Node
	detours *Detours
	stop    func()
}

func startAgents(t *testing.T, lab *network.Network) *agents {
	a := &agents{t: t, lab: lab, said: map[string]v1alpha1.MPTCPNode{}}
	for _, path := range lab.Spec.Paths {
		a.plans = append(a.plans, byName(path, v1alpha1.InterfacePattern(path)))
	}
	for i, host := range lab.Nodes {
		a.wake = append(a.wake, make(chan struct{}, 1))
		one := &agent{agents: a, number: i, node: openNode(t, host.Namespace)}
		one.tell() // all are known before the first acts
		a.agents = append(a.agents, one)
	}
	for _, one := range a.agents {
		one.start()
		t.Cleanup(func() { one.stop() })
	}
	return a
}

func (a *agent) start() {
	detours, err := NewDetours(a.node)
	require.NoError(a.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	changes, err := a.node.Watch(ctx)
	require.NoError(a.t, err)
	done := make(chan struct{})
	a.detours = detours
	a.reconcile() // routes that were never seen cannot be missed
	a.stop = sync.OnceFunc(func() { cancel(); <-done; detours.Close() })
	go func() {
		defer close(done)
		for {
			select {
			case _, open := <-changes:
				if !open {
					return
				}
			case <-a.wake[a.number]:
			}
			a.reconcile()
		}
	}()
}

func (a *agent) reconcile() {
	resolution, peers := a.tell()
	if _, err := a.detours.Apply(State{Paths: resolution.Paths, Peers: peers}); err != nil {
		a.t.Errorf("node%d: %v", a.number+1, err)
	}
}

// tell resolves the paths, tells the others if something is new, and returns what
// they say.
func (a *agent) tell() (Resolution, []Peer) {
	resolution, err := a.node.Resolve(Query{Paths: a.plans})
	if err != nil {
		a.t.Errorf("node%d: %v", a.number+1, err)
	}
	var me v1alpha1.MPTCPNode
	me.Name = fmt.Sprintf("node%d", a.number+1)
	for _, path := range resolution.Paths {
		me.Status.Paths = append(me.Status.Paths, path.Status())
	}
	me.Status.Addresses = resolution.Addresses(nil)
	a.mu.Lock()
	defer a.mu.Unlock()
	me.Spec = confirm(a.said[me.Name].Spec, &me.Status)
	if !cmp.Equal(a.said[me.Name], me) {
		a.said[me.Name] = me
		for _, wake := range a.wake {
			signal(wake)
		}
	}
	var peers []Peer
	for name, node := range a.said {
		if name != me.Name {
			peers = append(peers, PeerOf(&node))
		}
	}
	return resolution, peers
}

// confirm is a controller that confirms everything, once and for all.
func confirm(before *v1alpha1.MPTCPNodeSpec, status *v1alpha1.MPTCPNodeStatus) *v1alpha1.MPTCPNodeSpec {
	spec := &v1alpha1.MPTCPNodeSpec{}
	if before != nil {
		spec.Confirmed = slices.Clone(before.Confirmed)
	}
	add := func(path v1alpha1.PathName, addresses []string) {
		for _, address := range addresses {
			if !slices.ContainsFunc(spec.Confirmed, func(c v1alpha1.ConfirmedAddress) bool { return c.Address == address }) {
				spec.Confirmed = append(spec.Confirmed, v1alpha1.ConfirmedAddress{Address: address, Path: path, Proof: v1alpha1.AddressProofNode})
			}
		}
	}
	for i := range status.Paths {
		add(status.Paths[i].Name, status.Paths[i].Addresses)
	}
	add("", status.Addresses)
	return spec
}

// talk is a connection between pods whose server answers each line.
type talk struct {
	t          *testing.T
	connection net.Conn
	reader     *bufio.Reader
}

func startTalk(t *testing.T, lab *network.Network, version int) *talk {
	t.Helper()
	client, server := lab.Nodes[0].Pods[0], lab.Nodes[1].Pods[0]
	listener, err := server.Listen(t.Context(), "tcp", net.JoinHostPort(server.Address(version), "7"))
	require.NoError(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_ = connection.SetDeadline(time.Now().Add(3 * patience)) // or a lost client keeps the test
			_, _ = io.Copy(connection, connection)
			_ = connection.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	connection, err := client.Dial(ctx, "tcp", net.JoinHostPort(server.Address(version), "7"))
	require.NoError(t, err)
	t.Cleanup(func() { connection.Close(); listener.Close(); <-served })
	return &talk{t, connection, bufio.NewReader(connection)}
}

// works sends a line and waits for the answer.
func (k *talk) works(when string) {
	k.t.Helper()
	begin := time.Now()
	require.NoError(k.t, k.connection.SetDeadline(begin.Add(patience)))
	if _, err := fmt.Fprintln(k.connection, when); err != nil {
		k.t.Fatalf("%s: %v", when, err)
	}
	answer, err := k.reader.ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != when {
		k.t.Fatalf("%s: got %q, %v", when, answer, err)
	}
	k.t.Logf("%s: answered after %s", when, time.Since(begin).Round(time.Millisecond))
}

// dump is all rules and routes of a node, sorted.
func dumpNode(t *testing.T, node *network.Node) string {
	t.Helper()
	var lines []string
	for _, command := range []string{"-4 rule show", "-6 rule show", "-4 route show table all", "-6 route show table all"} {
		out, err := node.Run("ip", strings.Fields(command)...)
		require.NoError(t, err)
		lines = append(lines, strings.Split(strings.TrimSpace(out), "\n")...)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// awaitDump waits for a node to have these rules and routes.
func awaitDump(t *testing.T, node *network.Node, when, want string) {
	t.Helper()
	testutil.Retry(t, patience, func() error {
		if got := dumpNode(t, node); got != want {
			return fmt.Errorf("%s: node%d's rules and routes (-want +got):\n%s", when, node.Number, cmp.Diff(want, got))
		}
		return nil
	})
}

// awaitWay waits until a node sends to an address by a NIC.
func awaitWay(t *testing.T, node *network.Node, address, nic string) {
	t.Helper()
	testutil.Retry(t, patience, func() error {
		if out, _ := node.Run("ip", "route", "get", address); !strings.Contains(out, "dev "+nic+" ") {
			return fmt.Errorf("node%d does not send to %s by %s: %s", node.Number, address, nic, out)
		}
		return nil
	})
}

// nicFailures are what may happen to the NICs of one path.
var nicFailures = map[string]func(lab *network.Network, up bool) error{
	"when the NIC is set down": func(lab *network.Network, up bool) error {
		return lab.SetNIC(lab.Nodes[0], "blue", up)
	},
	"when the NIC loses its carrier": func(lab *network.Network, up bool) error {
		return lab.SetCarrier(lab.Nodes[0], "blue", up)
	},
	"when the peer's NIC is set down": func(lab *network.Network, up bool) error {
		return lab.SetNIC(lab.Nodes[1], "blue", up)
	},
	"when the peer's NIC loses its carrier": func(lab *network.Network, up bool) error {
		return lab.SetCarrier(lab.Nodes[1], "blue", up)
	},
}

func TestTrafficTakesADetour(t *testing.T) {
	for name, fail := range nicFailures {
		t.Run(name, func(t *testing.T) {
			expectDetours(t, network.Overlay{}, fail)
		})
	}
}

// What fails is the NIC that the overlay's own packets use: no route of a pod changes, and
// the programs that steer see none of them before they have a way.
func TestAnOverlayTakesADetour(t *testing.T) {
	for name, fail := range nicFailures {
		for _, outer := range []int{4, 6} {
			t.Run(fmt.Sprintf("over IPv%d %s", outer, name), func(t *testing.T) {
				expectDetours(t, network.Overlay{Outer: outer}, fail)
			})
		}
	}
	t.Run("whose routes say where to, when the NIC is set down", func(t *testing.T) {
		expectDetours(t, network.Overlay{Outer: 4, External: true}, nicFailures["when the NIC is set down"])
	})
}

// expectDetours has blue fail and come back while pods talk, and looks at how the nodes
// send to what is detoured: pods natively, or else the other node itself.
func expectDetours(t *testing.T, overlay network.Overlay, fail func(lab *network.Network, up bool) error) {
	lab := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green", "red"}, PodsPerNode: 1, Overlay: overlay})
	before := []string{dumpNode(t, lab.Nodes[0]), dumpNode(t, lab.Nodes[1])}
	startAgents(t, lab)
	talks := map[int]*talk{4: startTalk(t, lab, 4), 6: startTalk(t, lab, 6)}
	expect := func(when, nic string) {
		t.Helper()
		for version, talk := range talks {
			talk.works(fmt.Sprintf("IPv%d %s", version, when))
			for i, node := range lab.Nodes {
				other := lab.Nodes[1-i]
				detoured := other.Pods[0].Address(version)
				if overlay.Outer != 0 {
					detoured = other.Address(0, overlay.Outer)
				}
				awaitWay(t, node, detoured, nic)
			}
		}
	}
	expect("at first", "blue")
	require.NoError(t, fail(lab, false))
	expect("while blue fails", "green")
	require.NoError(t, lab.SetCarrier(lab.Nodes[1], "green", false))
	expect("while green fails too", "red")
	require.NoError(t, lab.SetCarrier(lab.Nodes[1], "green", true))
	expect("after green is back", "green")
	require.NoError(t, fail(lab, true))
	expect("after blue is back", "blue")
	for i, node := range lab.Nodes {
		awaitDump(t, node, "after all is well again", before[i])
	}
}

func TestDetoursSurviveARestartOfTheAgent(t *testing.T) {
	lab := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}, PodsPerNode: 1})
	before := dumpNode(t, lab.Nodes[0])
	agents := startAgents(t, lab)
	pod := lab.Nodes[1].Pods[0]
	talks := []*talk{startTalk(t, lab, 4), startTalk(t, lab, 6)}

	require.NoError(t, lab.SetNIC(lab.Nodes[0], "blue", false))
	for _, address := range []string{pod.IPv4, pod.IPv6} {
		awaitWay(t, lab.Nodes[0], address, "green")
	}
	detoured := dumpNode(t, lab.Nodes[0])
	agents.agents[0].stop()
	if diff := cmp.Diff(detoured, dumpNode(t, lab.Nodes[0])); diff != "" {
		t.Errorf("the agent's end changed something (-before +after):\n%s", diff)
	}
	for _, talk := range talks {
		talk.works("without an agent")
	}
	agents.agents[0].start()
	if diff := cmp.Diff(detoured, dumpNode(t, lab.Nodes[0])); diff != "" {
		t.Errorf("the agent's restart changed something (-before +after):\n%s", diff)
	}
	for _, talk := range talks {
		talk.works("after the restart")
	}
	require.NoError(t, lab.SetNIC(lab.Nodes[0], "blue", true))
	awaitDump(t, lab.Nodes[0], "after blue is back", before)
}

func TestDetoursThatSomebodyDeletesComeBack(t *testing.T) {
	lab := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}, PodsPerNode: 1})
	startAgents(t, lab)
	host, pod := lab.Nodes[0], lab.Nodes[1].Pods[0]
	require.NoError(t, lab.SetNIC(host, "blue", false))
	awaitWay(t, host, pod.IPv4, "green")
	awaitWay(t, host, pod.IPv6, "green")
	time.Sleep(10 * quiet) // the agents come to rest, or they would put it back by the way
	whole := dumpNode(t, host)
	for _, command := range []string{
		"-4 route flush table 2845", "-6 route flush table 2845", "-4 rule delete pref 32700", "-6 rule delete pref 32700",
	} {
		_, err := host.Run("ip", strings.Fields(command)...)
		require.NoError(t, err)
		awaitDump(t, host, "after ip "+command, whole)
	}
}

func TestRemoveLeavesNothing(t *testing.T) {
	lab := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}, PodsPerNode: 1})
	agents := startAgents(t, lab)
	pod := lab.Nodes[1].Pods[0]
	require.NoError(t, lab.SetCarrier(lab.Nodes[0], "blue", false))
	awaitWay(t, lab.Nodes[0], pod.IPv4, "green")
	awaitWay(t, lab.Nodes[0], pod.IPv6, "green")
	agents.agents[0].stop()

	// Without ours, what would the kernel show?
	var want []string
	for line := range strings.SplitSeq(dumpNode(t, lab.Nodes[0]), "\n") {
		if !strings.Contains(line, "2845") {
			want = append(want, line)
		}
	}
	fresh, err := NewDetours(agents.agents[0].node) // as `uninstall` does, without Apply
	require.NoError(t, err)
	defer fresh.Close()
	require.NoError(t, fresh.Remove())
	if diff := cmp.Diff(strings.Join(want, "\n"), dumpNode(t, lab.Nodes[0])); diff != "" {
		t.Errorf("after removal (-want +got):\n%s", diff)
	}
}

func TestANICThatBlinksLosesItsRoutesAndNotItsDestinations(t *testing.T) {
	for name, disturb := range map[string]func(*testing.T, *network.Namespace) bool{
		"by a NIC that was down for a moment": func(t *testing.T, host *network.Namespace) bool {
			require.NoError(t, host.SetDown("blue"))
			require.NoError(t, host.SetUp("blue"))
			return true
		},
		"but not by an admin's hand": func(t *testing.T, host *network.Namespace) bool {
			for _, destination := range []string{"10.244.2.0/24", "fd00:244:2::/64"} {
				_, err := host.Run("ip", "route", "delete", destination)
				require.NoError(t, err)
			}
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			lab := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}})
			node := openNode(t, lab.Nodes[0].Namespace)
			detours, err := NewDetours(node)
			require.NoError(t, err)
			t.Cleanup(detours.Close)
			state := State{Peers: []Peer{{Name: "node2", Paths: map[string]PeerPath{
				"blue":  {Up: true, Addresses: addrs("10.20.0.2", "fd00:20::2")},
				"green": {Up: true, Addresses: addrs("10.21.0.2", "fd00:21::2")},
			}}}}
			apply := func() []Detour {
				result, err := node.Resolve(Query{Paths: []v1alpha1.PlanPath{byName("blue", "blue"), byName("green", "green")}})
				require.NoError(t, err)
				state.Paths = result.Paths
				placed, err := detours.Apply(state)
				require.NoError(t, err)
				return placed
			}
			if placed := apply(); placed != nil {
				t.Fatalf("detours while all is well: %v", placed)
			}
			wanted := disturb(t, lab.Nodes[0].Namespace)
			if placed := apply(); wanted && len(placed) != 2 || !wanted && placed != nil {
				t.Errorf("detours: %v", placed)
			}
		})
	}
}

func TestAWideDetourHidesNothing(t *testing.T) {
	lab := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}, PodsPerNode: 1})
	host := lab.Nodes[0]
	for _, wide := range []network.Route{
		{Destination: "10.0.0.0/8", Gateway: lab.Nodes[1].Address(0, 4)}, {Destination: "fd00::/8", Gateway: lab.Nodes[1].Address(0, 6)},
	} {
		wide.Interface = "blue"
		require.NoError(t, host.AddRoute(wide))
	}
	before := dumpNode(t, host)
	startAgents(t, lab)
	require.NoError(t, lab.SetCarrier(host, "blue", false))
	for _, ways := range [][2]string{
		{"10.250.0.1", "green"}, {"fdff::1", "green"}, // everything else of the range
		{lab.Nodes[1].Pods[0].IPv4, "green"}, {lab.Nodes[1].Pods[0].IPv6, "green"},
		{host.Pods[0].IPv4, host.Pods[0].HostInterface}, {host.Pods[0].IPv6, host.Pods[0].HostInterface},
		{lab.Nodes[1].Address(1, 4), "green"}, {lab.Nodes[1].Address(1, 6), "green"},
		{lab.Nodes[1].Address(0, 4), "blue"}, // connected, and so not ours to move
	} {
		awaitWay(t, host, ways[0], ways[1])
	}
	require.NoError(t, lab.SetCarrier(host, "blue", true))
	awaitDump(t, host, "after blue is back", before)
}

func TestNoDefaultRouteIsDetoured(t *testing.T) {
	lab := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}, PodsPerNode: 1})
	host := lab.Nodes[0]
	outside := []string{"203.0.113.1", "2001:db8::1", "10.250.0.1"}
	for version, destinations := range map[int][]string{4: {"0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1"}, 6: {"::/0", "::/1", "2000::/3"}} {
		for _, destination := range destinations {
			require.NoError(t, host.AddRoute(network.Route{Destination: destination, Gateway: lab.Nodes[1].Address(0, version), Interface: "blue"}))
		}
	}
	startAgents(t, lab)
	require.NoError(t, lab.SetCarrier(host, "blue", false))
	awaitWay(t, host, lab.Nodes[1].Pods[0].IPv4, "green")
	awaitWay(t, host, lab.Nodes[1].Pods[0].IPv6, "green")
	for _, address := range outside {
		awaitWay(t, host, address, "blue")
	}
}

func TestDetoursOfAThousandDestinations(t *testing.T) {
	lab := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}})
	host := lab.Nodes[0]
	handle, err := host.Handle()
	require.NoError(t, err)
	index, err := host.Index("blue")
	require.NoError(t, err)
	for i := range 1000 {
		route := routeVia(index, fmt.Sprintf("10.%d.%d.0/24", 100+i/250, i%250), lab.Nodes[1].Address(0, 4))
		require.NoError(t, handle.RouteReplace(&route))
	}
	agents := startAgents(t, lab)
	awaitWay(t, host, "10.103.249.1", "blue")
	require.NoError(t, lab.SetCarrier(host, "blue", false))
	begin := time.Now()
	awaitWay(t, host, "10.103.249.1", "green")
	t.Logf("1000 destinations detoured after %s", time.Since(begin))
	agents.agents[0].stop()
	begin = time.Now()
	fresh, err := NewDetours(agents.agents[0].node)
	require.NoError(t, err)
	defer fresh.Close()
	agents.agents[0].detours = fresh
	agents.agents[0].reconcile()
	t.Logf("looking at them once more took %s", time.Since(begin))
	routes, err := handle.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: DetourTable}, netlink.RT_FILTER_TABLE)
	require.NoError(t, err)
	if len(routes) != 1001 { // and node2's pods
		t.Errorf("%d detours", len(routes))
	}
	require.NoError(t, fresh.Remove())
}

func TestAnOpenNodeFollowsTheProcess(t *testing.T) {
	namespace := network.NamespaceForTest(t)
	require.NoError(t, namespace.Do(func() error {
		node, err := Open(netns.None())
		if err != nil {
			return err
		}
		defer node.Close()
		result, err := node.Resolve(Query{Paths: []v1alpha1.PlanPath{byName("all", "*")}})
		if err == nil && summary(result.Paths[0]) != "all - no NIC is called *" {
			err = fmt.Errorf("found %s in a namespace that has loopback only", summary(result.Paths[0]))
		}
		return err
	}))
}

// By the routes other nodes' pods, and the packets of overlays, are behind blue. What comes
// from them by green is dropped there.
func TestStrictReversePathFiltersMakePathsUnusable(t *testing.T) {
	lab := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green", "red"}})
	node := openNode(t, lab.Nodes[0].Namespace)
	query := Query{
		Paths: []v1alpha1.PlanPath{byName("blue", "blue"), byName("green", "green"), byName("red", "red")},
		Peers: []Peer{{Name: "node2", Addresses: addrs("10.20.0.2")}},
	}
	changes, err := node.Watch(t.Context())
	require.NoError(t, err)
	const complaint = "drops packets from addresses of other NICs' networks: set net.ipv4.conf.green.rp_filter to 2"
	set := func(key, value string) { require.NoError(t, lab.Nodes[0].Sysctl(key, value)) }
	for _, nic := range []string{"blue", "green"} {
		set("net.ipv4.conf."+nic+".rp_filter", "1")
	}
	awaitPaths(t, node, changes, query, "blue +blue", "green -green green "+complaint, "red +red")
	set("net.ipv4.conf.green.rp_filter", "2")
	awaitPaths(t, node, changes, query, "blue +blue", "green +green", "red +red")
	set("net.ipv4.conf.green.rp_filter", "0")
	set("net.ipv4.conf.red.rp_filter", "2")
	set("net.ipv4.conf.all.rp_filter", "1")
	awaitPaths(t, node, changes, query, "blue +blue", "green -green green "+complaint, "red +red")
}
