// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PathName is the name of an MPTCPPath.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]+((-+|[.])[a-z0-9]+)*$')",message="must be the name of an MPTCPPath: lower-case letters, digits, '-' and '.', with a letter or digit at the beginning, at the end and beside each '.'"
type PathName string

// SpreadMode says how subflows are placed on paths.
// +kubebuilder:validation:Enum=PerSubflow;None
type SpreadMode string

const (
	// SpreadPerSubflow places the subflows of one connection on different paths.
	SpreadPerSubflow SpreadMode = "PerSubflow"
	// SpreadNone leaves every subflow on the route of the cluster's network.
	SpreadNone SpreadMode = "None"
)

// SubflowManager says who opens the further subflows of a connection.
// +kubebuilder:validation:Enum=Kernel;Agent;Host;None
type SubflowManager string

const (
	// SubflowManagerKernel is the path manager in the pod's kernel stack: the
	// listening pod announces its own address with further ports.
	SubflowManagerKernel SubflowManager = "Kernel"
	// SubflowManagerAgent is the node's agent, through the user-space path
	// manager: it opens subflows from the pod that began the connection, to the
	// port that the connection began with.
	SubflowManagerAgent SubflowManager = "Agent"
	// SubflowManagerHost is the node of a VM that begins a connection, by its packets
	// alone: it announces ports of the VM's peer to the guest, whose kernel opens
	// subflows to them. Only for VMs that an MPTCPEndpoint describes, and pods that hold VMs.
	SubflowManagerHost SubflowManager = "Host"
	// SubflowManagerNone is nobody: the pod's own settings stay as they are.
	SubflowManagerNone SubflowManager = "None"
)

// PathWeight is the share of one path.
type PathWeight struct {
	// path is the name of an MPTCPPath.
	// +required
	Path PathName `json:"path"`
	// weight is the share of this path in relation to the others, 1 to 100.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +required
	Weight int32 `json:"weight"`
}

// OutsideDestination is a place outside of the cluster.
type OutsideDestination struct {
	// cidr is a range of addresses that are outside of the cluster: 198.51.100.0/24,
	// 2001:db8:9::/48; 0.0.0.0/0 is everything outside.
	// +required
	CIDR CIDR `json:"cidr"`
}

// PathRules say which paths the selected pods use and how.
// +kubebuilder:validation:XValidation:rule="!has(self.outside) || !has(self.spread) || self.spread != 'None'",message="outside has no effect with spread: None: remove it or set spread: PerSubflow"
// +kubebuilder:validation:XValidation:rule="!has(self.weights) || !has(self.allowed) || self.weights.all(w, self.allowed.exists(p, p == w.path))",message="weights names a path that allowed does not list: add it to allowed or remove its weight"
// +kubebuilder:validation:XValidation:rule="!has(self.weights) || !has(self.spread) || self.spread != 'None'",message="weights have no effect with spread: None: remove weights or set spread: PerSubflow"
// +kubebuilder:validation:XValidation:rule="!(has(self.preferred) || has(self.backup) || has(self.preference)) || !has(self.spread) || self.spread != 'None'",message="preferred, backup and preference have no effect with spread: None: remove them or set spread: PerSubflow"
// +kubebuilder:validation:XValidation:rule="!has(self.preferred) || !has(self.allowed) || self.preferred.all(p, p in self.allowed)",message="preferred names a path that allowed does not list: add it to allowed or remove it from preferred"
// +kubebuilder:validation:XValidation:rule="!has(self.backup) || !has(self.allowed) || self.backup.all(p, p in self.allowed)",message="backup names a path that allowed does not list: add it to allowed or remove it from backup"
// +kubebuilder:validation:XValidation:rule="!has(self.backup) || !has(self.preferred) || !self.backup.exists(p, p in self.preferred)",message="a path cannot be both preferred and a backup: remove it from one of the lists"
// +kubebuilder:validation:XValidation:rule="!has(self.backup) || !has(self.allowed) || size(self.backup) < size(self.allowed)",message="backup lists every path that allowed does: leave at least one out"
type PathRules struct {
	// allowed lists the paths that the pods may use. Leave it out to allow every
	// path. A name that no MPTCPPath has yet is accepted and reported in the
	// condition Accepted.
	// +kubebuilder:validation:XValidation:rule="size(self) > 0",message="an empty list would allow no path: leave allowed out to allow every path, or set spread: None to use none"
	// +kubebuilder:validation:MaxItems=8
	// +listType=set
	// +optional
	Allowed []PathName `json:"allowed,omitempty"`

	// weights gives paths unequal shares of subflows. A path without a weight has
	// weight 1. Without any weights the capacities of the paths decide.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=path
	// +optional
	Weights []PathWeight `json:"weights,omitempty"`

	// spread is PerSubflow to place the subflows of one connection on different
	// paths, or None to leave them on the route of the cluster's network.
	// +kubebuilder:default=PerSubflow
	// +optional
	Spread SpreadMode `json:"spread,omitempty"`

	// preferred lists the paths that the pods' subflows use while these are as
	// good as preference asks; else they use all paths. A pod's annotation
	// braid.dev/preferred-paths takes its place.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=set
	// +optional
	Preferred []PathName `json:"preferred,omitempty"`

	// backup lists the paths that are used only while none of the others can be.
	// A pod's annotation braid.dev/backup-paths takes its place.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=7
	// +listType=set
	// +optional
	Backup []PathName `json:"backup,omitempty"`

	// preference says how far preferred paths are preferred, whether this policy
	// or a pod's annotation names them.
	// +optional
	Preference *Preference `json:"preference,omitempty"`

	// outside names destinations outside of the cluster to which the pods' connections are
	// spread too, and from which connections to the pods are answered on the paths by which they
	// come. It is for ClusterMPTCPPolicies alone. Packets leave by each path's gateway (see
	// MPTCPPath.spec.gateway) with the source address that the cluster network gives them:
	// routers there must accept that on every path. Without it nothing outside is steered.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=cidr
	// +optional
	Outside []OutsideDestination `json:"outside,omitempty"`
}

