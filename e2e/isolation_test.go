// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// What a tenant tries to get beyond what the admin allows, or to disturb another
// tenant; docs/isolation.md tells what stops each of them. The tenant's pods are
// those of the namespace tenant, and where no guardrail shall help, the pod third,
// which no policy selects. Tenants are root in their pods, with every capability.

// guarded is a cluster whose tenant is kept within guardrails.
func guarded(t *testing.T) *cluster {
	t.Helper()
	c := use(t)
	c.CreatePaths(t)
	c.GuardTenant(t)
	return c
}

// annotateTenant sets annotations of a pod of the tenant until the test ends.
func (c *cluster) annotateTenant(t *testing.T, name string, annotations map[string]string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name}}
	c.Update(t, pod, func() { pod.Annotations = annotations })
	t.Cleanup(func() {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":null}}`))
		if err := c.Client.Patch(context.Background(), pod, patch); err != nil {
			t.Error(err)
		}
	})
}

// Whatever a tenant does in its pods, on the wire they stay within the guardrails.
func TestATenantStaysWithinItsGuardrails(t *testing.T) {
	c := guarded(t)
	pod, to := c.Network.Pod("tenant-client"), c.Network.Pod("tenant-server")
	t.Run("with annotations that ask for more", func(t *testing.T) {
		c.annotateTenant(t, "tenant-client", map[string]string{
			v1alpha1.AnnotationPreferredPaths: "red", v1alpha1.AnnotationBackupPaths: "blue,green", v1alpha1.AnnotationMaxRate: "10G",
		})
		time.Sleep(shop.BurstOver)
		c.ExpectTransferWithin(t, "TCP")
	})
	t.Run("with a path manager of its own", func(t *testing.T) {
		shop.SetForTest(t, pod.Namespace, "net.mptcp.pm_type", "0")
		// The node's own address on the forbidden path, as one of the pod's.
		foreign := c.Network.Nodes[0].Address(2, 4)
		testlab.RunIn(t, pod, "ip", "address", "add", foreign+"/32", "dev", "eth0")
		testlab.RunIn(t, pod, "ip", "mptcp", "limits", "set", "subflows", "8", "add_addr_accepted", "8")
		testlab.RunIn(t, pod, "ip", "mptcp", "endpoint", "add", foreign, "dev", "eth0", "subflow", "fullmesh")
		testlab.RunIn(t, pod, "ip", "mptcp", "endpoint", "add", pod.IPv4, "dev", "eth0", "subflow", "fullmesh")
		t.Cleanup(func() {
			testlab.RunIn(t, pod, "ip", "mptcp", "endpoint", "flush")
			testlab.RunIn(t, pod, "ip", "address", "del", foreign+"/32", "dev", "eth0")
		})
		c.ExpectTransferWithin(t, "TCP")
	})
	floods := map[string]testlab.Flood{
		"with UDP":       {},
		"with fragments": {Length: 20000},
		"with IP options": {Prepare: func(s int) error {
			return unix.SetsockoptString(s, unix.IPPROTO_IP, unix.IP_OPTIONS, "\x01\x01\x01\x01")
		}},
		"with marks and priorities": {Prepare: func(s int) error {
			if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_MARK, -1); err != nil {
				return err
			}
			return unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_PRIORITY, 1<<16|1)
		}},
		"with IPv6": {To: testlab.UDPTo(to.IPv6)},
	}
	for name, f := range floods {
		t.Run(name, func(t *testing.T) {
			if !f.To.IsValid() {
				f.To = testlab.UDPTo(to.IPv4)
			}
			c.ExpectFloodWithin(t, pod, f)
		})
	}
	t.Run("with a queue of its own", func(t *testing.T) {
		testlab.RunIn(t, pod, "tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo", "limit", "100000")
		t.Cleanup(func() { testlab.RunIn(t, pod, "tc", "qdisc", "del", "dev", "eth0", "root") })
		c.ExpectFloodWithin(t, pod, testlab.Flood{To: testlab.UDPTo(to.IPv4)})
	})
	t.Run("with addresses of others", c.expectOwnAddresses)
}

