// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/api/v1alpha1"
)

// GuestResult is what became of the addresses that an MPTCPEndpoint gives.
type GuestResult struct {
	// Endpoint names it and its node.
	Endpoint PodRef `json:"endpoint"`
	// Generation of it that was compiled.
	Generation int64 `json:"generation"`
	// Addresses are the VM's.
	Addresses []string `json:"addresses,omitempty"`
	// Refused are not, in the order in which it gives them.
	Refused []RefusedAddress `json:"refused,omitempty"`
	// NodeMissing: there is no Node of that name.
	NodeMissing bool `json:"nodeMissing,omitempty"`
}

// AddressesOf lists the addresses that endpoints give, each once, in the form that is
// compared.
func AddressesOf(endpoints []v1alpha1.MPTCPEndpoint) (all []netip.Addr) {
	seen := map[netip.Addr]bool{}
	for i := range endpoints {
		for _, text := range endpoints[i].Spec.Addresses {
			if address, ok := parseAddress(string(text)); ok && !seen[address] {
				seen[address] = true
				all = append(all, address)
			}
		}
	}
	return all
}

// Holders are the pods that have addresses, by these: those that run with an interface of
// their own.
func Holders(pods []corev1.Pod) map[netip.Addr]PodRef {
	holders := map[netip.Addr]PodRef{}
	for i := range pods {
		pod := &pods[i]
		if !hasInterface(pod) {
			continue
		}
		for _, ip := range pod.Status.PodIPs {
			address, ok := parseAddress(ip.IP)
			if before, taken := holders[address]; ok && (!taken || comparePods(podRef(pod), before) < 0) {
				holders[address] = podRef(pod)
			}
		}
	}
	return holders
}

// guests are the VMs that have addresses, by node, and what became of all.
type guests struct {
	byNode  map[string][]*workload
	results []GuestResult
}

// compileGuests says which addresses are whose. One that a pod or a Node has is theirs,
// and of several endpoints that give one none gets it: nothing tells whose it is.
func compileGuests(in *Input, nodes map[string]*node) guests {
	holders, known := in.AddressHolders, newKnownAddresses(&Claims{Nodes: in.Nodes})
	claimants := map[netip.Addr][]PodRef{}
	for i := range in.Endpoints {
		for _, address := range AddressesOf(in.Endpoints[i : i+1]) {
			claimants[address] = append(claimants[address], endpointRef(&in.Endpoints[i]))
		}
	}
	g := guests{byNode: map[string][]*workload{}}
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		result := GuestResult{Endpoint: endpointRef(e), Generation: e.Generation, NodeMissing: nodes[e.Spec.NodeName] == nil}
		for _, text := range e.Spec.Addresses {
			if refused := refuseGuest(string(text), result.Endpoint, claimants, holders, known.holders); refused != nil {
				result.Refused = append(result.Refused, *refused)
			} else {
				result.Addresses = append(result.Addresses, string(text))
			}
		}
		g.results = append(g.results, result)
		g.byNode[e.Spec.NodeName] = append(g.byNode[e.Spec.NodeName], guestWorkload(e, result.Addresses))
	}
	slices.SortFunc(g.results, func(a, b GuestResult) int { return comparePods(a.Endpoint, b.Endpoint) })
	for _, of := range g.byNode {
		slices.SortFunc(of, func(a, b *workload) int { return comparePods(a.ref, b.ref) })
	}
	return g
}

// refuseGuest says why an address is not a VM's; nil when it is.
func refuseGuest(text string, of PodRef, claimants map[netip.Addr][]PodRef, pods map[netip.Addr]PodRef, nodes map[netip.Addr]string) *RefusedAddress {
	address, ok := parseAddress(text)
	if !ok {
		return &RefusedAddress{fmt.Sprintf("%q", shorten(text, maxAddressText)), v1alpha1.ReasonMalformed, "is no address"}
	}
	refused := func(reason, detail string) *RefusedAddress { return &RefusedAddress{address.String(), reason, detail} }
	if !isUnicast(address) {
		return refused(v1alpha1.ReasonNotUnicast, "is no address that one machine alone can have")
	}
	if pod, has := pods[address]; has {
		return refused(v1alpha1.ReasonDuplicate, "is the address of pod "+pod.String())
	}
	if holder, has := nodes[address]; has {
		return refused(v1alpha1.ReasonDuplicate, "is an address of "+cmp.Or(holder, "several Nodes"))
	}
	var others []string
	for _, other := range claimants[address] {
		if other != of {
			others = append(others, other.String())
		}
	}
	if len(others) == 0 {
		return nil
	}
	slices.Sort(others)
	return refused(v1alpha1.ReasonDuplicate, "is claimed by "+enumerateNodes(others)+" too, and neither gets it")
}

func endpointRef(e *v1alpha1.MPTCPEndpoint) PodRef {
	return PodRef{Kind: KindEndpoint, Namespace: e.Namespace, Name: e.Name, UID: e.UID, Node: e.Spec.NodeName}
}

