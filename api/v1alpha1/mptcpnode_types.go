// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AddressProof says why an address is taken for a node's own.
// +kubebuilder:validation:Enum=Node;Range;FirstClaim
type AddressProof string

const (
	// AddressProofNode means: the Node has the address in its status.addresses.
	AddressProofNode AddressProof = "Node"
	// AddressProofRange means: it lies in one of the path's addressRanges.
	AddressProofRange AddressProof = "Range"
	// AddressProofFirstClaim means: nothing proves it, because the path has no
	// addressRanges of its family. The node was the first to report it.
	AddressProofFirstClaim AddressProof = "FirstClaim"
)

// ConfirmedAddress is an address that is a node's own.
type ConfirmedAddress struct {
	// address is an IPv4 or IPv6 address in its canonical form.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=45
	// +required
	Address string `json:"address"`
	// path is the MPTCPPath on which the node has it; empty for an address that is
	// on none.
	// +optional
	Path PathName `json:"path,omitempty"`
	// proof says why it is taken for the node's own: Node, because the Node has it in
	// its status; Range, because it lies in the path's addressRanges; FirstClaim,
	// because the node was the first to report it, on a path without addressRanges.
	// +required
	Proof AddressProof `json:"proof"`
}

// MPTCPNodeSpec is what the controller confirms of what a node's agent reports.
type MPTCPNodeSpec struct {
	// confirmed are the addresses that are the node's own. Other nodes send to no
	// other for it, and take no other next hop of a route for it.
	// +kubebuilder:validation:MaxItems=192
	// +listType=atomic
	// +required
	Confirmed []ConfirmedAddress `json:"confirmed"`
	// podRanges are the addresses of the node's pods, by which other nodes know whose a pod is
	// that is behind a router: the Node's spec.podCIDRs, and what its pods have beside these.
	// The longest range of all nodes that has an address counts.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=49
	// +listType=atomic
	// +optional
	PodRanges []string `json:"podRanges,omitempty"`
	// podsLeftOut are how many addresses of the node's pods are in none of podRanges.
	// +optional
	PodsLeftOut int32 `json:"podsLeftOut,omitempty"`
}

// LinkState is the state of a NIC.
// +kubebuilder:validation:Enum=Up;Down
type LinkState string

const (
	// LinkUp means: the NIC is set up and has a carrier.
	LinkUp LinkState = "Up"
	// LinkDown means: the NIC is set down, has no carrier, or is not there.
	LinkDown LinkState = "Down"
)

// NodePath is a node's NIC on one path.
type NodePath struct {
	// name is the name of the MPTCPPath.
	// +required
	Name PathName `json:"name"`
	// interface is the name of the NIC; empty while the node has none.
	// +optional
	Interface string `json:"interface,omitempty"`
	// addresses are the NIC's global addresses, IPv4 and IPv6: where other nodes
	// send packets for this node on this path, once they are confirmed.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=45
	// +listType=set
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// gateways are the routers to which packets of this path go that leave the cluster for
	// destinations that a policy names (spec.paths.outside), those that answer.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=45
	// +listType=set
	// +optional
	Gateways []string `json:"gateways,omitempty"`
	// encapsulated is the number of other nodes for which Braid encapsulates natively routed
	// packets of pods, because routers lead there. Only on a Routed path.
	// +optional
	Encapsulated int32 `json:"encapsulated,omitempty"`
	// state is Up or Down.
	// +required
	State LinkState `json:"state"`
	// message says why the path cannot be used here.
	// +optional
	Message string `json:"message,omitempty"`
	// peersProbed is the number of other nodes that this node probes on the path,
	// and peersAlive that of those that answer.
	// +optional
	PeersProbed int32 `json:"peersProbed,omitempty"`
	// peersAlive is the number of probed nodes that answer on this path.
	// +optional
	PeersAlive int32 `json:"peersAlive,omitempty"`
	// medianRTTMicros is the median over those of the smoothed round-trip time, in
	// microseconds, rounded to two digits.
	// +optional
	MedianRTTMicros int64 `json:"medianRTTMicros,omitempty"`
	// lossPercent is the share of probes lost lately.
	// +optional
	LossPercent int32 `json:"lossPercent,omitempty"`
	// unreachable lists probed nodes that do not answer on this path, at most ten.
	// +kubebuilder:validation:MaxItems=10
	// +listType=set
	// +optional
	Unreachable []string `json:"unreachable,omitempty"`
	// largePacketsLost lists those of unreachable that answer small probes on this path, and
	// none as large as the pods' packets, which they answer on other paths: a switch or router
	// on the way has a smaller MTU than the NICs.
	// +kubebuilder:validation:MaxItems=10
	// +listType=set
	// +optional
	LargePacketsLost []string `json:"largePacketsLost,omitempty"`
	// distantTo lists nodes to which a packet and its answer take much longer by the path than by
	// others, as it is longer or something fills it, at most ten: connections to their pods begin by
	// others, and go by these while they move little.
	// +kubebuilder:validation:MaxItems=10
	// +listType=set
	// +optional
	DistantTo []string `json:"distantTo,omitempty"`
	// xdp says whether rules that only drop act at the NIC's XDP hook, before the kernel
	// makes anything of a frame; absent while agent.xdp is Off.
	// +optional
	XDP *NodePathXDP `json:"xdp,omitempty"`
}

// XDPState says where rules that only drop act on what comes in by a NIC.
// +kubebuilder:validation:Enum=Native;XDPUnsupported;XDPOccupied;XDPFailed
type XDPState string

