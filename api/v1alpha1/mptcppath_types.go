// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// InterfacePattern is the name of a network interface, or a shell pattern
// (`*`, `?`) that matches such names: `eth1`, `ens*f0`.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=15
// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.*?-]+$')",message="an interface name or pattern may hold letters, digits, '_', '.', '-', and the wildcards '*' and '?'"
type InterfacePattern string

// CIDR is a range of IPv4 or IPv6 addresses: `192.0.2.0/24`, `2001:db8::/64`.
// +kubebuilder:validation:MinLength=3
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="must be an address range such as 192.0.2.0/24 or 2001:db8::/64"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self) == cidr(self).masked()",message="must begin with the first address of the range, as 192.0.2.0/24 does and 192.0.2.17/24 does not"
type CIDR string

// Underlay says how the NICs of a path reach each other.
// +kubebuilder:validation:Enum=Switched;Routed
type Underlay string

const (
	// UnderlaySwitched means: all NICs of the path are neighbours on one link.
	UnderlaySwitched Underlay = "Switched"
	// UnderlayRouted means: routers join the subnets in which the NICs are.
	UnderlayRouted Underlay = "Routed"
)

// MPTCPPathSpec says which NICs of which nodes form one physical plane.
// A NIC belongs to the path when its name matches one of interfaces, or one of
// its addresses lies in one of addressRanges; when both are given, it must
// satisfy both. If several NICs of a node qualify, the first by name is used.
// +kubebuilder:validation:XValidation:rule="has(self.interfaces) || has(self.addressRanges)",message="name the NICs of the path: set interfaces, addressRanges or both"
// +kubebuilder:validation:XValidation:rule="!has(self.underlay) || self.underlay != 'Routed' || has(self.addressRanges)",message="a Routed path needs addressRanges, those of its NICs in all subnets: nothing is sent over routers to other addresses"
type MPTCPPathSpec struct {
	// nodeSelector limits the path to the nodes with these labels. Leave it out
	// to mean every node.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.key != '' && (e.operator in ['In', 'NotIn'] ? has(e.values) && size(e.values) > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || size(e.values) == 0)))",message="each of matchExpressions needs a key and an operator: In or NotIn with values, or Exists or DoesNotExist without values"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || self.matchLabels.all(k, !format.qualifiedName().validate(k).hasValue() && size(self.matchLabels[k]) <= 63)",message="each key of matchLabels must be a label key such as app or example.com/app, and each value must have at most 63 characters"
	// +kubebuilder:validation:XValidation:rule="has(self.matchLabels) && size(self.matchLabels) > 0 || has(self.matchExpressions) && size(self.matchExpressions) > 0",message="an empty nodeSelector is not allowed: leave nodeSelector out to mean every node, or give matchLabels or matchExpressions"
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// interfaces are names of NICs, or patterns with `*` and `?`. For a VLAN,
	// name the VLAN's own interface.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	// +optional
	Interfaces []InterfacePattern `json:"interfaces,omitempty"`

	// addressRanges are CIDRs: a NIC with an address in one of them qualifies. They also
	// prove that an address which a node's agent reports on the path may be the node's:
	// without a range of its family, whichever node reports it first has it. Give those
	// of the NICs, of both families, and leave routers out.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	// +optional
	AddressRanges []CIDR `json:"addressRanges,omitempty"`

	// underlay says how the path's NICs reach each other. Switched, the default: all are
	// neighbours on one link. Routed: routers join the subnets in which they are, as where
	// each rack has its own. On a Routed path packets of overlays (VXLAN, Geneve, IP in IP)
	// go to the other node's address on the path, by the routes that this node has for
	// its NIC; they arrive as the overlay sent them, between the InternalIPs of the nodes.
	// What is routed natively goes there in a header of Braid's own, of UDP to port 8478, where
	// pods have addresses of their Nodes' podCIDRs, and else between neighbours alone.
	// +kubebuilder:default=Switched
	// +optional
	Underlay Underlay `json:"underlay,omitempty"`

	// gateway is the address of the router to which packets of this path go that leave the
	// cluster, for pods whose policy names destinations outside (spec.paths.outside). It is
	// on the link of the path's NICs. Without it, and for the other version of IP, each
	// node takes the router that its own routes have for its NIC and address there, as
	// ip route get DESTINATION from ADDRESS oif NIC says.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an IP address such as 192.0.2.1 or 2001:db8::1"
	// +optional
	Gateway string `json:"gateway,omitempty"`

	// capacity is the rate of one NIC of the path in bits a second, such as 10G.
	// Policies that give no weights share subflows out by it; a path without
	// capacity counts like the smallest one that is given.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 : isQuantity(self) && quantity(self).compareTo(quantity('1')) >= 0",message="must be a positive quantity of bits a second, such as 100M or 10G"
	// +optional
	Capacity *resource.Quantity `json:"capacity,omitempty"`

	// bottleneckGroup is a name that paths have in common which run over the same
	// link somewhere. A connection uses only one path of a group: of those that it
	// may use, the one with the most capacity. The others are backups, for when no
	// other path can be used.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	BottleneckGroup string `json:"bottleneckGroup,omitempty"`
}

// MPTCPPathStatus says where the path exists.
type MPTCPPathStatus struct {
	// nodes is the number of nodes that have a NIC on this path.
	// +optional
	Nodes int32 `json:"nodes"`
	// nodesUp is the number of nodes whose NIC on this path is up.
	// +optional
	NodesUp int32 `json:"nodesUp"`
	// conditions: Ready is True when every selected node has a working NIC, and its
	// probes over the path are answered.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MPTCPPath is one physical plane through the cluster; on a node it is one NIC.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=mpath,categories=braid
// +kubebuilder:printcolumn:name="Interfaces",type=string,JSONPath=`.spec.interfaces`
// +kubebuilder:printcolumn:name="Ranges",type=string,JSONPath=`.spec.addressRanges`,priority=1
// +kubebuilder:printcolumn:name="Underlay",type=string,JSONPath=`.spec.underlay`,priority=1
// +kubebuilder:printcolumn:name="Capacity",type=string,JSONPath=`.spec.capacity`,priority=1
// +kubebuilder:printcolumn:name="Bottleneck",type=string,JSONPath=`.spec.bottleneckGroup`,priority=1
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Up",type=integer,JSONPath=`.status.nodesUp`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name of a path must be no longer than 63 characters, because policies name it"
type MPTCPPath struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says which NICs form the path.
	// +required
	Spec MPTCPPathSpec `json:"spec"`
	// status says where the path exists; written by the controller.
	// +optional
	Status MPTCPPathStatus `json:"status,omitempty"`
}

// MPTCPPathList is a list of MPTCPPath.
// +kubebuilder:object:root=true
type MPTCPPathList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MPTCPPath `json:"items"`
}