// SubflowMode says between what the subflows of a connection are opened.
// +kubebuilder:validation:Enum=PerPath;FullMesh;NDiffPorts
type SubflowMode string

const (
	// SubflowModePerPath opens one subflow for each path, and count of them where
	// count is given.
	SubflowModePerPath SubflowMode = "PerPath"
	// SubflowModeFullMesh opens one for each pair of an address of the pod and an
	// address of its peer, on each path.
	SubflowModeFullMesh SubflowMode = "FullMesh"
	// SubflowModeNDiffPorts opens count subflows between the same two addresses and
	// on the path of the first.
	SubflowModeNDiffPorts SubflowMode = "NDiffPorts"
)

// ReopenMode says whether closed subflows are opened again.
// +kubebuilder:validation:Enum=Always;Never
type ReopenMode string

const (
	// ReopenAlways opens a subflow again that was closed while its connection
	// lasts.
	ReopenAlways ReopenMode = "Always"
	// ReopenNever leaves it closed.
	ReopenNever ReopenMode = "Never"
)

// OpenAfter says when a connection gets its further subflows: as soon as one of
// the conditions holds.
// +kubebuilder:validation:XValidation:rule="has(self.bytes) || has(self.time)",message="give bytes, time or both"
type OpenAfter struct {
	// bytes that the connection has moved, in both directions together, such as
	// 256Ki.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 : isQuantity(self) && quantity(self).compareTo(quantity('1')) >= 0",message="must be a positive quantity of bytes, such as 256Ki"
	// +optional
	Bytes *resource.Quantity `json:"bytes,omitempty"`
	// time since the connection began, such as 500ms; 0s opens subflows at once.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s') && duration(self) <= duration('1h')",message="must be a time from 0s (at once) up to 1h, such as 500ms"
	// +optional
	Time *metav1.Duration `json:"time,omitempty"`
}