func guestWorkload(e *v1alpha1.MPTCPEndpoint, addresses []string) *workload {
	w := &workload{
		ref: endpointRef(e), labels: e.Labels, annotations: OwnAnnotations(e.Annotations),
		addresses: addresses, guest: new(e.Spec.Interface), agentSocket: e.Spec.GuestAgentSocket, agentDomain: e.Spec.GuestAgentDomain,
	}
	if len(addresses) == 0 {
		w.ignored = "none of its addresses is known to be its own"
	}
	return w
}

// otherGuests are the nodes whose VMs are others than before.
func (c *compiler) otherGuests(before *compiler) map[string]bool {
	other := map[string]bool{}
	for _, name := range union(before.guests.byNode, c.guests.byNode) {
		if !reflect.DeepEqual(before.guests.byNode[name], c.guests.byNode[name]) {
			other[name] = true
		}
	}
	return other
}

// Why settings of sockets do not hold for VMs.
const (
	guestSubflows  = "the guest's kernel opens subflows, not Braid: in the guest, ip mptcp endpoint add … subflow, and ip mptcp limits; or choose manager: Host, with which its node announces ports to it"
	guestUpgrade   = "the guest's sockets are its own: in the guest, use programs that ask for MPTCP, or mptcpize"
	guestTransport = "the guest's sockets are its own: use sysctl in the guest; spec.transport.request alone holds, which its node writes into the guest's acknowledgements"
	guestAccepts   = "what peers ask reaches the guest, whose kernel passes over it: it accepts nothing"
	guestIncast    = "the guest's sockets are its own: no host writes into their acknowledgements"
)

// forGuest takes out of an endpoint what would be configured in a pod, and notes what of
// its policy so does not hold.
func (w *workload) forGuest(e *v1alpha1.PlanEndpoint, winner *compiledPolicy, g *guardrails) {
	switch {
	case w.guest != nil:
		e.Guest = &v1alpha1.PlanGuest{Interface: *w.guest, NotApplied: notForGuests(winner)}
	case w.machine.held:
		e.VirtualMachine = &v1alpha1.PlanVirtualMachine{Held: true, NotApplied: notForGuests(winner)}
	case w.machine.from != "":
		e.VirtualMachine = &v1alpha1.PlanVirtualMachine{}
	}
	if !e.HasGuest() {
		return
	}
	w.useGuestAgent(e, winner, g)
	e.UpgradeSockets, e.Transport, e.Incast = false, askedForGuest(e.Transport), nil
	if e.Subflows.Manager != v1alpha1.SubflowManagerHost {
		e.Subflows = v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerNone, Count: e.Subflows.Count}
	}
}

// ofGuest tells of a VM what holds for it.
func (d *Decision) ofGuest(e *v1alpha1.PlanEndpoint, w *workload) {
	d.NotApplied, d.Subflows, d.Transport, d.TransportBounded = e.NotApplied(), e.Subflows, "", nil
	d.Incast, d.VirtualMachine = "", w.machine.text()
	if e.Transport != nil {
		d.Transport = describeTransport(e.Transport)
	}
}

// askedForGuest is what of transport settings holds for a VM: what its peers are asked for.
func askedForGuest(of *v1alpha1.Transport) *v1alpha1.Transport {
	if of == nil || of.Request == nil {
		return nil
	}
	return &v1alpha1.Transport{Request: of.Request}
}

// transportNotForGuests lists what of transport settings does not.
func transportNotForGuests(of v1alpha1.Transport) (settings []v1alpha1.NotAppliedSetting) {
	accepts := of.Accept != nil
	of.Request, of.Accept = nil, nil
	if of != (v1alpha1.Transport{}) {
		settings = append(settings, v1alpha1.NotAppliedSetting{Setting: "spec.transport", Message: guestTransport})
	}
	if accepts {
		settings = append(settings, v1alpha1.NotAppliedSetting{Setting: "spec.transport.accept", Message: guestAccepts})
	}
	return settings
}

// notForGuests lists what a policy says of sockets. The defaults are no word of its own.
func notForGuests(p *compiledPolicy) (settings []v1alpha1.NotAppliedSetting) {
	for _, block := range p.result.Blocks {
		message := map[string]string{"spec.subflows": guestSubflows, "spec.sockets": guestUpgrade, "spec.incast": guestIncast}[block]
		own := block != "spec.subflows" || p.manager() != v1alpha1.SubflowManagerNone && p.manager() != v1alpha1.SubflowManagerHost
		if p.spec.Sockets.Mode == v1alpha1.SocketModeProxy && (block == "spec.sockets" || block == "spec.subflows") {
			continue // they hold for the connections of the proxy
		}
		if block == "spec.sockets" && !p.spec.Sockets.Upgrade {
			continue // what else they say is the proxy's, or said of the guest agent
		}
		if block == "spec.transport" && p.spec.Transport != nil {
			settings = append(settings, transportNotForGuests(*p.spec.Transport)...)
		}
		if message != "" && own {
			settings = append(settings, v1alpha1.NotAppliedSetting{Setting: block, Message: message})
		}
	}
	return settings
}

// DescribeNotApplied tells settings in a line.
func DescribeNotApplied(settings []v1alpha1.NotAppliedSetting) string {
	texts := make([]string, 0, len(settings))
	for _, s := range settings {
		texts = append(texts, s.Setting+" does not hold for a VM: "+s.Message)
	}
	return strings.Join(texts, "; ")
}
