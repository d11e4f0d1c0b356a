// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OnExceed says what becomes of a hint that asks for more than is allowed.
// +kubebuilder:validation:Enum=Reject;Clamp
type OnExceed string

const (
	// OnExceedReject ignores the annotation as a whole.
	OnExceedReject OnExceed = "Reject"
	// OnExceedClamp keeps what is allowed of it: the paths that may be used, or the
	// highest rate that may be.
	OnExceedClamp OnExceed = "Clamp"
)

// TenantPath is what a tenant may have of one path.
// +kubebuilder:validation:XValidation:rule="has(self.maxRate) || has(self.weight)",message="give maxRate, weight or both"
type TenantPath struct {
	// path is the name of an MPTCPPath.
	// +required
	Path PathName `json:"path"`
	// maxRate is the most that the pods of one namespace send on this path from
	// one node, all together, in bits a second, such as 1G. It is a hard limit for
	// every packet of theirs, whatever the protocol; pods that send at the same
	// time share it fairly.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 8000 : isQuantity(self) && quantity(self).compareTo(quantity('8k')) >= 0",message="must be a quantity of bits a second, 8k or more, such as 100M or 1G"
	// +optional
	MaxRate *resource.Quantity `json:"maxRate,omitempty"`
	// weight says what part of a full path the pods of one namespace get on a node,
	// in relation to the weights of others that want it at that time; those without
	// one have weight 1. It needs the path's capacity.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +optional
	Weight *int32 `json:"weight,omitempty"`
}

// Guardrails are what tenants may do: they hold for the selected pods whichever
// policy wins and whatever the pods' annotations say. Of several guardrails
// that select a pod all hold: only paths that each allows, only hints
// that each lets count, the lowest rates; the weight is that of the first by
// precedence that gives one.
type Guardrails struct {
	// paths are those that the subflows of the pods may be placed on, whichever
	// policy places them and whoever began the connection. Leave it out to allow
	// every path. What is not MPTCP stays on the route of the cluster's network: to
	// bound it there, give that path a ceiling in tenantPaths.
	// +kubebuilder:validation:XValidation:rule="size(self) > 0",message="an empty list would allow no path: leave paths out to allow every path"
	// +kubebuilder:validation:MaxItems=8
	// +listType=set
	// +optional
	Paths []PathName `json:"paths,omitempty"`

	// hints are the annotations that count. Leave it out to let all count; an
	// empty list lets none.
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	// +optional
	Hints *[]Hint `json:"hints,omitempty"`

	// maxPodRate is the most that one pod sends over all paths together, in bits a
	// second, and the most that braid.dev/max-rate may ask for.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 8000 : isQuantity(self) && quantity(self).compareTo(quantity('8k')) >= 0",message="must be a quantity of bits a second, 8k or more, such as 100M or 1G"
	// +optional
	MaxPodRate *resource.Quantity `json:"maxPodRate,omitempty"`

	// tenantPaths are ceilings and weights of each namespace on paths of a node. They
	// need podSelector: {}, because they are for namespaces as a whole.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=path
	// +optional
	TenantPaths []TenantPath `json:"tenantPaths,omitempty"`

	// onExceed is Reject to ignore a hint that asks for more than is allowed, or
	// Clamp to keep what is allowed of it. Either way the pod gets an Event.
	// +kubebuilder:default=Reject
	// +optional
	OnExceed OnExceed `json:"onExceed,omitempty"`

	// spoofCheck says what becomes of packets that a pod sends from addresses
	// that are not its own: Enforce drops them, "Off" lets them pass, for pods that
	// route for others. Quote "Off": YAML reads a bare Off as false.
	// +kubebuilder:default=Enforce
	// +optional
	SpoofCheck SpoofCheck `json:"spoofCheck,omitempty"`

	// transport bounds what spec.transport of policies gives to the pods' sockets.
	// +optional
	Transport *TransportBounds `json:"transport,omitempty"`

	// unparsable says what becomes of packets to and from a pod that may be TCP and
	// whose TCP header rules cannot see: fragments, IPv6 extension headers beyond eight
	// or beyond 256 bytes, routing headers with segments left, IPsec (AH, ESP), headers
	// that are cut off, more than two VLAN tags. Pass lets them pass: no rule holds for
	// them. Drop drops them, so that no rule is avoided by them. What is known to be
	// another protocol passes either way, fragments of UDP included.
	// +kubebuilder:default=Pass
	// +optional
	Unparsable Unparsable `json:"unparsable,omitempty"`

	// newPods says what a pod may do in its first moments, while the node's agent does
	// not know yet which pod an interface belongs to. Pass lets it send as it likes until
	// then. Guard holds what leaves the interface to the lowest rate of all guardrails
	// that guard new pods (maxPodRate, and maxRate of tenantPaths), and drops packets from
	// sources that the node does not route to that interface, unless spoofCheck is "Off"
	// in all of them. It concerns every interface of the node whose other end is in
	// another network namespace and that is not a path's NIC, until the agent has
	// found there a pod that these guardrails select, or one that none of them does:
	// also containers that Kubernetes does not know, for as long as they run.
	// +kubebuilder:default=Pass
	// +optional
	NewPods NewPods `json:"newPods,omitempty"`

	// guestAgent says whether sockets.guestAgent of an MPTCPPolicy counts, which has nodes
	// run a command in its namespace's guests. Of several guardrails that select a VM one
	// must say Allow and none Deny; without any it does not count. Those of a
	// ClusterMPTCPPolicy count unless one says Deny.
	// +optional
	GuestAgent GuestAgentUse `json:"guestAgent,omitempty"`
}