// SubflowRules say how many subflows a connection has and who opens them.
// +kubebuilder:validation:XValidation:rule="!has(self.firstAnnouncedPort) || !has(self.manager) || self.manager == 'Kernel'",message="firstAnnouncedPort is for manager: Kernel; with another manager remove it, because no port of the pod is announced"
// +kubebuilder:validation:XValidation:rule="!has(self.count) || !has(self.manager) || self.manager != 'None'",message="count has no effect with manager: None, which opens no subflow: remove it, or choose Kernel or Agent"
// +kubebuilder:validation:XValidation:rule="!has(self.openAfter) || !has(self.manager) || self.manager != 'None'",message="openAfter has no effect with manager: None, which opens no subflow: remove it, or choose Kernel or Agent"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode == 'PerPath' || has(self.manager) && self.manager == 'Agent'",message="modes FullMesh and NDiffPorts need manager: Agent"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'NDiffPorts' || has(self.count)",message="mode NDiffPorts needs count: how many subflows to open between the same two addresses"
// +kubebuilder:validation:XValidation:rule="!has(self.reopen) || self.reopen == 'Always' || !has(self.manager) || self.manager != 'None'",message="reopen has no effect with manager: None, which opens no subflow: remove it, or choose Kernel or Agent"
type SubflowRules struct {
	// manager says who opens further subflows. With Kernel, new connections get
	// them also while the agent is down; the listening pod must be selected by a
	// policy too. With Agent only the pod that begins the connection needs a
	// policy, and no port is announced; while the agent is down, new connections
	// have one subflow. Choose Agent for pods that both listen and connect. Either
	// way closed subflows are opened again while the agent runs. Host is for VMs
	// (MPTCPEndpoint, or pods that hold one, as KubeVirt's do) whose kernel speaks MPTCP: their node announces ports of the
	// peer to the guest, in which ip mptcp limits set add_addr_accepted 8 subflows 8
	// is needed once; for an ordinary pod it fails. None leaves the pods' MPTCP
	// settings as they are, for policies that only give rules.
	// +kubebuilder:default=Kernel
	// +optional
	Manager SubflowManager `json:"manager,omitempty"`

	// count is the number of subflows of a connection, the first one included.
	// Leave it out to have one for each usable path.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8
	// +optional
	Count *int32 `json:"count,omitempty"`

	// firstAnnouncedPort is the first of the ports that a listening pod announces
	// for further subflows with manager: Kernel; the others follow it, without
	// those that are in use. The default is 61001. NetworkPolicies must admit the
	// 16 ports from it on.
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65528
	// +optional
	FirstAnnouncedPort *int32 `json:"firstAnnouncedPort,omitempty"`

	// mode says between what further subflows are opened. FullMesh and NDiffPorts
	// need manager: Agent.
	// +kubebuilder:default=PerPath
	// +optional
	Mode SubflowMode `json:"mode,omitempty"`

	// openAfter keeps a connection on its first subflow until it has proved to be
	// a long one: further subflows cost short flows more than they bring. Leave it
	// out to open them after 256Ki or 500ms, whichever comes first. With manager:
	// Kernel it is the listening pod's policy that decides.
	// +optional
	OpenAfter *OpenAfter `json:"openAfter,omitempty"`

	// reopen is Always to open a subflow again that was closed while its connection
	// lasts, or Never.
	// +kubebuilder:default=Always
	// +optional
	Reopen ReopenMode `json:"reopen,omitempty"`
}

// DefaultFirstAnnouncedPort is the first announced port where a policy gives
// none: just above the kernel's default range of ephemeral ports.
const DefaultFirstAnnouncedPort int32 = 61001

// A connection lasts, where a policy does not say otherwise, once it has moved so many
// bytes or is so old.
const (
	DefaultOpenAfterBytes = 256 << 10
	DefaultOpenAfterTime  = 500 * time.Millisecond
)

// SocketMode is who speaks MPTCP where the sockets of a pod or a guest do not.
// +kubebuilder:validation:Enum=Own;Proxy
type SocketMode string

const (
	// SocketModeOwn means: nobody else, connections are as their sockets open them.
	SocketModeOwn SocketMode = "Own"
	// SocketModeProxy means: the node's proxy, from the pod's own address and port.
	SocketModeProxy SocketMode = "Proxy"
)

