// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Condition types of policies, paths, nodes and plans. Each is set with the
// generation it was computed from.
const (
	// ConditionAccepted: the spec could be compiled, every path it names exists.
	ConditionAccepted = "Accepted"
	// ConditionRulesAccepted: the policy's rules can work, and are applied to every
	// pod that they are for. Only policies with rules have it. While it is False
	// for anything but TooManyRules, none of the rules is applied to any pod.
	ConditionRulesAccepted = "RulesAccepted"
	// ConditionHintsAccepted: no annotation of the pods that the policy decides for,
	// or guards, is refused. Only policies that decide for pods with annotations
	// have it.
	ConditionHintsAccepted = "HintsAccepted"
	// ConditionEffective: the policy decides for every pod it selects; False
	// when another policy takes precedence for some of them, or keeps some of its
	// rules from ever running.
	ConditionEffective = "Effective"
	// ConditionProgrammed: the datapath of every node concerned carries it out.
	ConditionProgrammed = "Programmed"
	// ConditionSpreading: what the policy's pods send and receive is on several paths.
	// True where that is so for each pod that sends something; False with the reason of
	// most of those for which it is not; Unknown while nothing is sent. Only policies
	// that decide for pods have it.
	ConditionSpreading = "Spreading"
	// ConditionGuestSubflows: on a VM, its kernel opens subflows to what its node
	// announces. Unknown until it was announced something. Only VMs for which a policy with
	// manager: Host decides have it.
	ConditionGuestSubflows = "GuestSubflows"
	// ConditionGuestAgent: on a VM, its guest agent has set its kernel's MPTCP limits. Only
	// VMs of which sockets.guestAgent holds have it.
	ConditionGuestAgent = "GuestAgent"
	// ConditionReady: on a path, every node it selects has a working NIC for it;
	// on a node, its agent reports and its datapath is in order.
	ConditionReady = "Ready"
	// ConditionStartedFromSavedPlan: the node's agent started while the API server
	// could not be reached, from the plan that the last agent had saved; the message
	// says when. Only nodes with such an agent have it, until the next one starts.
	ConditionStartedFromSavedPlan = "StartedFromSavedPlan"
	// ConditionAddressesConfirmed: on a node, every address that its agent reports is
	// confirmed. What is not is used by no other node.
	ConditionAddressesConfirmed = "AddressesConfirmed"
	// ConditionPeersLimited: there are more other nodes than this one can steer to; the
	// message says how many are left out. Only nodes in such a cluster have it.
	ConditionPeersLimited = "PeersLimited"
	// ConditionPlanNotSaved: the agent cannot save what it would start from while the API
	// server cannot be reached; the message says why. Only nodes with such an agent have it.
	ConditionPlanNotSaved = "PlanNotSaved"
)

// Reasons of conditions.
const (
	ReasonAccepted           = "Accepted"
	ReasonPathNotFound       = "PathNotFound"
	ReasonInvalidSelector    = "InvalidSelector"
	ReasonTooManyPaths       = "TooManyPaths"
	ReasonPathNotAllowed     = "PathNotAllowed"
	ReasonCapacityMissing    = "CapacityMissing"
	ReasonInvalidRule        = "InvalidRule"
	ReasonImpossibleMatch    = "ImpossibleMatch"
	ReasonContradictingRules = "ContradictingRules"
	ReasonProgramNotFound    = "ProgramNotFound"
	ReasonTooManyRules       = "TooManyRules"
	ReasonRuleFailed         = "RuleFailed"
	ReasonHintsAccepted      = "HintsAccepted"
	ReasonHintsRefused       = "HintsRefused"
	ReasonEffective          = "Effective"
	ReasonOverridden         = "Overridden"
	ReasonRulesShadowed      = "RulesShadowed"
	ReasonProgrammed         = "Programmed"
	ReasonPending            = "Pending"
	ReasonNoPodsSelected     = "NoPodsSelected"
	ReasonNotSelected        = "NotSelected"
	ReasonEndpointFailed     = "EndpointFailed"
	// ReasonNotForGuests: the policy has settings for sockets, and a VM that it decides for
	// has them not: its sockets are the guest's.
	ReasonNotForGuests       = "SettingsNotForGuests"
	ReasonAgentNotReporting  = "AgentNotReporting"
	ReasonReady              = "Ready"
	ReasonNoNodes            = "NoNodes"
	ReasonInterfaceNotFound  = "InterfaceNotFound"
	ReasonInterfaceDown      = "InterfaceDown"
	ReasonInterfaceNotUsable = "InterfaceNotUsable"
	ReasonPeersUnreachable   = "PeersUnreachable"
	ReasonDatapathFailed     = "DatapathFailed"

	ReasonAPIServerNotReached = "APIServerNotReached"
	ReasonTooManyNodes        = "TooManyNodes"
	ReasonSaveFailed          = "SaveFailed"
)