// GuestAgentUse says whether policies may have nodes use the agents in guests.
// +kubebuilder:validation:Enum=Allow;Deny
type GuestAgentUse string

const (
	// GuestAgentAllow lets them.
	GuestAgentAllow GuestAgentUse = "Allow"
	// GuestAgentDeny does not.
	GuestAgentDeny GuestAgentUse = "Deny"
)

// NewPods says what pods may do that a node's agent does not know yet.
// +kubebuilder:validation:Enum=Pass;Guard
type NewPods string

const (
	// NewPodsPass lets them send as they like.
	NewPodsPass NewPods = "Pass"
	// NewPodsGuard guards them before it is known who they are.
	NewPodsGuard NewPods = "Guard"
)

// SpoofCheck says what becomes of packets from addresses not the pod's own.
// +kubebuilder:validation:Enum=Enforce;Off
type SpoofCheck string

const (
	// SpoofCheckEnforce drops them where they enter the node.
	SpoofCheckEnforce SpoofCheck = "Enforce"
	// SpoofCheckOff lets them pass.
	SpoofCheckOff SpoofCheck = "Off"
)

// Unparsable says what becomes of packets whose TCP header rules cannot see.
// +kubebuilder:validation:Enum=Pass;Drop
type Unparsable string

const (
	// UnparsablePass lets them pass; no rule holds for them.
	UnparsablePass Unparsable = "Pass"
	// UnparsableDrop drops them, in both directions.
	UnparsableDrop Unparsable = "Drop"
)

// MPTCPGuardrailSpec says for which pods the guardrails hold.
// +kubebuilder:validation:XValidation:rule="!has(self.newPods) || self.newPods != 'Guard' || has(self.maxPodRate) || has(self.tenantPaths) && self.tenantPaths.exists(p, has(p.maxRate)) || !has(self.spoofCheck) || self.spoofCheck != 'Off'",message="there is nothing to hold new pods to: newPods: Guard needs maxPodRate, a maxRate in tenantPaths, or spoofCheck: Enforce"
// +kubebuilder:validation:XValidation:rule="!has(self.tenantPaths) || (!has(self.podSelector.matchLabels) || size(self.podSelector.matchLabels) == 0) && (!has(self.podSelector.matchExpressions) || size(self.podSelector.matchExpressions) == 0)",message="tenantPaths are for namespaces as a whole: they need podSelector: {}"
type MPTCPGuardrailSpec struct {
	// namespaceSelector selects namespaces by their labels. It must not be empty,
	// so that no policy reaches the system's namespaces by oversight; to mean
	// every namespace, require the label kubernetes.io/metadata.name to exist.
	// +kubebuilder:validation:XValidation:rule="has(self.matchLabels) && size(self.matchLabels) > 0 || has(self.matchExpressions) && size(self.matchExpressions) > 0",message="an empty namespaceSelector is not allowed: give matchLabels or matchExpressions; to select every namespace use {key: kubernetes.io/metadata.name, operator: Exists}"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.key != '' && (e.operator in ['In', 'NotIn'] ? has(e.values) && size(e.values) > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || size(e.values) == 0)))",message="each of matchExpressions needs a key and an operator: In or NotIn with values, or Exists or DoesNotExist without values"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || self.matchLabels.all(k, !format.qualifiedName().validate(k).hasValue() && size(self.matchLabels[k]) <= 63)",message="each key of matchLabels must be a label key such as app or example.com/app, and each value must have at most 63 characters"
	// +required
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`

	// podSelector selects pods of those namespaces by their labels. An empty
	// selector, {}, selects all of them. Pods' labels are the tenants': use {}
	// where a tenant must not get past the guardrail.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.key != '' && (e.operator in ['In', 'NotIn'] ? has(e.values) && size(e.values) > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || size(e.values) == 0)))",message="each of matchExpressions needs a key and an operator: In or NotIn with values, or Exists or DoesNotExist without values"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || self.matchLabels.all(k, !format.qualifiedName().validate(k).hasValue() && size(self.matchLabels[k]) <= 63)",message="each key of matchLabels must be a label key such as app or example.com/app, and each value must have at most 63 characters"
	// +required
	PodSelector metav1.LabelSelector `json:"podSelector"`

	// priority decides whose weight of a path counts where several guardrails give
	// one: that of the highest priority; between equals of the older one, then of the
	// first by name.
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=0
	// +optional
	Priority int32 `json:"priority,omitempty"`

	Guardrails `json:",inline"`
}

// MPTCPGuardrail says what tenants may do: it holds for the pods that it selects,
// whichever policy decides for them. Pods that no policy selects stay as they are,
// within the guardrails.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=mguard,categories=braid
// +kubebuilder:printcolumn:name="Paths",type=string,JSONPath=`.spec.paths`
// +kubebuilder:printcolumn:name="Max-Pod-Rate",type=string,JSONPath=`.spec.maxPodRate`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.podsSelected`
// +kubebuilder:printcolumn:name="Programmed",type=integer,JSONPath=`.status.podsProgrammed`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].reason`
// +kubebuilder:printcolumn:name="Hints",type=string,JSONPath=`.status.conditions[?(@.type=="HintsAccepted")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MPTCPGuardrail struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the guardrail.
	// +required
	Spec MPTCPGuardrailSpec `json:"spec"`
	// status is what became of it.
	// +optional
	Status PolicyStatus `json:"status,omitempty"`
}

// MPTCPGuardrailList is a list of MPTCPGuardrail.
// +kubebuilder:object:root=true
type MPTCPGuardrailList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MPTCPGuardrail `json:"items"`
}
