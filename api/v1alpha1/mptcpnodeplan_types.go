// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PlanPath is a path that exists on the plan's node: how its NIC is found.
type PlanPath struct {
	// name is the name of the MPTCPPath.
	// +required
	Name PathName `json:"name"`
	// interfaces are the path's names and patterns of NICs.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Interfaces []InterfacePattern `json:"interfaces,omitempty"`
	// addressRanges are the path's ranges of addresses.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	AddressRanges []CIDR `json:"addressRanges,omitempty"`
	// underlay is Routed where routers join the path's subnets; empty for Switched.
	// +optional
	Underlay Underlay `json:"underlay,omitempty"`
	// gateway to which packets go that leave the cluster; empty where the node's own routes
	// say it.
	// +kubebuilder:validation:MaxLength=39
	// +optional
	Gateway string `json:"gateway,omitempty"`
	// capacity in bits a second; 0 where the path does not give it.
	// +optional
	Capacity int64 `json:"capacity,omitempty"`
}

// PolicyReference names the policy that decided for an endpoint.
type PolicyReference struct {
	// kind is MPTCPPolicy or ClusterMPTCPPolicy; MPTCPGuardrail where no policy
	// selects the endpoint.
	// +kubebuilder:validation:Enum=MPTCPPolicy;ClusterMPTCPPolicy;MPTCPGuardrail
	// +required
	Kind string `json:"kind"`
	// namespace of a MPTCPPolicy.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the policy.
	// +required
	Name string `json:"name"`
	// generation of the policy that this was compiled from.
	// +required
	Generation int64 `json:"generation"`
}

// PlanSubflows is how an endpoint's connections get their subflows.
type PlanSubflows struct {
	// manager says who opens further subflows.
	// +required
	Manager SubflowManager `json:"manager"`
	// count is the number of subflows of a connection, the first one included.
	// +required
	Count int32 `json:"count"`
	// firstAnnouncedPort is the first port announced with manager: Kernel.
	// +optional
	FirstAnnouncedPort int32 `json:"firstAnnouncedPort,omitempty"`
	// mode says between what further subflows are opened; empty for PerPath.
	// +optional
	Mode SubflowMode `json:"mode,omitempty"`
	// openAfterBytes is how many bytes a connection moves before it gets further
	// subflows with manager: Agent or Host; 0 where bytes do not decide.
	// +optional
	OpenAfterBytes int64 `json:"openAfterBytes,omitempty"`
	// openAfterMillis is how old it is then, in milliseconds; 0 where time does not
	// decide.
	// +optional
	OpenAfterMillis int64 `json:"openAfterMillis,omitempty"`
	// announceAfterBytes and announceAfterMillis are the same for what a listening pod
	// announces with manager: Kernel.
	// +optional
	AnnounceAfterBytes int64 `json:"announceAfterBytes,omitempty"`
	// announceAfterMillis: see announceAfterBytes.
	// +optional
	AnnounceAfterMillis int64 `json:"announceAfterMillis,omitempty"`
	// reopen is Never where closed subflows stay closed; empty for Always.
	// +optional
	Reopen ReopenMode `json:"reopen,omitempty"`
}

// PlanProxy is how the node's proxy goes on with an endpoint's connections.
type PlanProxy struct {
	// subflows of its connections to servers; their manager is Agent.
	// +required
	Subflows PlanSubflows `json:"subflows"`
}

// PlanGuest is what sets a VM apart from a pod: where its interface is, and that its
// sockets are its own.
type PlanGuest struct {
	// interface is how the node finds it.
	// +required
	Interface EndpointInterface `json:"interface"`
	// agentSocket is the socket of its guest agent, below the node's directory of these;
	// empty where the node is not to use it.
	// +kubebuilder:validation:MaxLength=255
	// +optional
	AgentSocket string `json:"agentSocket,omitempty"`
	// agentDomain is the VM's domain in the libvirt whose daemon has that socket; empty where
	// the socket is the guest agent's own.
	// +kubebuilder:validation:MaxLength=255
	// +optional
	AgentDomain string `json:"agentDomain,omitempty"`
	// notApplied lists what of the policy does not hold for a VM.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	NotApplied []NotAppliedSetting `json:"notApplied,omitempty"`
}

// PlanVirtualMachine says of a pod whether it holds a VM.
type PlanVirtualMachine struct {
	// held is true where it does: its connections are the guest's, and nothing is
	// configured in the pod. It is false where the pod's annotation says that it does not.
	// +required
	Held bool `json:"held"`
	// guestAgent is true where the node is to use the VM's guest agent, by the libvirt of the pod.
	// +optional
	GuestAgent bool `json:"guestAgent,omitempty"`
	// notApplied lists what of the policy does not hold for a VM.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	NotApplied []NotAppliedSetting `json:"notApplied,omitempty"`
}

