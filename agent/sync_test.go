// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// onNIC is a path whose NIC has this index; 0 means that there is none.
func onNIC(name string, index int, usable bool) paths.Path {
	return paths.Path{Name: name, NIC: paths.NIC{Index: index}, Usable: usable}
}

func planEndpoint(name, address string, paths ...v1alpha1.PathWeight) v1alpha1.PlanEndpoint {
	return v1alpha1.PlanEndpoint{Name: name, Addresses: []string{address}, Paths: paths}
}

func TestDatapathState(t *testing.T) {
	blue := []v1alpha1.PathWeight{{Path: "blue", Weight: 1}}
	address := []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	peers := []paths.Peer{{Name: "node2"}}
	cases := map[string]struct {
		resolution paths.Resolution
		endpoints  []v1alpha1.PlanEndpoint
		wanted     datapath.State
	}{
		"without a path nothing is attached, whatever else there is": {
			resolution: paths.Resolution{Paths: []paths.Path{onNIC("blue", 0, false)}, Uplinks: []paths.NIC{{Index: 7}}},
			endpoints:  []v1alpha1.PlanEndpoint{planEndpoint("a", "10.0.0.2", blue...)},
			wanted:     datapath.State{},
		},
		"a NIC that cannot be used stays attached and carries nothing": {
			resolution: paths.Resolution{Paths: []paths.Path{onNIC("blue", 2, false), onNIC("green", 3, true)}},
			wanted: datapath.State{Peers: peers, Paths: []datapath.Path{
				{Name: "blue", Interface: 2}, {Name: "green", Interface: 3, Up: true},
			}},
		},
		"a path without NIC is left out, and NICs without path are attached to": {
			resolution: paths.Resolution{
				Paths: []paths.Path{onNIC("blue", 2, true), onNIC("green", 0, false)}, Uplinks: []paths.NIC{{Index: 7}},
			},
			wanted: datapath.State{Peers: peers, Paths: []datapath.Path{{Name: "blue", Interface: 2, Up: true}}, Uplinks: []int{7}},
		},
		"an endpoint that is not spread is none of the datapath's business": {
			resolution: paths.Resolution{Paths: []paths.Path{onNIC("blue", 2, true)}},
			endpoints:  []v1alpha1.PlanEndpoint{planEndpoint("a", "10.0.0.2", blue...), planEndpoint("b", "10.0.0.3")},
			wanted: datapath.State{
				Peers: peers, Paths: []datapath.Path{{Name: "blue", Interface: 2, Up: true}},
				Endpoints: []datapath.Endpoint{{Addresses: address, Paths: blue}},
			},
		},
		"an IPv4 address in IPv6 form is an IPv4 address": {
			resolution: paths.Resolution{Paths: []paths.Path{onNIC("blue", 2, true)}},
			endpoints:  []v1alpha1.PlanEndpoint{planEndpoint("a", "::ffff:10.0.0.2", blue...)},
			wanted: datapath.State{
				Peers: peers, Paths: []datapath.Path{{Name: "blue", Interface: 2, Up: true}},
				Endpoints: []datapath.Endpoint{{Addresses: address, Paths: blue}},
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := &news{plan: &v1alpha1.MPTCPNodePlan{Spec: v1alpha1.MPTCPNodePlanSpec{Endpoints: c.endpoints}}, peers: peers}
			if state := datapathState(n, c.resolution, (&hints{}).endpoint); !reflect.DeepEqual(state, c.wanted) {
				t.Errorf("the state is\n%+v\ninstead of\n%+v", state, c.wanted)
			}
		})
	}
}

func TestWithoutAPlanThereIsNothingToDo(t *testing.T) {
	n := &news{}
	if n.planPaths() != nil || n.planEndpoints() != nil {
		t.Errorf("without a plan there are paths %v and endpoints %v", n.planPaths(), n.planEndpoints())
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
	cases := map[string]struct {
		before, after any
		wanted        bool
	}{
		"a plan with another spec":               {plan(1, 0), plan(2, 0), true},
		"a plan that was deleted and made again": {plan(1, 0), another, true},
		"the agent's own result":                 {plan(1, 0), plan(1, 1), false},
		"a peer's NIC that went down":            {node(v1alpha1.LinkUp, "10.0.0.2"), node(v1alpha1.LinkDown, "10.0.0.2"), true},
		"a peer's new address":                   {node(v1alpha1.LinkUp, "10.0.0.2"), node(v1alpha1.LinkUp, "10.0.0.3"), true},
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