// expectOwnAddresses: a pod's packets leave its node with its own addresses alone.
func (c *cluster) expectOwnAddresses(t *testing.T) {
	const count = 200
	pod, to, victim := c.Network.Pod("tenant-client"), c.Network.Pod("tenant-server"), c.Network.Pod("client")
	segments := func(from, to string) []testlab.Forgery {
		one := testlab.Forgery{From: testlab.AddrPort(from, 4000), To: testlab.AddrPort(to, lab.TrafficPort), Flags: testlab.SYN, Options: testlab.Capable}
		return slices.Repeat([]testlab.Forgery{one}, count)
	}
	attempts := map[string]struct {
		send   func(t *testing.T)
		passes bool
	}{
		"its own IPv4 address":         {func(t *testing.T) { testlab.Forge(t, pod, segments(pod.IPv4, to.IPv4)...) }, true},
		"its own IPv6 address":         {func(t *testing.T) { testlab.Forge(t, pod, segments(pod.IPv6, to.IPv6)...) }, true},
		"another pod's IPv4 address":   {func(t *testing.T) { testlab.Forge(t, pod, segments(victim.IPv4, to.IPv4)...) }, false},
		"another pod's IPv6 address":   {func(t *testing.T) { testlab.Forge(t, pod, segments(victim.IPv6, to.IPv6)...) }, false},
		"its node's address on a path": {func(t *testing.T) { testlab.Forge(t, pod, segments(pod.Node.Address(1, 4), to.IPv4)...) }, false},
		"an address of nobody":         {func(t *testing.T) { testlab.Forge(t, pod, segments("203.0.113.7", to.IPv4)...) }, false},
		"another's behind a VLAN tag":  {func(t *testing.T) { testlab.SendTagged(t, pod, 7, segments(victim.IPv4, to.IPv4)[0].Packet(), count) }, false},
		"its own behind a VLAN tag":    {func(t *testing.T) { testlab.SendTagged(t, pod, 7, segments(pod.IPv4, to.IPv4)[0].Packet(), count) }, false},
	}
	for name, attempt := range attempts {
		t.Run(name, func(t *testing.T) {
			if attempt.passes { // the first ones wait until the neighbours are known
				attempt.send(t)
			}
			before := received(t, to)
			attempt.send(t)
			if arrived := received(t, to) - before; arrived >= count != attempt.passes {
				t.Errorf("of %d packets %d arrived", count, arrived)
			} else if !attempt.passes && arrived > count/10 {
				t.Errorf("%d packets arrived, and some of them may be those", arrived)
			}
		})
	}
}

// received is how many packets a pod has got, once no more are on the way: on a busy
// machine they take their time.
func received(t *testing.T, pod *network.Pod) uint64 {
	t.Helper()
	count, quiet := testlab.Received(t, pod), 0
	for begin := time.Now(); quiet < 2 && time.Since(begin) < 5*time.Second; {
		time.Sleep(100 * time.Millisecond)
		before := count
		if count = testlab.Received(t, pod); count == before {
			quiet++
		} else {
			quiet = 0
		}
	}
	return count
}

// mostFlows is an eighth of a node's table of flows.
const mostFlows = 131072 / 8

// victims are connections of the shop while somebody attacks.
type victims struct {
	*cluster
	busy *testlab.Running
	idle *net.TCPConn
	// flows are theirs by node, with their paths.
	flows map[int]map[uplink.ToUplinkFlowKey]uint8
}