// Reasons of the condition Spreading, and of the traffic of one endpoint.
const (
	ReasonSpread = "Spread"
	// ReasonPlainTCP: the pod's sockets, or those of its peers, do not speak MPTCP.
	ReasonPlainTCP = "PlainTCP"
	// ReasonUpgradeUnsupported: likewise, and the policy's sockets.upgrade, which would
	// change that, is not in effect on the node.
	ReasonUpgradeUnsupported = "UpgradeUnsupported"
	// ReasonPeerNotSelected: the other ends open, or announce, no further subflow: no
	// policy selects them, or they are outside the cluster.
	ReasonPeerNotSelected = "PeerNotSelected"
	// ReasonOverlayNotSteered: the traffic leaves in packets of a tunnel that is not looked
	// into, or that leads to no known node.
	ReasonOverlayNotSteered = "OverlayNotSteered"
	// ReasonEncryptedOverlay: it leaves in packets that nobody on the way can read.
	ReasonEncryptedOverlay = "EncryptedOverlay"
	// ReasonNoSecondPath: one path alone may and can be used.
	ReasonNoSecondPath = "NoSecondPath"
	// ReasonOnePathUsed: several can be, both ends take part, and one alone is.
	ReasonOnePathUsed = "OnePathUsed"
	// ReasonNotAnswered: nothing that its connections send to other nodes is answered, on any
	// path.
	ReasonNotAnswered = "NotAnswered"
	// ReasonLittleSent: no connection lasted long enough to need a second path.
	ReasonLittleSent = "LittleSent"
	// ReasonNothingSent: nothing was sent to other nodes.
	ReasonNothingSent = "NothingSent"
	// ReasonNotReported: no agent has told yet what the traffic does.
	ReasonNotReported = "NotReported"
)

// Reasons of the condition GuestSubflows.
const (
	ReasonGuestJoins = "GuestJoins"
	// ReasonGuestTakesNoAnnouncements: the guest follows none, as is Linux's default.
	ReasonGuestTakesNoAnnouncements = "GuestTakesNoAnnouncements"
	// ReasonNothingAnnounced: no connection that the guest began has lasted long enough.
	ReasonNothingAnnounced = "NothingAnnounced"
)

// Reasons of the condition GuestAgent.
const (
	// ReasonGuestLimitsSet: the guest's limits are what announcements need.
	ReasonGuestLimitsSet = "GuestLimitsSet"
	// ReasonGuestAgentUnreachable: nothing answers at the guest agent's socket.
	ReasonGuestAgentUnreachable = "GuestAgentUnreachable"
	// ReasonGuestAgentRefused: the guest agent, or the guest, did not do it.
	ReasonGuestAgentRefused = "GuestAgentRefused"
	// ReasonGuestAgentNotAsked: the node's agent has not tried yet.
	ReasonGuestAgentNotAsked = "GuestAgentNotAsked"
)

// Reasons of the condition AddressesConfirmed.
const (
	ReasonConfirmed = "Confirmed"
	// ReasonUnproven: nothing proves an address. On a path without addressRanges it is
	// confirmed for the node that reports it first, elsewhere it is left out.
	ReasonUnproven = "Unproven"
	// ReasonDuplicate: another node has the address.
	ReasonDuplicate = "Duplicate"
	// ReasonOutOfRange: it lies in none of the path's addressRanges.
	ReasonOutOfRange = "OutOfRange"
	// ReasonPodRange: it lies in the pods' range of a Node.
	ReasonPodRange = "PodRange"
	// ReasonNotUnicast: it is no address that one node alone could have.
	ReasonNotUnicast = "NotUnicast"
	// ReasonMalformed: it is no address.
	ReasonMalformed = "Malformed"
	// ReasonNodeNotFound: there is no Node of that name.
	ReasonNodeNotFound = "NodeNotFound"
)

// Limits of the datapath, which the compile keeps.
const (
	// MaxPaths is how many paths one node can use at a time.
	MaxPaths = 8
	// MaxFailingNodes caps the list of failing nodes in a policy's status.
	MaxFailingNodes = 10
)

// AgentLeasePrefix begins the name of the Lease that a node's agent renews;
// the node's name follows.
const AgentLeasePrefix = "braid-agent-"

// Names of the ServiceAccounts of the nodes' agents.
const (
	// AgentAccountPrefix begins the name of the ServiceAccount of a node's agent, and of
	// the roles and bindings that belong to it; the node's name follows.
	AgentAccountPrefix = "braid-agent-"
	// AgentsNamespaceSuffix follows the name of Braid's own namespace in that of the
	// namespace of these ServiceAccounts, which has no others: who may request tokens in it
	// can become no more than an agent.
	AgentsNamespaceSuffix = "-agents"
)

// Reasons of refused hints, in RefusedHint and as reasons of Events on pods.
const (
	ReasonHintMalformed      = "HintMalformed"
	ReasonHintPathNotFound   = "HintPathNotFound"
	ReasonHintPathNotAllowed = "HintPathNotAllowed"
	ReasonHintNotAllowed     = "HintNotAllowed"
	ReasonHintRateTooHigh    = "HintRateTooHigh"
	ReasonHintWithoutPolicy  = "HintWithoutPolicy"
	ReasonHintUnknown        = "HintUnknown"
)