// SocketRules say what happens to plain TCP sockets.
// +kubebuilder:validation:XValidation:rule="!(has(self.mode) && self.mode == 'Proxy' && has(self.upgrade) && self.upgrade)",message="mode: Proxy is for sockets that stay plain TCP: leave out upgrade, or the mode"
type SocketRules struct {
	// mode is Own to leave connections to the sockets that open them, or Proxy to have the
	// node take the plain TCP connections that the pod or guest begins, and go on by MPTCP
	// from its own address and port. Proxy is for guests and images that nobody may change.
	// It costs the acknowledgement of the other end, which the node then gives in its place,
	// and its connections break when the node's proxy dies. It needs the chart's
	// proxy.enabled and a kernel of 6.6 or later; without, the endpoint is Pending and its
	// connections are as with Own.
	// +optional
	Mode SocketMode `json:"mode,omitempty"`

	// upgrade makes the TCP sockets that the pods open MPTCP sockets, without a
	// change to the image. It needs a kernel of 6.7 or later; where the kernel
	// cannot, the status of the endpoint says so and sockets stay as they are.
	// +optional
	Upgrade bool `json:"upgrade,omitempty"`

	// guestAgent has the node raise the MPTCP limits of a guest to what manager: Host needs,
	// through QEMU's guest agent: it runs ip mptcp limits in the guest, as root there, and
	// puts back what was before when the policy goes. Linux follows no announcement
	// without that. It is for VMs whose MPTCPEndpoint gives guestAgentSocket, with the
	// chart's agent.guestAgentDirectory, and for KubeVirt's, with agent.podsDirectory. In an MPTCPPolicy it counts where a guardrail that
	// holds for the VM has guestAgent: Allow, and none has Deny. Off by default.
	// +optional
	GuestAgent bool `json:"guestAgent,omitempty"`
}

// PolicyRules are what namespaced and cluster-wide policies have in common.
type PolicyRules struct {
	// priority decides between policies that select the same pod: the highest
	// wins whole; between equals the older one, then the first by name.
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=0
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// paths says which paths the pods use.
	// +kubebuilder:default={}
	// +optional
	Paths PathRules `json:"paths,omitempty"`

	// subflows says how many subflows a connection has and who opens them.
	// +kubebuilder:default={}
	// +optional
	Subflows SubflowRules `json:"subflows,omitempty"`

	// sockets says what happens to plain TCP sockets.
	// +optional
	Sockets SocketRules `json:"sockets,omitempty"`

	// transport gives settings to the pods' own TCP sockets, such as their congestion
	// control or keepalive.
	// +optional
	Transport *Transport `json:"transport,omitempty"`

	// rules are the chain of the selected pods: which packets, and what to do with
	// them. Those of one ClusterMPTCPPolicy run first, also where another policy
	// wins the rest: of those with rules that select the pod, the one of highest
	// priority. Behind them run those of the winner, if it is an MPTCPPolicy.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Rules []Rule `json:"rules,omitempty"`
}

// NodeFailure is one node on which a policy is not carried out.
type NodeFailure struct {
	// node is the name of the node.
	// +required
	Node string `json:"node"`
	// reason is a CamelCase word for the cause.
	// +required
	Reason string `json:"reason"`
	// message explains the cause and names the first endpoint concerned.
	// +optional
	Message string `json:"message,omitempty"`
	// pods is the number of endpoints concerned.
	// +optional
	Pods int32 `json:"pods,omitempty"`
}