// startVictims begins a connection that sends until the end, and one that does not.
func (c *cluster) startVictims(t *testing.T, lasts time.Duration) *victims {
	t.Helper()
	policy := shop.Policy(v1alpha1.SubflowManagerAgent)
	c.Create(t, policy)
	c.WaitProgrammed(t, policy, 2)
	v := &victims{cluster: c, flows: map[int]map[uplink.ToUplinkFlowKey]uint8{}}
	from, to := c.Network.Pod("client"), c.Network.Pod("server")
	idle, err := from.Dial(t.Context(), "tcp", net.JoinHostPort(to.IPv4, fmt.Sprint(lab.TrafficPort)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = idle.Close() })
	v.idle = idle.(*net.TCPConn)
	// Subflows can join once the peer has acknowledged something.
	if _, err := idle.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	v.busy = c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, lasts))
	c.WaitFor(t, "the victims have all subflows", 5*time.Second, func(context.Context) error {
		for _, node := range []int{0, 1} {
			before := v.flows[node]
			v.flows[node] = c.flowsOf(t, c.Network.Nodes[node], from, to)
			if len(before) != 2*len(paths) || !maps.Equal(before, v.flows[node]) {
				return fmt.Errorf("there are %d flows", len(before))
			}
		}
		return nil
	})
	return v
}

// flowsOf are those between two pods, as a node has them.
func (c *cluster) flowsOf(t *testing.T, node *network.Node, a, b *network.Pod) map[uplink.ToUplinkFlowKey]uint8 {
	t.Helper()
	flows := c.Flows(t, node)
	maps.DeleteFunc(flows, func(key uplink.ToUplinkFlowKey, _ uint8) bool {
		ends := []string{bpf.Address(key.Local.Word).Unmap().String(), bpf.Address(key.Remote.Word).Unmap().String()}
		return !slices.Contains(ends, a.IPv4) || !slices.Contains(ends, b.IPv4)
	})
	return flows
}

// expectUntouched: the victims' flows are where they were.
func (v *victims) expectUntouched(t *testing.T) {
	t.Helper()
	from, to := v.Network.Pod("client"), v.Network.Pod("server")
	for node, before := range v.flows {
		now := v.flowsOf(t, v.Network.Nodes[node], from, to)
		if !maps.Equal(now, before) {
			t.Errorf("on node %d the victims' flows were on the paths %v and are on %v", node+1, describeFlows(before), describeFlows(now))
		}
		v.flows[node] = now
	}
	for what, count := range map[string]int{"busy": len(v.busy.Subflows(t)), "idle": len(subflowsOf(t, v.idle))} {
		if count != len(paths) {
			t.Errorf("the %s connection has %d subflows", what, count)
		}
	}
}

// describeFlows names the flows by their ports.
func describeFlows(flows map[uplink.ToUplinkFlowKey]uint8) string {
	short := map[string]uint8{}
	for key, path := range flows {
		short[fmt.Sprint(bpf.AddrPort(key.Local.Word, key.LocalPort).Port(), "-", bpf.AddrPort(key.Remote.Word, key.RemotePort).Port())] = path
	}
	return fmt.Sprint(short)
}

func subflowsOf(t *testing.T, connection *net.TCPConn) []traffic.Subflow {
	t.Helper()
	subflows, err := traffic.Subflows(connection)
	if err != nil {
		t.Fatal(err)
	}
	return subflows
}

// towards are segments with the addresses of the victims' flows, in either direction.
func (v *victims) towards(t *testing.T, server bool, count int, flags byte, options ...byte) (segments []testlab.Forgery) {
	t.Helper()
	for _, subflow := range append(v.busy.Subflows(t), subflowsOf(t, v.idle)...) {
		from, to := subflow.Local, subflow.Remote
		if !server {
			from, to = to, from
		}
		for range count {
			segments = append(segments, testlab.Forgery{From: from, To: to, Sequence: rand.Uint32(), Answer: rand.Uint32(), Flags: flags, Options: options})
		}
	}
	return segments
}