const (
	// XDPNative is at the NIC's XDP hook, as far as a packet alone tells what the rules decide.
	XDPNative XDPState = "Native"
	// XDPUnsupported is at TC, because the NIC's driver runs no programs at that hook.
	XDPUnsupported XDPState = "XDPUnsupported"
	// XDPOccupied is at TC, because the hook has another program, which is left alone.
	XDPOccupied XDPState = "XDPOccupied"
	// XDPFailed is at TC, for the reason in the message.
	XDPFailed XDPState = "XDPFailed"
)

// NodePathXDP is what became of agent.xdp: Native at one NIC.
type NodePathXDP struct {
	// state is Native where the NIC's XDP hook has Braid's program. With any other state
	// rules act at TC, as they do with agent.xdp: Off.
	// +required
	State XDPState `json:"state"`
	// message says why the NIC's XDP hook is not used.
	// +kubebuilder:validation:MaxLength=1000
	// +optional
	Message string `json:"message,omitempty"`
}

// Unreached names nodes of Unreachable, and says of those to which large packets alone are lost
// that it is so.
func (p *NodePath) Unreached(peers []string) []string {
	named := slices.Clone(peers)
	for i, peer := range named {
		if slices.Contains(p.LargePacketsLost, peer) {
			named[i] += " (only large packets are lost: look at the MTU of switches)"
		}
	}
	return named
}

// Usable is false of a NIC that is up and to which others send nothing all the same: it has
// no address, or packets would not fit. Its agent publishes no addresses of it and says why.
func (p *NodePath) Usable() bool {
	return p.State == LinkUp && (len(p.Addresses) > 0 || p.Message == "")
}

// KernelFeature is something that Braid can use where the kernel has it.
type KernelFeature struct {
	// name of the feature: TCX, SocketUpgrade, UserspacePathManager.
	// +required
	Name string `json:"name"`
	// supported is true when the kernel has it.
	// +required
	Supported bool `json:"supported"`
	// message says what is missing and what is used instead.
	// +optional
	Message string `json:"message,omitempty"`
}

// NodeOverlay is a device of a node that puts packets into others.
type NodeOverlay struct {
	// device is the name of the interface.
	// +kubebuilder:validation:MaxLength=15
	Device string `json:"device"`
	// kind is how packets are put into others: VXLAN, Geneve, IPInIP, Encrypted, or
	// Unknown.
	// +kubebuilder:validation:MaxLength=16
	Kind string `json:"kind"`
	// port is the UDP port that they go to.
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`
	// steered: connections within are spread over the paths.
	Steered bool `json:"steered"`
}

// MPTCPNodeStatus is who a node is to the others; written by its agent.
type MPTCPNodeStatus struct {
	// kernelRelease is the node's kernel, as `uname -r` prints it.
	// +optional
	KernelRelease string `json:"kernelRelease,omitempty"`
	// agentVersion is the version of the agent that wrote this.
	// +optional
	AgentVersion string `json:"agentVersion,omitempty"`
	// addresses are all addresses by which routes of other nodes may name this
	// node as next hop, once they are confirmed.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=45
	// +listType=set
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// paths are the node's NICs, one for each path.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	Paths []NodePath `json:"paths,omitempty"`
	// overlays are the node's devices that put packets into others.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=device
	// +optional
	Overlays []NodeOverlay `json:"overlays,omitempty"`
	// encapsulationKey is what packets of pods bear that other nodes encapsulate for this one,
	// over routers of Routed paths: it decapsulates nothing else. Absent where it decapsulates
	// nothing. Whoever may read it can send to pods here as other pods do, if
	// he can send with a node's address on such a path.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	EncapsulationKey string `json:"encapsulationKey,omitempty"`
	// pathsTotal counts the paths that the node is to have.
	// +optional
	PathsTotal int32 `json:"pathsTotal"`
	// pathsUp counts those that can be used now.
	// +optional
	PathsUp int32 `json:"pathsUp"`
	// features are kernel features that Braid can use.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Features []KernelFeature `json:"features,omitempty"`
	// conditions: Ready is True while the agent reports and its datapath works;
	// AddressesConfirmed is True while every address that it reports is the node's;
	// StartedFromSavedPlan says of an agent that started without the API server when
	// that was, and when it reached it; PeersLimited of one in a cluster with more
	// nodes than it can steer to how many are left out; PlanNotSaved of one that cannot
	// save what it would start from without the API server why.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MPTCPNode is what the agents know of each other's nodes. It has the name of
// its Node and is small, because every agent watches all of them.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=mnode,categories=braid
// +kubebuilder:printcolumn:name="Kernel",type=string,JSONPath=`.status.kernelRelease`
// +kubebuilder:printcolumn:name="Paths",type=integer,JSONPath=`.status.pathsTotal`
// +kubebuilder:printcolumn:name="Up",type=integer,JSONPath=`.status.pathsUp`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Confirmed",type=string,JSONPath=`.status.conditions[?(@.type=="AddressesConfirmed")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MPTCPNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the controller confirms, and nobody else writes. It is missing
	// while no controller has judged what the agent reports.
	// +optional
	Spec *MPTCPNodeSpec `json:"spec,omitempty"`
	// status is who the node is, as its agent says.
	// +optional
	Status MPTCPNodeStatus `json:"status,omitempty"`
}

// MPTCPNodeList is a list of MPTCPNode.
// +kubebuilder:object:root=true
type MPTCPNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MPTCPNode `json:"items"`
}