// PolicyStatus is what became of a policy; written by the controller.
type PolicyStatus struct {
	// podsSelected is the number of pods that the selectors match and that run.
	// +optional
	PodsSelected int32 `json:"podsSelected"`
	// podsProgrammed is the number of those for which the datapath of their node
	// carries out what this policy decides in its present generation: all of it,
	// or its rules alone where another policy decides the rest.
	// +optional
	PodsProgrammed int32 `json:"podsProgrammed"`
	// failingNodes lists nodes that cannot carry the policy out, at most ten.
	// +kubebuilder:validation:MaxItems=10
	// +listType=map
	// +listMapKey=node
	// +optional
	FailingNodes []NodeFailure `json:"failingNodes,omitempty"`
	// conditions: Accepted, Effective, Programmed, Spreading, with rules RulesAccepted,
	// and for pods with annotations HintsAccepted.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MPTCPPolicySpec is a policy for pods of its own namespace.
// +kubebuilder:validation:XValidation:rule="!has(self.paths) || !has(self.paths.outside)",message="paths.outside of an MPTCPPolicy is not allowed: by which NICs traffic leaves the cluster is for a ClusterMPTCPPolicy"
// +kubebuilder:validation:XValidation:rule="!has(self.rules) || self.rules.all(r, r.actions.all(a, a.type != 'RunProgram'))",message="rules of an MPTCPPolicy cannot have actions of type RunProgram: programs belong to a ClusterMPTCPPolicy"
// +kubebuilder:validation:XValidation:rule="!has(self.rules) || self.rules.all(r, !has(r.match) || !has(r.match.program) && (!has(r.match.all) || r.match.all.all(c, !has(c.program) && (!has(c.all) || c.all.all(d, !has(d.program))) && (!has(c.any) || c.any.all(d, !has(d.program))) && (!has(c.not) || !has(c.not.program)))) && (!has(r.match.any) || r.match.any.all(c, !has(c.program) && (!has(c.all) || c.all.all(d, !has(d.program))) && (!has(c.any) || c.any.all(d, !has(d.program))) && (!has(c.not) || !has(c.not.program)))) && (!has(r.match.not) || !has(r.match.not.program) && (!has(r.match.not.all) || r.match.not.all.all(d, !has(d.program))) && (!has(r.match.not.any) || r.match.not.any.all(d, !has(d.program))) && (!has(r.match.not.not) || !has(r.match.not.not.program))))",message="matches of an MPTCPPolicy cannot have program: programs belong to a ClusterMPTCPPolicy"
// +kubebuilder:validation:XValidation:rule="!has(self.rules) || self.rules.all(r, r.actions.all(a, !has(a.schedule) || a.schedule.strategy == 'EarliestCompletionFirst'))",message="the strategy of a Schedule action in an MPTCPPolicy must be EarliestCompletionFirst: programs belong to a ClusterMPTCPPolicy"
// +kubebuilder:validation:XValidation:rule="!has(self.transport) || !has(self.transport.inactivityTimeout) || !has(self.subflows) || !has(self.subflows.manager) || self.subflows.manager != 'None'",message="transport.inactivityTimeout has no effect with subflows.manager: None, which leaves the pod's MPTCP settings as they are: remove it, or choose Kernel or Agent"
// +kubebuilder:validation:XValidation:rule="!has(self.transport) || !has(self.transport.accept) || !has(self.transport.accept.schedules) && !has(self.transport.accept.minDelayThreshold) || has(self.subflows) && has(self.subflows.manager) && self.subflows.manager == 'Agent'",message="transport.accept.schedules and minDelayThreshold need subflows.manager: Agent, because the kernel's own path manager does not tell apart the subflows of one address"
// +kubebuilder:validation:XValidation:rule="!has(self.sockets) || !has(self.sockets.mode) || self.sockets.mode != 'Proxy' || !has(self.subflows) || !has(self.subflows.manager) || self.subflows.manager in ['Kernel', 'Agent']",message="sockets.mode: Proxy needs subflows.manager: Kernel or Agent: Host is for guests that speak MPTCP, and None opens no subflow"
// +kubebuilder:validation:XValidation:rule="!has(self.sockets) || !has(self.sockets.guestAgent) || !self.sockets.guestAgent || has(self.subflows) && has(self.subflows.manager) && self.subflows.manager == 'Host'",message="sockets.guestAgent needs subflows.manager: Host: it has guests follow what their node announces"
type MPTCPPolicySpec struct {
	// podSelector selects pods of the policy's namespace by their labels. An
	// empty selector, {}, selects all of them.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.key != '' && (e.operator in ['In', 'NotIn'] ? has(e.values) && size(e.values) > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || size(e.values) == 0)))",message="each of matchExpressions needs a key and an operator: In or NotIn with values, or Exists or DoesNotExist without values"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || self.matchLabels.all(k, !format.qualifiedName().validate(k).hasValue() && size(self.matchLabels[k]) <= 63)",message="each key of matchLabels must be a label key such as app or example.com/app, and each value must have at most 63 characters"
	// +required
	PodSelector metav1.LabelSelector `json:"podSelector"`

	PolicyRules `json:",inline"`
}

// MPTCPPolicy says how the MPTCP connections of pods in its namespace use the
// physical paths.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=mpol,categories=braid
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Manager",type=string,JSONPath=`.spec.subflows.manager`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.podsSelected`
// +kubebuilder:printcolumn:name="Programmed",type=integer,JSONPath=`.status.podsProgrammed`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].reason`
// +kubebuilder:printcolumn:name="Spreading",type=string,JSONPath=`.status.conditions[?(@.type=="Spreading")].reason`
// +kubebuilder:printcolumn:name="Preferred",type=string,JSONPath=`.spec.paths.preferred`,priority=1
// +kubebuilder:printcolumn:name="Hints",type=string,JSONPath=`.status.conditions[?(@.type=="HintsAccepted")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MPTCPPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the policy.
	// +required
	Spec MPTCPPolicySpec `json:"spec"`
	// status is what became of it.
	// +optional
	Status PolicyStatus `json:"status,omitempty"`
}

