// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
)

func vm(name string, addresses ...v1alpha1.EndpointAddress) v1alpha1.MPTCPEndpoint {
	return v1alpha1.MPTCPEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("vm-" + name), Labels: map[string]string{"app": name}},
		Spec: v1alpha1.MPTCPEndpointSpec{
			NodeName: "node", Interface: v1alpha1.EndpointInterface{Name: "vnet0"}, Addresses: addresses,
		},
	}
}

var addressesOfVMs = map[string]struct {
	vms     []v1alpha1.MPTCPEndpoint
	pods    []corev1.Pod
	granted []string // addresses by VM
	refused string   // why the first one lacks one
}{
	"alone": {
		vms: []v1alpha1.MPTCPEndpoint{vm("a", "192.0.2.1", "2001:db8::1")}, granted: []string{"192.0.2.1 2001:db8::1"},
	},
	"one of them a pod's": {
		vms: []v1alpha1.MPTCPEndpoint{vm("a", "10.0.0.1", "192.0.2.1")}, pods: []corev1.Pod{runningPod("web", "10.0.0.1")},
		granted: []string{"192.0.2.1"}, refused: "is the address of pod shop/web",
	},
	"written in another form than the pod's": {
		vms: []v1alpha1.MPTCPEndpoint{vm("a", "2001:db8:0::1")}, pods: []corev1.Pod{runningPod("web", "2001:db8::1")},
		granted: []string{""}, refused: "is the address of pod shop/web",
	},
	"with a pod that has ended": {
		vms: []v1alpha1.MPTCPEndpoint{vm("a", "10.0.0.1")}, pods: []corev1.Pod{ended(runningPod("web", "10.0.0.1"))}, granted: []string{"10.0.0.1"},
	},
	"with another VM, and neither gets it": {
		vms:     []v1alpha1.MPTCPEndpoint{vm("a", "192.0.2.1"), vm("b", "192.0.2.1", "192.0.2.2")},
		granted: []string{"", "192.0.2.2"}, refused: "is claimed by MPTCPEndpoint shop/b too, and neither gets it",
	},
	"a Node's": {
		vms: []v1alpha1.MPTCPEndpoint{vm("a", "198.51.100.1")}, granted: []string{""}, refused: "is an address of node",
	},
	"not unicast": {
		vms: []v1alpha1.MPTCPEndpoint{vm("a", "224.0.0.1")}, granted: []string{""}, refused: "is no address that one machine alone can have",
	},
}

func TestAVMHasAnAddressThatNobodyElseHas(t *testing.T) {
	for name, tc := range addressesOfVMs {
		t.Run(name, func(t *testing.T) {
			in := oneNode(tc.pods...)
			in.Nodes[0].Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.51.100.1"}}
			in.Endpoints = tc.vms
			result := Compile(in)
			planned := map[types.UID]string{}
			for _, e := range result.Plans["node"].Endpoints {
				planned[e.UID] = strings.Join(e.Addresses, " ")
			}
			for i, want := range tc.granted {
				require.Equal(t, want, strings.Join(result.Guests[i].Addresses, " "))
				require.Equal(t, want, planned[tc.vms[i].UID])
			}
			if tc.refused == "" {
				require.Empty(t, result.Guests[0].Refused)
				return
			}
			require.Equal(t, tc.refused, result.Guests[0].Refused[0].Detail)
		})
	}
}

func ended(pod corev1.Pod) corev1.Pod {
	pod.Status.Phase = corev1.PodSucceeded
	return pod
}