// PlanEndpoint is one pod of the node, or one VM, and what is to be done for it.
type PlanEndpoint struct {
	// uid of the pod or of the VM's MPTCPEndpoint.
	// +required
	UID types.UID `json:"uid"`
	// cgroupUID is the UID in the names of the pod's cgroups, where that is not uid:
	// a static pod's, which is a hash of its manifest.
	// +optional
	CgroupUID types.UID `json:"cgroupUID,omitempty"`
	// namespace of the pod.
	// +required
	Namespace string `json:"namespace"`
	// name of the pod.
	// +required
	Name string `json:"name"`
	// addresses of the pod, IPv4 and IPv6.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=set
	// +required
	Addresses []string `json:"addresses"`
	// policy that decided.
	// +required
	Policy PolicyReference `json:"policy"`
	// paths that the pod may use, with their weights, sorted by name. Empty when
	// its subflows are not spread.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=path
	// +optional
	Paths []PathWeight `json:"paths,omitempty"`
	// outside are ranges of addresses outside of the cluster that the pod's connections are
	// spread to and from as well, sorted.
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	// +optional
	Outside []CIDR `json:"outside,omitempty"`
	// subflows of the pod's connections.
	// +required
	Subflows PlanSubflows `json:"subflows"`
	// upgradeSockets makes the pod's TCP sockets MPTCP sockets.
	// +optional
	UpgradeSockets bool `json:"upgradeSockets,omitempty"`
	// proxy is there when the node's proxy takes the plain TCP connections that the pod or
	// guest begins.
	// +optional
	Proxy *PlanProxy `json:"proxy,omitempty"`
	// transport is what the pod's TCP sockets get. The schema does not describe it a
	// second time: it has passed that of the policies.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Transport *Transport `json:"transport,omitempty"`
	// incast is what the pod's sockets do with peers against incast. The schema does not
	// describe it a second time: it has passed that of the policies.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Incast *Incast `json:"incast,omitempty"`
	// chain is the name of the chain in this plan that the endpoint's packets run
	// through; empty when none does.
	// +optional
	Chain string `json:"chain,omitempty"`
	// preferred are the paths to use while they are good, sorted; those of paths.
	// +kubebuilder:validation:MaxItems=8
	// +listType=set
	// +optional
	Preferred []PathName `json:"preferred,omitempty"`
	// backup are the paths to use while no other can be, sorted; those of paths.
	// +kubebuilder:validation:MaxItems=8
	// +listType=set
	// +optional
	Backup []PathName `json:"backup,omitempty"`
	// preference is when preferred paths are given up; set when preferred is.
	// +optional
	Preference *PlanPreference `json:"preference,omitempty"`
	// hinted lists the annotations that the above come from.
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	// +optional
	Hinted []string `json:"hinted,omitempty"`
	// refusedHints are annotations of the pod that are not followed, or in part.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	RefusedHints []RefusedHint `json:"refusedHints,omitempty"`
	// guard is what guardrails make of the endpoint.
	// +optional
	Guard *PlanGuard `json:"guard,omitempty"`
	// guest is there when this is a VM. Nothing is configured in it: the plan then asks for
	// no upgrade of sockets and no settings of theirs, and its subflows' manager is None.
	// +optional
	Guest *PlanGuest `json:"guest,omitempty"`
	// virtualMachine says whether this pod holds a VM; not there where neither an
	// annotation nor a label of the pod tells. Where it does, the plan asks for no upgrade
	// of sockets and no settings of theirs, and its subflows' manager is None or Host.
	// +optional
	VirtualMachine *PlanVirtualMachine `json:"virtualMachine,omitempty"`
}

// HoldsVirtualMachine is true of a pod that holds a VM.
func (e *PlanEndpoint) HoldsVirtualMachine() bool {
	return e.VirtualMachine != nil && e.VirtualMachine.Held
}

// HasGuest is true where the endpoint's connections are a guest's: of a VM, and of a pod
// that holds one.
func (e *PlanEndpoint) HasGuest() bool { return e.Guest != nil || e.HoldsVirtualMachine() }

// NotApplied lists what of the policy does not hold, because it is for the sockets of pods.
func (e *PlanEndpoint) NotApplied() []NotAppliedSetting {
	switch {
	case e.Guest != nil:
		return e.Guest.NotApplied
	case e.VirtualMachine != nil:
		return e.VirtualMachine.NotApplied
	}
	return nil
}