// A tenant can send what it likes to another's pods, and even with another's
// addresses: third is a pod that no guardrail holds back. It does not see others'
// packets.
func TestATenantDoesNotDisturbAnothersConnections(t *testing.T) {
	c := guarded(t)
	v := c.startVictims(t, 2*time.Minute) // until it is stopped
	third, tenant := c.Network.Pod("third"), c.Network.Pod("tenant-client")
	client, server := c.Network.Pod("client"), c.Network.Pod("server")
	token := v.token(t)
	own := func(pod *network.Pod, flags byte, options func(i int) []byte, count int) (segments []testlab.Forgery) {
		for i := range count {
			segments = append(segments, testlab.Forgery{
				From: testlab.AddrPort(pod.IPv4, uint16(10000+i%50000)), To: testlab.AddrPort(server.IPv4, lab.TrafficPort+uint16(i/50000)),
				Sequence: rand.Uint32(), Flags: flags, Options: options(i),
			})
		}
		return segments
	}
	const some = 5
	secret := netip.MustParseAddr(third.IPv4)
	attempts := []struct {
		name     string
		from     *network.Pod
		segments func(t *testing.T) []testlab.Forgery
	}{
		{"nothing", third, func(*testing.T) []testlab.Forgery { return nil }},
		{"forged SYNs to the server", third, func(t *testing.T) []testlab.Forgery { return v.towards(t, true, some, testlab.SYN, testlab.Capable...) }},
		{"forged SYNs to the client", third, func(t *testing.T) []testlab.Forgery {
			return v.towards(t, false, some, testlab.SYN, testlab.Capable...)
		}},
		{"forged resets", third, func(t *testing.T) []testlab.Forgery {
			return append(v.towards(t, true, some, testlab.RST), v.towards(t, false, some, testlab.RST|testlab.ACK)...)
		}},
		{"forged ends", third, func(t *testing.T) []testlab.Forgery {
			return append(v.towards(t, true, some, testlab.FIN|testlab.ACK), v.towards(t, false, some, testlab.FIN|testlab.ACK)...)
		}},
		{"forged acknowledgements", third, func(t *testing.T) []testlab.Forgery { return v.towards(t, true, some, testlab.ACK) }},
		{"forged priorities", third, func(t *testing.T) []testlab.Forgery {
			return append(v.towards(t, true, some, testlab.ACK, testlab.LowPriority...), v.towards(t, false, some, testlab.ACK, testlab.LowPriority...)...)
		}},
		{"forged announcements and withdrawals", third, func(t *testing.T) []testlab.Forgery {
			return append(v.towards(t, false, some, testlab.ACK, testlab.Announcing(secret)...), v.towards(t, true, some, testlab.ACK, testlab.RemoveAddress...)...)
		}},
		{"joins with unknown tokens", third, func(*testing.T) []testlab.Forgery {
			return own(third, testlab.SYN, func(int) []byte { return testlab.Joining(rand.Uint32()) }, 2000)
		}},
		{"joins with the connection's token", third, func(*testing.T) []testlab.Forgery {
			return own(third, testlab.SYN, func(int) []byte { return testlab.Joining(token) }, some)
		}},
		{"joins with the token, with the client's address", third, func(*testing.T) []testlab.Forgery {
			return own(client, testlab.SYN, func(int) []byte { return testlab.Joining(token) }, some)
		}},
		{"the client's SYNs from its own node", tenant, func(t *testing.T) []testlab.Forgery { return v.towards(t, true, some, testlab.SYN, testlab.Capable...) }},
		{"the client's resets from its own node", tenant, func(t *testing.T) []testlab.Forgery { return v.towards(t, true, some, testlab.RST|testlab.ACK) }},
		{"joins of its own, too many for the table of connections", tenant, func(*testing.T) []testlab.Forgery {
			return own(tenant, testlab.SYN, func(int) []byte { return testlab.Joining(rand.Uint32()) }, 20000)
		}},
		{"connections of its own, too many for the table of flows", tenant, func(*testing.T) []testlab.Forgery {
			return own(tenant, testlab.SYN, func(int) []byte { return testlab.Capable }, 140000)
		}},
		{"thousands of connections to the server", third, func(*testing.T) []testlab.Forgery {
			return own(third, testlab.SYN, func(int) []byte { return testlab.Capable }, 10000)
		}},
	}
	for _, attempt := range attempts {
		t.Run(attempt.name, func(t *testing.T) {
			testlab.Forge(t, attempt.from, attempt.segments(t)...)
			time.Sleep(longestQueue)
			v.expectUntouched(t)
		})
	}
	if count := len(c.flowsOf(t, tenant.Node, tenant, server)); count > mostFlows {
		t.Errorf("the tenant has %d flows", count)
	}
	t.Run("forged probes", func(t *testing.T) {
		c.expectProbesIgnored(t, third)
		v.expectUntouched(t)
	})
	t.Run("a policy for another's pods", func(t *testing.T) {
		c.expectPolicyAtHome(t)
		v.expectUntouched(t)
	})
	v.busy.StopSending()
	lasts := time.Since(v.busy.Began)
	v.busy.Finish(t)
	if stop := v.busy.LongestStop(testlab.Warmup, lasts); stop > testlab.LongestStop {
		t.Errorf("nothing arrived for %v", stop)
	}
	if used := v.busy.Shares(lasts-3*time.Second, lasts).Used(); !slices.Equal(used, paths) {
		t.Errorf("in the end the victim's connection uses %v", used)
	}
	after := c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, 3*time.Second))
	if used := after.Steady().Used(); !slices.Equal(used, paths) {
		t.Errorf("a new connection uses %v: %v", used, after.Steady())
	}
}