func TestAPlanConfiguresNothingInAVM(t *testing.T) {
	in := oneNode(runningPod("web", "10.0.0.1"))
	in.Endpoints = []v1alpha1.MPTCPEndpoint{vm("a", "192.0.2.1")}
	window := int32(20)
	spec := &in.Policies[0].Spec
	spec.Sockets.Upgrade, spec.Transport, spec.Subflows.Count = true, &v1alpha1.Transport{InitialWindow: &window}, new(int32(3))
	endpoints := Compile(in).Plans["node"].Endpoints
	guest, pod := endpoints[0], endpoints[1]
	require.Equal(t, &v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerNone, Count: 3}, &guest.Subflows)
	require.False(t, guest.UpgradeSockets)
	require.Nil(t, guest.Transport)
	require.Equal(t, "vnet0", guest.Guest.Interface.Name)
	var told []string
	for _, s := range guest.Guest.NotApplied {
		told = append(told, s.Setting)
	}
	require.Equal(t, []string{"spec.subflows", "spec.sockets", "spec.transport"}, told)
	require.True(t, pod.UpgradeSockets)
	require.Nil(t, pod.Guest)
	require.Equal(t, pod.Paths, guest.Paths)
	require.Equal(t, pod.Chain, guest.Chain)
}

func TestWhatPeersAreAskedForHoldsForAVMAndNothingElseOfTransport(t *testing.T) {
	request := &v1alpha1.TransportRequest{CongestionControl: "cubic", InitialWindow: new(int32(40))}
	accept := &v1alpha1.TransportAcceptance{From: []v1alpha1.CIDR{"10.0.0.0/8"}, MaxInitialWindow: new(int32(80))}
	for name, test := range map[string]struct {
		given    v1alpha1.Transport
		asked    *v1alpha1.TransportRequest
		explains string // "" for nothing
		told     []string
	}{
		"a request alone": {v1alpha1.Transport{Request: request}, request, "transport: asks peers for congestionControl cubic and initialWindow 40", nil},
		"all of it": {
			v1alpha1.Transport{Request: request, Accept: accept, InitialWindow: new(int32(20))}, request,
			"transport: asks peers for congestionControl cubic", []string{"spec.transport", "spec.transport.accept"},
		},
		"accept alone": {v1alpha1.Transport{Accept: accept}, nil, "", []string{"spec.transport.accept"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := oneNode()
			in.Endpoints = []v1alpha1.MPTCPEndpoint{vm("a", "192.0.2.1")}
			in.Policies[0].Spec.Transport = &test.given
			result := Compile(in)
			guest := result.Plans["node"].Endpoints[0]
			if test.asked == nil {
				require.Nil(t, guest.Transport)
			} else {
				require.Equal(t, &v1alpha1.Transport{Request: test.asked}, guest.Transport)
			}
			var told []string
			for _, s := range guest.Guest.NotApplied {
				told = append(told, s.Setting)
			}
			require.Equal(t, test.told, told)
			explained := result.Decisions[0].String()
			require.Contains(t, explained, test.explains)
			require.Equal(t, test.explains != "", strings.Contains(explained, "transport:"))
		})
	}
}

func TestAPolicyWithoutSettingsOfSocketsHoldsForAVMAsAWhole(t *testing.T) {
	in := oneNode()
	in.Endpoints = []v1alpha1.MPTCPEndpoint{vm("a", "192.0.2.1")}
	for _, manager := range []v1alpha1.SubflowManager{"", v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerNone} {
		in.Policies[0].Spec.Subflows = v1alpha1.SubflowRules{Manager: manager, Mode: v1alpha1.SubflowModePerPath, Reopen: v1alpha1.ReopenAlways}
		require.Empty(t, Compile(in).Plans["node"].Endpoints[0].Guest.NotApplied, manager)
	}
	in.Policies[0].Spec.Subflows.Manager = v1alpha1.SubflowManagerAgent
	require.Len(t, Compile(in).Plans["node"].Endpoints[0].Guest.NotApplied, 1)
}