// PlanChain is a chain that one or more endpoints share.
type PlanChain struct {
	// name is made from the content: equal chains have equal names.
	// +required
	Name string `json:"name"`
	// rules in their order, those of the cluster's policy first. The schema does
	// not describe them a second time: what they are made of has passed that of
	// the policies.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	// +required
	Rules []PlanRule `json:"rules"`
}

// PlanRule is a rule and where it comes from.
type PlanRule struct {
	Rule `json:",inline"`
	// policy is the kind, namespace and name of the policy, as in
	// MPTCPPolicy/team/web: two policies may have rules of the same name.
	// +required
	Policy string `json:"policy"`
}

// PlanProgram is a program that a chain of the plan refers to.
type PlanProgram struct {
	Program `json:",inline"`
	// policy is the name of the ClusterMPTCPPolicy that the program belongs to.
	// +required
	Policy string `json:"policy"`
	// revision changes when the content of the ConfigMap does.
	// +optional
	Revision string `json:"revision,omitempty"`
}

// MPTCPNodePlanSpec is what one node must do; written by the controller. It is
// empty while no policy selects any pod of the cluster and no guardrail guards new
// pods, and then the node's agent attaches nothing. Lists are atomic: one writer has each as a whole.
type MPTCPNodePlanSpec struct {
	// paths that exist on this node, sorted by name.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	Paths []PlanPath `json:"paths,omitempty"`
	// endpoints are the node's pods that a policy selects, sorted by namespace
	// and name.
	// +kubebuilder:validation:MaxItems=1024
	// +listType=atomic
	// +optional
	Endpoints []PlanEndpoint `json:"endpoints,omitempty"`
	// chains that the endpoints refer to, sorted by name.
	// +kubebuilder:validation:MaxItems=1024
	// +listType=atomic
	// +optional
	Chains []PlanChain `json:"chains,omitempty"`
	// programs that the chains refer to, sorted by policy and name.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Programs []PlanProgram `json:"programs,omitempty"`
	// tenants are the namespaces of the endpoints that have ceilings or weights,
	// sorted by namespace.
	// +kubebuilder:validation:MaxItems=1024
	// +listType=atomic
	// +optional
	Tenants []PlanTenant `json:"tenants,omitempty"`
	// newPods is what holds for pods that are not in this plan yet; absent where nothing
	// does.
	// +optional
	NewPods *PlanNewPods `json:"newPods,omitempty"`
}

// EndpointState is how far an endpoint is programmed.
// +kubebuilder:validation:Enum=Programmed;Pending;Failed
type EndpointState string

const (
	// EndpointProgrammed means: the datapath does what the plan says.
	EndpointProgrammed EndpointState = "Programmed"
	// EndpointPending means: the agent waits for something, as the message says.
	EndpointPending EndpointState = "Pending"
	// EndpointFailed means: the agent could not do it and tries again.
	EndpointFailed EndpointState = "Failed"
)

// SocketUpgradeState is what became of spec.sockets.upgrade for an endpoint.
// +kubebuilder:validation:Enum=Active;Unsupported;Failed
type SocketUpgradeState string

const (
	// SocketUpgradeActive means: new TCP sockets of the pod are MPTCP sockets.
	SocketUpgradeActive SocketUpgradeState = "Active"
	// SocketUpgradeUnsupported means: this node's kernel cannot do it.
	SocketUpgradeUnsupported SocketUpgradeState = "Unsupported"
	// SocketUpgradeFailed means: the kernel could, and refused; the message says why.
	SocketUpgradeFailed SocketUpgradeState = "Failed"
)

// RuleStatus is how a rule is carried out for an endpoint.
type RuleStatus struct {
	// policy and name of the rule.
	// +required
	Policy string `json:"policy"`
	// name of the rule.
	// +required
	Name string `json:"name"`
	// failed is true when the rule is not carried out for this endpoint, as the
	// message says.
	// +optional
	Failed bool `json:"failed,omitempty"`
	// mechanism in use where the rule leaves a choice, for example Pace.
	// +optional
	Mechanism string `json:"mechanism,omitempty"`
	// message says why this mechanism, or what the rule cannot do here.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
}

// SpreadingState says whether traffic is spread over several paths.
// +kubebuilder:validation:Enum=Spread;NotSpread;Unknown
type SpreadingState string