// longestQueue is how long packets wait on their way.
const longestQueue = 150 * time.Millisecond

// token is that of the victim's idle connection, as its server knows it.
func (v *victims) token(t *testing.T) (token uint32) {
	t.Helper()
	local := subflowsOf(t, v.idle)[0].Local
	v.WaitFor(t, "the connection's token is known", 5*time.Second, func(context.Context) error {
		for key, flow := range v.tokens(t, v.Network.Nodes[0]) {
			if bpf.AddrPort(key.Local.Word, key.LocalPort) == local && flow != 0 {
				token = flow
				return nil
			}
		}
		return fmt.Errorf("%v is not known", local)
	})
	return token
}

// tokens are those of a node's flows.
func (c *cluster) tokens(t *testing.T, node *network.Node) map[uplink.ToUplinkFlowKey]uint32 {
	t.Helper()
	pins, err := filepath.Glob(filepath.Join(c.PinPath(node.NodeName()), "datapath", "*", "flows"))
	if err != nil || len(pins) != 1 {
		t.Fatalf("the pinned maps of flows are %v (%v)", pins, err)
	}
	pinned, err := ebpf.LoadPinnedMap(pins[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer pinned.Close()
	tokens := map[uplink.ToUplinkFlowKey]uint32{}
	var key uplink.ToUplinkFlowKey
	var flow uplink.ToUplinkFlow
	for entries := pinned.Iterate(); entries.Next(&key, &flow); {
		tokens[key] = flow.Token
	}
	return tokens
}

const probePort = 8478

// expectProbesIgnored: whoever probes an agent gets no more back than was sent, and
// changes nothing of what agents think of the paths.
func (c *cluster) expectProbesIgnored(t *testing.T, from *network.Pod) {
	t.Helper()
	const count = 2000
	reply := append([]byte("BRDP"), 1, 2)
	request := append([]byte("BRDP"), 1, 1)
	for _, node := range c.Network.Nodes[:2] {
		for path := range paths {
			socket := testlab.SocketIn(t, from, unix.AF_INET, unix.SOCK_DGRAM, 0)
			defer unix.Close(socket)
			to := testlab.Sockaddr(testlab.AddrPort(node.Address(path, 4), probePort))
			for i := range count / len(paths) {
				probe := slices.Concat([][]byte{reply, request}[i%2], make([]byte, 18))
				for j := 8; j < 16; j++ {
					probe[j] = byte(rand.Uint32())
				}
				if err := testlab.SendPatiently(socket, probe, to); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(10 * time.Millisecond)
			sent, got := count/len(paths)*24, 0
			for buffer := make([]byte, 2048); ; {
				n, _, err := unix.Recvfrom(socket, buffer, unix.MSG_DONTWAIT)
				if err != nil {
					break
				}
				got += n
			}
			if got > sent {
				t.Errorf("for %d bytes %d came back", sent, got)
			}
		}
	}
	var nodes v1alpha1.MPTCPNodeList
	if err := c.Client.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		if node.Status.PathsUp != int32(len(paths)) {
			t.Errorf("%s: %d paths are up", node.Name, node.Status.PathsUp)
		}
	}
}

// expectPolicyAtHome: a tenant's policy with the labels of another's pods concerns
// its own alone.
func (c *cluster) expectPolicyAtHome(t *testing.T) {
	t.Helper()
	own := &v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "spread"}}
	c.Update(t, own, func() {
		own.Spec.PodSelector = metav1.LabelSelector{}
		own.Spec.Priority = 1000
		own.Spec.Rules = []v1alpha1.Rule{{Name: "drop", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionDrop}}}}
	})
	c.WaitProgrammed(t, own, 2)
	if rules := c.RulesOf(t, "client"); len(rules) > 0 {
		t.Errorf("the rules of another tenant's pod are %+v", rules)
	}
	address := net.JoinHostPort(c.Network.Pod("tenant-server").IPv4, fmt.Sprint(lab.TrafficPort))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if connection, err := c.Network.Pod("tenant-client").Dial(ctx, "tcp", address); err == nil {
		_ = connection.Close()
		t.Error("the tenant's own packets are not dropped")
	}
}