func TestTheHostMayMakeTheFurtherSubflowsOfAVM(t *testing.T) {
	in := oneNode(runningPod("web", "10.0.0.1"))
	in.Endpoints = []v1alpha1.MPTCPEndpoint{vm("a", "192.0.2.1")}
	in.Policies[0].Spec.Subflows = v1alpha1.SubflowRules{Manager: v1alpha1.SubflowManagerHost, Count: new(int32(3)), Reopen: v1alpha1.ReopenNever}
	endpoints := Compile(in).Plans["node"].Endpoints
	require.Empty(t, endpoints[0].Guest.NotApplied)
	for _, endpoint := range endpoints { // the pod's node says that it cannot
		require.Equal(t, v1alpha1.PlanSubflows{
			Manager: v1alpha1.SubflowManagerHost, Count: 3, Reopen: v1alpha1.ReopenNever,
			OpenAfterBytes: v1alpha1.DefaultOpenAfterBytes, OpenAfterMillis: v1alpha1.DefaultOpenAfterTime.Milliseconds(),
		}, endpoint.Subflows)
	}
}

func TestVMsAreSelectedByLabelsAndHinted(t *testing.T) {
	in := oneNode()
	chosen, other, elsewhere := vm("chosen", "192.0.2.1"), vm("other", "192.0.2.2"), vm("elsewhere", "192.0.2.3")
	chosen.Annotations = map[string]string{v1alpha1.AnnotationMaxRate: "20M"}
	elsewhere.Spec.NodeName = "nowhere"
	in.Endpoints = []v1alpha1.MPTCPEndpoint{chosen, other, elsewhere}
	in.Policies[0].Spec.PodSelector = metav1.LabelSelector{MatchLabels: map[string]string{"app": "chosen"}}
	result := Compile(in)
	require.Len(t, result.Plans["node"].Endpoints, 1)
	require.Equal(t, int64(20e6), result.Plans["node"].Endpoints[0].Guard.MaxRate)
	require.Equal(t, []PodRef{endpointRef(&chosen)}, result.Policies[0].Decides)
	for _, guest := range result.Guests {
		require.Equal(t, guest.Endpoint.Name == "elsewhere", guest.NodeMissing)
	}
	for _, d := range result.Decisions {
		if d.Pod.Name == "elsewhere" {
			require.Equal(t, "its node nowhere does not exist", d.Ignored)
		}
	}
}