const (
	// SpreadingSpread means: what the endpoint sends and receives is on several paths.
	SpreadingSpread SpreadingState = "Spread"
	// SpreadingNotSpread means: it is on one path, or on none of Braid's.
	SpreadingNotSpread SpreadingState = "NotSpread"
	// SpreadingUnknown means: too little was sent to tell.
	SpreadingUnknown SpreadingState = "Unknown"
)

// SpreadingStatus is what an endpoint's traffic does, as its node's agent sees it. It has
// no numbers: it is written when something else is to be said, and not with each byte.
type SpreadingStatus struct {
	// state is Spread, NotSpread or Unknown.
	// +required
	State SpreadingState `json:"state"`
	// reason is one of the condition Spreading, such as PlainTCP.
	// +kubebuilder:validation:MaxLength=64
	// +required
	Reason string `json:"reason"`
	// message explains the reason.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Message string `json:"message,omitempty"`
}

// GuestSubflows is what became of announcements to a VM.
// +kubebuilder:validation:Enum=Joined;NotTaken
type GuestSubflows string

const (
	// GuestJoined means: its kernel opened subflows to what was announced last.
	GuestJoined GuestSubflows = "Joined"
	// GuestNotTaken means: it opened none. Linux follows no announcement by default.
	GuestNotTaken GuestSubflows = "NotTaken"
)

// GuestRemedy is what to do for a guest that takes no announcements.
const GuestRemedy = "the guest's kernel follows no announced port, which is Linux's default: in the guest run " +
	"ip mptcp limits set add_addr_accepted 8 subflows 8, and put it into cloud-init's bootcmd, because it is not kept over a reboot"

// GuestAgentState is what became of a VM's limits by way of its guest agent.
// +kubebuilder:validation:Enum=LimitsSet;Unreachable;Refused
type GuestAgentState string

const (
	// GuestAgentLimitsSet means: the guest's limits are high enough.
	GuestAgentLimitsSet GuestAgentState = "LimitsSet"
	// GuestAgentUnreachable means: nothing answers at the socket.
	GuestAgentUnreachable GuestAgentState = "Unreachable"
	// GuestAgentRefused means: the agent, or the guest, did not do it.
	GuestAgentRefused GuestAgentState = "Refused"
)

// GuestAgentStatus is what a node has done by a VM's guest agent.
type GuestAgentStatus struct {
	// state is LimitsSet, Unreachable or Refused.
	// +required
	State GuestAgentState `json:"state"`
	// message says what is, and what to do.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
}

// EndpointStatus is the result for one endpoint of the plan.
type EndpointStatus struct {
	// uid of the pod.
	// +required
	UID types.UID `json:"uid"`
	// namespace of the pod.
	// +required
	Namespace string `json:"namespace"`
	// name of the pod.
	// +required
	Name string `json:"name"`
	// policyGeneration is the generation of the policy that is programmed.
	// +optional
	PolicyGeneration int64 `json:"policyGeneration,omitempty"`
	// state is Programmed, Pending or Failed.
	// +required
	State EndpointState `json:"state"`
	// hostInterface is the host's end of the pod's interface.
	// +optional
	HostInterface string `json:"hostInterface,omitempty"`
	// socketUpgrade is what became of spec.sockets.upgrade; empty when not asked for.
	// +optional
	SocketUpgrade SocketUpgradeState `json:"socketUpgrade,omitempty"`
	// chain is the name of the chain that the endpoint's packets run through.
	// +optional
	Chain string `json:"chain,omitempty"`
	// rules lists the rules of the chain about which there is something to say.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=policy
	// +listMapKey=name
	// +optional
	Rules []RuleStatus `json:"rules,omitempty"`
	// hints says what became of the pod's annotations and of what its policy
	// prefers.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Hints []HintStatus `json:"hints,omitempty"`
	// spreading is what the endpoint's traffic does, which a state of Programmed does not
	// tell. Not there until the agent has looked.
	// +optional
	Spreading *SpreadingStatus `json:"spreading,omitempty"`
	// unmanagedConnections is how many of the pod's connections keep the subflows that
	// they have, because the pod's share of those that an agent manages is used.
	// +kubebuilder:validation:Minimum=0
	// +optional
	UnmanagedConnections int64 `json:"unmanagedConnections,omitempty"`
	// guestSubflows is what a VM's kernel made of the announcements of its node, with
	// manager: Host; empty while it was announced too little to tell.
	// +optional
	GuestSubflows GuestSubflows `json:"guestSubflows,omitempty"`
	// guestAgent is what became of a VM's limits, with sockets.guestAgent. Not there until
	// the node's agent has tried.
	// +optional
	GuestAgent *GuestAgentStatus `json:"guestAgent,omitempty"`
	// message explains a state that is not Programmed, an upgrade that is not Active,
	// connections that are not managed, or those outside of the cluster that are not spread,
	// and says what to do.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
}

