// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/throttle"
)

func TestWithoutAPlanThereIsNothingToDo(t *testing.T) {
	s := &snapshot{}
	if s.planPaths() != nil {
		t.Errorf("without a plan there are paths %v", s.planPaths())
	}
}

func TestConcerns(t *testing.T) {
	plan := func(generation int64, programmed int32) *v1alpha1.MPTCPNodePlan {
		return &v1alpha1.MPTCPNodePlan{
			ObjectMeta: metav1.ObjectMeta{UID: "1", Generation: generation},
			Status:     v1alpha1.MPTCPNodePlanStatus{EndpointsProgrammed: programmed},
		}
	}
	another := plan(1, 0)
	another.UID = "2"
	node := func(state v1alpha1.LinkState, address string, conditions ...metav1.Condition) *v1alpha1.MPTCPNode {
		return &v1alpha1.MPTCPNode{Status: v1alpha1.MPTCPNodeStatus{
			Addresses: []string{address}, Conditions: conditions,
			Paths: []v1alpha1.NodePath{{Name: "blue", State: state}},
		}}
	}
	kubernetes := func(address string, conditions ...corev1.NodeCondition) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}, Conditions: conditions,
		}}
	}
	measured := node(v1alpha1.LinkUp, "10.0.0.2")
	measured.Status.Paths[0].PeersProbed, measured.Status.Paths[0].MedianRTTMicros = 3, 120
	confirmed := node(v1alpha1.LinkUp, "10.0.0.2")
	confirmed.Spec = &v1alpha1.MPTCPNodeSpec{}
	cases := map[string]struct {
		before, after any
		wanted        bool
	}{
		"a plan with another spec":               {plan(1, 0), plan(2, 0), true},
		"a plan that was deleted and made again": {plan(1, 0), another, true},
		"the agent's own result":                 {plan(1, 0), plan(1, 1), false},
		"a peer's NIC that went down":            {node(v1alpha1.LinkUp, "10.0.0.2"), node(v1alpha1.LinkDown, "10.0.0.2"), true},
		"a peer's new address":                   {node(v1alpha1.LinkUp, "10.0.0.2"), node(v1alpha1.LinkUp, "10.0.0.3"), true},
		"what the controller confirmed":          {node(v1alpha1.LinkUp, "10.0.0.2"), confirmed, true},
		"what a peer's agent measures":           {node(v1alpha1.LinkUp, "10.0.0.2"), measured, false},
		"what the controller says of a peer":     {node(v1alpha1.LinkUp, "10.0.0.2"), node(v1alpha1.LinkUp, "10.0.0.2", metav1.Condition{Type: "Ready"}), false},
		"the Node's new address":                 {kubernetes("10.0.0.1"), kubernetes("10.0.0.9"), true},
		"the kubelet's heartbeat":                {kubernetes("10.0.0.1"), kubernetes("10.0.0.1", corev1.NodeCondition{Type: corev1.NodeReady}), false},
		"something of another kind":              {&corev1.Pod{}, &corev1.Pod{}, true},
		"something that was of another kind":     {&corev1.Pod{}, plan(1, 0), true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if concerns(c.before, c.after) != c.wanted {
				t.Errorf("concerns is %v", !c.wanted)
			}
		})
	}
}

func TestANodeWhoseReportChangesAllTheTimeKeepsNoOtherBusy(t *testing.T) {
	a := &Agent{options: Options{NodeName: "node1"}, reports: throttle.New[string](reportsAtOnce, reportInterval)}
	named := func(name string) *v1alpha1.MPTCPNode {
		return &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	now, atOnce := time.Now(), 0
	for range 40 { // in a second
		now = now.Add(25 * time.Millisecond)
		if a.reportWaits(named("node3"), now) == 0 {
			atOnce++
		}
	}
	if atOnce > reportsAtOnce+4 {
		t.Errorf("%d reports of 40 are seen to at once", atOnce)
	}
	for _, object := range []any{named("node2"), named("node1"), &v1alpha1.MPTCPNodePlan{}} {
		if wait := a.reportWaits(object, now); wait != 0 {
			t.Errorf("a change of %T waits for %v", object, wait)
		}
	}
}

func TestInternalAddresses(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "node1"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
		{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
		{Type: corev1.NodeInternalIP, Address: "fd00::1"},
		{Type: corev1.NodeInternalIP, Address: "no address"},
	}}}
	wanted := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	if found := internalAddresses(node); !reflect.DeepEqual(found, wanted) {
		t.Errorf("the addresses are %v", found)
	}
}

func TestANodeIsNotItsOwnPeerAndABadAddressHidesNoPeer(t *testing.T) {
	node := func(name string, addresses ...string) v1alpha1.MPTCPNode {
		return v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.MPTCPNodeStatus{Addresses: addresses}}
	}
	a := &Agent{options: Options{NodeName: "node1"}, log: testr.New(t)}
	peers := a.peersOf([]v1alpha1.MPTCPNode{node("node1", "10.0.0.1"), node("node2", "no address", "10.0.0.2"), node("node3")})
	if len(peers) != 2 || peers[0].Name != "node2" || peers[1].Name != "node3" {
		t.Fatalf("the peers are %+v", peers)
	}
	if wanted := []netip.Addr{netip.MustParseAddr("10.0.0.2")}; !reflect.DeepEqual(peers[0].Addresses, wanted) {
		t.Errorf("the addresses of node2 are %v", peers[0].Addresses)
	}
}

// The agents of an upgrade read what a controller of before, and then one of after,
// has judged.
func TestPeersThroughAnUpgrade(t *testing.T) {
	const address = "10.0.0.2"
	reported := func(name string) v1alpha1.MPTCPNode {
		return v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.MPTCPNodeStatus{Addresses: []string{address}}}
	}
	judged := func(name string, addresses ...string) v1alpha1.MPTCPNode {
		node := reported(name)
		node.Spec = &v1alpha1.MPTCPNodeSpec{}
		for _, text := range addresses {
			node.Spec.Confirmed = append(node.Spec.Confirmed, v1alpha1.ConfirmedAddress{Address: text})
		}
		return node
	}
	a := &Agent{options: Options{NodeName: "here"}}
	expect := func(what string, nodes []v1alpha1.MPTCPNode, wanted ...string) {
		t.Helper()
		var found []string
		for _, peer := range a.peersOf(nodes) {
			if len(peer.Addresses) > 0 {
				found = append(found, peer.Name)
			}
		}
		if !reflect.DeepEqual(found, wanted) {
			t.Errorf("%s: the peers with addresses are %v, want %v", what, found, wanted)
		}
	}
	expect("an earlier controller", []v1alpha1.MPTCPNode{reported("here"), reported("b"), reported("c")}, "b", "c")
	expect("a newer one begins", []v1alpha1.MPTCPNode{judged("here"), reported("b"), judged("c", address)}, "b", "c")
	expect("a node that comes now", []v1alpha1.MPTCPNode{judged("here"), judged("b", address), judged("c", address), reported("d")}, "b", "c")
	expect("nothing of b is confirmed", []v1alpha1.MPTCPNode{judged("b"), judged("c", address)}, "c")
	expect("c's object is made anew by its agent", []v1alpha1.MPTCPNode{judged("b", address), reported("c")}, "b")
	a = &Agent{options: Options{NodeName: "here"}}
	expect("an agent that starts then", []v1alpha1.MPTCPNode{judged("b", address), reported("c")}, "b")
	expect("a rollback, whose CRD has no spec", []v1alpha1.MPTCPNode{reported("b"), reported("c")}, "b", "c")
}