// Rules of a tenant run after those of the cluster, and do not undo what these do.
func TestRulesOfATenantDoNotUndoThoseOfTheCluster(t *testing.T) {
	attempts := []struct {
		name, cluster, tenant string
		expect                func(t *testing.T, c *cluster, r *testlab.Running)
	}{
		{"a backup", `
  - name: rest
    match: {paths: [green, red]}
    actions: [{type: SetBackup, setBackup: {backup: true}}]`, `
  - name: use
    actions: [{type: SetBackup, setBackup: {backup: false}}]`,
			func(t *testing.T, c *cluster, r *testlab.Running) {
				if wire := c.Now(t, r); wire.Of([]string{"green", "red"}) > testlab.Carried/3 || wire["blue"] < testlab.Carried {
					t.Errorf("the paths carry %v", wire)
				}
			}},
		{"a hidden address", `
  - name: hide
    match: {direction: ToEndpoint, packetTypes: [AddAddr]}
    actions: [{type: SuppressAddAddr}]`, `
  - name: give
    actions: [{type: ReleaseAddAddr}]`,
			func(t *testing.T, c *cluster, r *testlab.Running) {
				if joined := shop.JoinedBy(t, r); joined.IsValid() {
					t.Errorf("%v was joined, though its announcement is hidden", joined)
				}
			}},
		{"a rate that is shared", `
  - name: slow
    match: {direction: FromEndpoint}
    actions: [{type: RateLimit, rateLimit: {rate: 9M, per: Endpoint}}]`, `
  - name: each
    match: {direction: FromEndpoint}
    actions: [{type: RateLimit, rateLimit: {rate: 8M, per: Subflow}}]`,
			func(t *testing.T, c *cluster, r *testlab.Running) {
				if wire := c.Now(t, r); wire.Of(paths) > 9*1.25 {
					t.Errorf("the paths carry %v", wire)
				}
			}},
	}
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	c.Spread(t, policy, 2)
	for _, attempt := range attempts {
		t.Run(attempt.name, func(t *testing.T) {
			head := groundRules[:strings.Index(groundRules, "  rules:")]
			c.Apply(t, head+"  rules:"+attempt.cluster+"\n")
			c.Apply(t, tenantSpread+attempt.tenant+"\n")
			c.WaitProgrammed(t, policy, 2)
			c.WaitFor(t, "both policies' rules are in force", 30*time.Second, func(context.Context) error {
				if rules := c.RulesOf(t, "client"); len(rules) != 2 || !strings.Contains(attempt.cluster, rules[0].Name) || !strings.Contains(attempt.tenant, rules[1].Name) {
					return fmt.Errorf("the rules are %+v", rules)
				}
				return nil
			})
			r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, 4500*time.Millisecond))
			r.SleepUntil(3 * time.Second)
			attempt.expect(t, c, r)
			r.Finish(t)
		})
	}
}

const tenantSpread = `
apiVersion: braid.dev/v1alpha1
kind: MPTCPPolicy
metadata:
  namespace: shop
  name: spread
spec:
  podSelector:
    matchExpressions:
    - {key: app, operator: In, values: [client, server]}
  rules:`