// PlanSummary counts the endpoints of the plan that was applied last. It holds for the plan
// while observedGeneration is the plan's generation and the node's agent reports.
type PlanSummary struct {
	// pods counts those that hold no VM.
	// +kubebuilder:validation:Minimum=0
	// +required
	Pods int32 `json:"pods"`
	// virtualMachines counts those that are no pods.
	// +kubebuilder:validation:Minimum=0
	// +required
	VirtualMachines int32 `json:"virtualMachines"`
	// virtualMachinePods counts the pods that hold a VM.
	// +kubebuilder:validation:Minimum=0
	// +required
	VirtualMachinePods int32 `json:"virtualMachinePods"`
	// noteworthy counts endpoints that are not programmed as the plan asks, VMs that take no
	// announcements, and pods with a VM for which a part of their policy does not hold.
	// +kubebuilder:validation:Minimum=0
	// +required
	Noteworthy int32 `json:"noteworthy"`
	// mptcp counts pods whose sockets speak MPTCP, by those that move most of their bytes.
	// +kubebuilder:validation:Minimum=0
	// +required
	MPTCP int32 `json:"mptcp"`
	// plainTCP counts pods whose sockets speak plain TCP.
	// +kubebuilder:validation:Minimum=0
	// +required
	PlainTCP int32 `json:"plainTCP"`
	// sending counts endpoints that send to other nodes.
	// +kubebuilder:validation:Minimum=0
	// +required
	Sending int32 `json:"sending"`
}

// MPTCPNodePlanStatus is the result of a plan; written by the node's agent.
type MPTCPNodePlanStatus struct {
	// observedGeneration is the generation of the plan that was applied last.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// endpoints are the results, one for each endpoint of that plan.
	// +kubebuilder:validation:MaxItems=1024
	// +listType=atomic
	// +optional
	Endpoints []EndpointStatus `json:"endpoints,omitempty"`
	// endpointsTotal counts the endpoints of the plan that was applied last.
	// +optional
	EndpointsTotal int32 `json:"endpointsTotal"`
	// endpointsProgrammed counts the endpoints that are programmed.
	// +optional
	EndpointsProgrammed int32 `json:"endpointsProgrammed"`
	// summary counts the endpoints by what is to be told of them. Not there where an agent
	// wrote the status that is older than this field.
	// +optional
	Summary *PlanSummary `json:"summary,omitempty"`
	// conditions: Programmed is True when the whole plan is carried out.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MPTCPNodePlan is what the controller compiled for one node. It has the name
// of its Node. Nobody writes it by hand.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=mplan,categories=braid
// +kubebuilder:printcolumn:name="Endpoints",type=integer,JSONPath=`.status.endpointsTotal`
// +kubebuilder:printcolumn:name="Programmed",type=integer,JSONPath=`.status.endpointsProgrammed`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Generation",type=integer,priority=1,JSONPath=`.metadata.generation`
// +kubebuilder:printcolumn:name="Observed",type=integer,priority=1,JSONPath=`.status.observedGeneration`
// +kubebuilder:printcolumn:name="Pods",type=integer,priority=1,JSONPath=`.status.summary.pods`
// +kubebuilder:printcolumn:name="VMs",type=integer,priority=1,JSONPath=`.status.summary.virtualMachines`
// +kubebuilder:printcolumn:name="VMPods",type=integer,priority=1,JSONPath=`.status.summary.virtualMachinePods`
// +kubebuilder:printcolumn:name="Noteworthy",type=integer,priority=1,JSONPath=`.status.summary.noteworthy`
// +kubebuilder:printcolumn:name="MPTCP",type=integer,priority=1,JSONPath=`.status.summary.mptcp`
// +kubebuilder:printcolumn:name="PlainTCP",type=integer,priority=1,JSONPath=`.status.summary.plainTCP`
// +kubebuilder:printcolumn:name="Sending",type=integer,priority=1,JSONPath=`.status.summary.sending`
type MPTCPNodePlan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the node must do.
	// +optional
	Spec MPTCPNodePlanSpec `json:"spec,omitempty"`
	// status is what it did.
	// +optional
	Status MPTCPNodePlanStatus `json:"status,omitempty"`
}

// MPTCPNodePlanList is a list of MPTCPNodePlan.
// +kubebuilder:object:root=true
type MPTCPNodePlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MPTCPNodePlan `json:"items"`
}