func TestAChangeOfAVMCompilesItsNodeAlone(t *testing.T) {
	in := oneNode()
	in.Nodes = append(in.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	in.Endpoints = []v1alpha1.MPTCPEndpoint{vm("a", "192.0.2.1")}
	i := compiledAll(in)
	require.Empty(t, i.follow(in.deepCopy()))
	now := in.deepCopy()
	now.Endpoints[0].Labels = map[string]string{"app": "b"}
	require.Equal(t, []string{"node"}, i.follow(now))
	changed := now.deepCopy()
	changed.Policies[0].Spec.Priority = 7
	require.Equal(t, []string{"node"}, i.follow(changed))
	moved := changed.deepCopy()
	moved.Endpoints[0].Spec.NodeName = "other"
	require.Equal(t, []string{"node", "other"}, i.follow(moved))
	require.Empty(t, i.Result().Plans["node"].Endpoints)
	require.Len(t, i.Result().Plans["other"].Endpoints, 1)
}

// guestAgents are cases of who asks for the use of guests' agents, and who allows it.
var guestAgents = map[string]struct {
	cluster bool // a ClusterMPTCPPolicy asks
	rails   []v1alpha1.GuestAgentUse
	socket  string
	refused string // why it is not used; empty where it is
}{
	"an admin":                              {cluster: true, socket: "a/agent"},
	"an admin, within guardrails":           {cluster: true, socket: "a/agent", rails: []v1alpha1.GuestAgentUse{""}},
	"an admin whom a guardrail denies it":   {cluster: true, socket: "a/agent", rails: []v1alpha1.GuestAgentUse{"Deny"}, refused: "it has guestAgent: Deny"},
	"a tenant":                              {socket: "a/agent", refused: "ask an admin"},
	"a tenant whom no guardrail allows it":  {socket: "a/agent", rails: []v1alpha1.GuestAgentUse{""}, refused: "ask an admin"},
	"a tenant whom a guardrail allows it":   {socket: "a/agent", rails: []v1alpha1.GuestAgentUse{"", "Allow"}},
	"a tenant whom another one denies it":   {socket: "a/agent", rails: []v1alpha1.GuestAgentUse{"Allow", "Deny"}, refused: "it has guestAgent: Deny"},
	"an admin, of a VM that has no channel": {cluster: true, refused: "gives no guestAgentSocket"},
}

func TestAGuestsAgentIsUsedWhereAdminsAllowIt(t *testing.T) {
	for name, tc := range guestAgents {
		t.Run(name, func(t *testing.T) {
			in := oneNode()
			a := vm("a", "192.0.2.1")
			a.Spec.GuestAgentSocket, a.Spec.GuestAgentDomain = tc.socket, "database"
			in.Namespaces[0].Labels = map[string]string{corev1.LabelMetadataName: "shop"}
			in.Endpoints = []v1alpha1.MPTCPEndpoint{a}
			rules := v1alpha1.PolicyRules{Sockets: v1alpha1.SocketRules{GuestAgent: true}}
			rules.Subflows.Manager = v1alpha1.SubflowManagerHost
			everywhere := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpExists}}}
			if tc.cluster {
				in.Policies = nil
				in.ClusterPolicies = []v1alpha1.ClusterMPTCPPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "vms"}, Spec: v1alpha1.ClusterMPTCPPolicySpec{NamespaceSelector: everywhere, PolicyRules: rules}}}
			} else {
				in.Policies[0].Spec.PolicyRules = rules
			}
			for i, use := range tc.rails {
				in.Guardrails = append(in.Guardrails, v1alpha1.MPTCPGuardrail{
					ObjectMeta: metav1.ObjectMeta{Name: "rails" + strings.Repeat("x", i)},
					Spec:       v1alpha1.MPTCPGuardrailSpec{NamespaceSelector: everywhere, Guardrails: v1alpha1.Guardrails{GuestAgent: use}},
				})
			}
			guest := Compile(in).Plans["node"].Endpoints[0].Guest
			if tc.refused == "" {
				require.Empty(t, guest.NotApplied)
				require.Equal(t, tc.socket, guest.AgentSocket)
				require.Equal(t, "database", guest.AgentDomain)
				return
			}
			require.Empty(t, guest.AgentSocket)
			require.Len(t, guest.NotApplied, 1)
			require.Equal(t, "spec.sockets.guestAgent", guest.NotApplied[0].Setting)
			require.Contains(t, guest.NotApplied[0].Message, tc.refused)
		})
	}
}

func TestTheAgentOfAVMInAPodIsUsedWhereAdminsAllowIt(t *testing.T) {
	in := oneNode(runningPod("web", "10.0.0.1"))
	in.Pods[0].Annotations = map[string]string{v1alpha1.AnnotationVirtualMachine: "true"}
	in.Policies[0].Spec.Sockets.GuestAgent, in.Policies[0].Spec.Subflows.Manager = true, v1alpha1.SubflowManagerHost
	in.Guardrails = nil
	pod := Compile(in).Plans["node"].Endpoints[0]
	require.Len(t, pod.NotApplied(), 1)
	require.Contains(t, pod.NotApplied()[0].Message, "ask an admin")
	require.False(t, pod.VirtualMachine.GuestAgent)
	in.Guardrails = []v1alpha1.MPTCPGuardrail{{
		ObjectMeta: metav1.ObjectMeta{Name: "rails"},
		Spec: v1alpha1.MPTCPGuardrailSpec{
			NamespaceSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpExists}}},
			Guardrails:        v1alpha1.Guardrails{GuestAgent: v1alpha1.GuestAgentAllow},
		},
	}}
	in.Namespaces[0].Labels = map[string]string{corev1.LabelMetadataName: "shop"}
	pod = Compile(in).Plans["node"].Endpoints[0]
	require.Empty(t, pod.NotApplied())
	require.True(t, pod.VirtualMachine.GuestAgent)
}