// MPTCPPolicyList is a list of MPTCPPolicy.
// +kubebuilder:object:root=true
type MPTCPPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MPTCPPolicy `json:"items"`
}

// ClusterMPTCPPolicySpec is a policy for pods of several namespaces.
// +kubebuilder:validation:XValidation:rule="!has(self.rules) || self.rules.all(r, r.actions.all(a, !has(a.runProgram) || has(self.programs) && self.programs.exists(b, b.name == a.runProgram.program && (!has(b.type) || b.type == 'Action'))))",message="runProgram.program must be the name of one of spec.programs whose type is Action"
// +kubebuilder:validation:XValidation:rule="!has(self.rules) || self.rules.all(r, !has(r.match) || (!has(r.match.program) || has(self.programs) && self.programs.exists(b, b.name == r.match.program.name && (!has(b.type) || b.type == 'Action'))) && (!has(r.match.all) || r.match.all.all(c, (!has(c.program) || has(self.programs) && self.programs.exists(b, b.name == c.program.name && (!has(b.type) || b.type == 'Action'))) && (!has(c.all) || c.all.all(d, (!has(d.program) || has(self.programs) && self.programs.exists(b, b.name == d.program.name && (!has(b.type) || b.type == 'Action'))))) && (!has(c.any) || c.any.all(d, (!has(d.program) || has(self.programs) && self.programs.exists(b, b.name == d.program.name && (!has(b.type) || b.type == 'Action'))))) && (!has(c.not) || (!has(c.not.program) || has(self.programs) && self.programs.exists(b, b.name == c.not.program.name && (!has(b.type) || b.type == 'Action')))))) && (!has(r.match.any) || r.match.any.all(c, (!has(c.program) || has(self.programs) && self.programs.exists(b, b.name == c.program.name && (!has(b.type) || b.type == 'Action'))) && (!has(c.all) || c.all.all(d, (!has(d.program) || has(self.programs) && self.programs.exists(b, b.name == d.program.name && (!has(b.type) || b.type == 'Action'))))) && (!has(c.any) || c.any.all(d, (!has(d.program) || has(self.programs) && self.programs.exists(b, b.name == d.program.name && (!has(b.type) || b.type == 'Action'))))) && (!has(c.not) || (!has(c.not.program) || has(self.programs) && self.programs.exists(b, b.name == c.not.program.name && (!has(b.type) || b.type == 'Action')))))) && (!has(r.match.not) || (!has(r.match.not.program) || has(self.programs) && self.programs.exists(b, b.name == r.match.not.program.name && (!has(b.type) || b.type == 'Action'))) && (!has(r.match.not.all) || r.match.not.all.all(d, (!has(d.program) || has(self.programs) && self.programs.exists(b, b.name == d.program.name && (!has(b.type) || b.type == 'Action'))))) && (!has(r.match.not.any) || r.match.not.any.all(d, (!has(d.program) || has(self.programs) && self.programs.exists(b, b.name == d.program.name && (!has(b.type) || b.type == 'Action'))))) && (!has(r.match.not.not) || (!has(r.match.not.not.program) || has(self.programs) && self.programs.exists(b, b.name == r.match.not.not.program.name && (!has(b.type) || b.type == 'Action'))))))",message="program.name in a match must be the name of one of spec.programs whose type is Action"
// +kubebuilder:validation:XValidation:rule="!has(self.rules) || self.rules.all(r, r.actions.all(a, !has(a.schedule) || a.schedule.strategy == 'EarliestCompletionFirst' || has(self.programs) && self.programs.exists(b, b.name == a.schedule.strategy && has(b.type) && b.type == 'Schedule')))",message="schedule.strategy must be EarliestCompletionFirst or the name of one of spec.programs whose type is Schedule"
// +kubebuilder:validation:XValidation:rule="!has(self.rules) || !has(self.programs) || self.rules.all(r, r.actions.all(a, !has(a.congestion) || self.programs.all(b, b.name != a.congestion.algorithm || has(b.type) && b.type == 'Congestion')))",message="congestion.algorithm names one of spec.programs whose type is not Congestion"
// +kubebuilder:validation:XValidation:rule="!has(self.transport) || !has(self.transport.inactivityTimeout) || !has(self.subflows) || !has(self.subflows.manager) || self.subflows.manager != 'None'",message="transport.inactivityTimeout has no effect with subflows.manager: None, which leaves the pod's MPTCP settings as they are: remove it, or choose Kernel or Agent"
// +kubebuilder:validation:XValidation:rule="!has(self.transport) || !has(self.transport.accept) || !has(self.transport.accept.schedules) && !has(self.transport.accept.minDelayThreshold) || has(self.subflows) && has(self.subflows.manager) && self.subflows.manager == 'Agent'",message="transport.accept.schedules and minDelayThreshold need subflows.manager: Agent, because the kernel's own path manager does not tell apart the subflows of one address"
// +kubebuilder:validation:XValidation:rule="!has(self.sockets) || !has(self.sockets.mode) || self.sockets.mode != 'Proxy' || !has(self.subflows) || !has(self.subflows.manager) || self.subflows.manager in ['Kernel', 'Agent']",message="sockets.mode: Proxy needs subflows.manager: Kernel or Agent: Host is for guests that speak MPTCP, and None opens no subflow"
// +kubebuilder:validation:XValidation:rule="!has(self.sockets) || !has(self.sockets.guestAgent) || !self.sockets.guestAgent || has(self.subflows) && has(self.subflows.manager) && self.subflows.manager == 'Host'",message="sockets.guestAgent needs subflows.manager: Host: it has guests follow what their node announces"
type ClusterMPTCPPolicySpec struct {
	// namespaceSelector selects namespaces by their labels. It must not be empty,
	// so that no policy reaches the system's namespaces by oversight; to mean
	// every namespace, require the label kubernetes.io/metadata.name to exist.
	// +kubebuilder:validation:XValidation:rule="has(self.matchLabels) && size(self.matchLabels) > 0 || has(self.matchExpressions) && size(self.matchExpressions) > 0",message="an empty namespaceSelector is not allowed: give matchLabels or matchExpressions; to select every namespace use {key: kubernetes.io/metadata.name, operator: Exists}"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.key != '' && (e.operator in ['In', 'NotIn'] ? has(e.values) && size(e.values) > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || size(e.values) == 0)))",message="each of matchExpressions needs a key and an operator: In or NotIn with values, or Exists or DoesNotExist without values"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || self.matchLabels.all(k, !format.qualifiedName().validate(k).hasValue() && size(self.matchLabels[k]) <= 63)",message="each key of matchLabels must be a label key such as app or example.com/app, and each value must have at most 63 characters"
	// +required
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`

	// podSelector selects pods of those namespaces by their labels. An empty
	// selector, {}, selects all of them.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.key != '' && (e.operator in ['In', 'NotIn'] ? has(e.values) && size(e.values) > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || size(e.values) == 0)))",message="each of matchExpressions needs a key and an operator: In or NotIn with values, or Exists or DoesNotExist without values"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || self.matchLabels.all(k, !format.qualifiedName().validate(k).hasValue() && size(self.matchLabels[k]) <= 63)",message="each key of matchLabels must be a label key such as app or example.com/app, and each value must have at most 63 characters"
	// +required
	PodSelector metav1.LabelSelector `json:"podSelector"`

	// programs are compiled BPF objects of the admin's own that the rules refer to.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	Programs []Program `json:"programs,omitempty"`

	// incast is for pods that many others send to at the same time, and for these
	// others: it keeps them from overrunning the receiver's NIC. Off by default.
	// +optional
	Incast *Incast `json:"incast,omitempty"`

	PolicyRules `json:",inline"`
}

// ClusterMPTCPPolicy says how the MPTCP connections of pods in several
// namespaces use the physical paths.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cmpol,categories=braid
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Manager",type=string,JSONPath=`.spec.subflows.manager`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.podsSelected`
// +kubebuilder:printcolumn:name="Programmed",type=integer,JSONPath=`.status.podsProgrammed`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].reason`
// +kubebuilder:printcolumn:name="Spreading",type=string,JSONPath=`.status.conditions[?(@.type=="Spreading")].reason`
// +kubebuilder:printcolumn:name="Hints",type=string,JSONPath=`.status.conditions[?(@.type=="HintsAccepted")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterMPTCPPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the policy.
	// +required
	Spec ClusterMPTCPPolicySpec `json:"spec"`
	// status is what became of it.
	// +optional
	Status PolicyStatus `json:"status,omitempty"`
}

// ClusterMPTCPPolicyList is a list of ClusterMPTCPPolicy.
// +kubebuilder:object:root=true
type ClusterMPTCPPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterMPTCPPolicy `json:"items"`
}
