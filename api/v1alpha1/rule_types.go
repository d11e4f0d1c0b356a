// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

// What one endpoint's chain can hold, the rules of the cluster's policy and
// those of the pod's own together.
const (
	MaxRules   = 64
	MaxActions = 128
	// MaxSelectors counts each selector once, each port or range of ports once, a
	// pair of addresses four times and a subflow eight times.
	MaxSelectors = 256
)

// Rule is one link of a chain: which packets, and what to do with them. The
// rules of a chain run in their order; every rule that matches acts, until one
// drops the packet or resets the subflow.
// +kubebuilder:validation:XValidation:rule="!has(self.match) || !self.actions.exists(a, has(a.schedule)) || !has(self.match.packetTypes) && !has(self.match.sequence) && !has(self.match.sent)",message="Schedule is for connections: the match of its rule cannot have packetTypes, sequence or sent, which select some of their packets"
// +kubebuilder:validation:XValidation:rule="!has(self.match) || !has(self.match.program) || !self.actions.exists(a, has(a.schedule))",message="Schedule is for connections: the match of its rule cannot have program, which answers for each packet"
// +kubebuilder:validation:XValidation:rule="!has(self.match) || !self.actions.exists(a, has(a.schedule) && a.schedule.strategy != 'EarliestCompletionFirst')",message="a Schedule action with a program schedules every connection of the pods: leave match out"
// +kubebuilder:validation:XValidation:rule="!has(self.match) || !has(self.match.direction) || self.match.direction != 'ToEndpoint' || !self.actions.exists(a, has(a.schedule) && (!has(a.at) || a.at != 'Peer'))",message="Schedule distributes what the pod sends: the match of its rule cannot have direction ToEndpoint"
// +kubebuilder:validation:XValidation:rule="!has(self.match) || !has(self.match.direction) || self.match.direction != 'FromEndpoint' || !self.actions.exists(a, a.type in ['RateLimit', 'Schedule'] && has(a.at) && a.at == 'Peer')",message="RateLimit and Schedule with at: Peer are for what the pod receives: the match of its rule cannot have direction FromEndpoint"
type Rule struct {
	// name of the rule, unique in its policy; counters and messages use it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`

	// match says which packets; leave it out for every TCP packet of the pod.
	// +optional
	Match *Match `json:"match,omitempty"`

	// actions are carried out in their order.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="['SetBackup', 'SuppressAddAddr', 'ReleaseAddAddr', 'ReportConnection', 'ReportSubflow', 'Record', 'Schedule', 'Congestion'].all(t, self.filter(a, a.type == t).size() <= 1)",message="a rule may have each type of action once; only RateLimit, with different values of per, and RunProgram may be there several times"
	// +kubebuilder:validation:XValidation:rule="['Subflow', 'Connection', 'Endpoint'].all(p, self.filter(a, a.type == 'RateLimit' && has(a.rateLimit) && (has(a.rateLimit.per) ? a.rateLimit.per : 'Subflow') == p).size() <= 1)",message="a rule may have one RateLimit for each value of per: Subflow, Connection and Endpoint"
	// +kubebuilder:validation:XValidation:rule="!(self.exists(a, a.type == 'SuppressAddAddr') && self.exists(a, a.type == 'ReleaseAddAddr'))",message="SuppressAddAddr and ReleaseAddAddr contradict each other: put them into rules with different matches"
	// +kubebuilder:validation:XValidation:rule="!(self.exists(a, a.type == 'Drop') && self.exists(a, a.type == 'Reset'))",message="Drop and Reset contradict each other: use one of them"
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, a.type == 'Drop' || a.type == 'Reset') || (self[self.size() - 1].type in ['Drop', 'Reset'] && self.filter(a, a.type == 'Drop' || a.type == 'Reset').size() == 1)",message="Drop or Reset must be the last action of its rule, because nothing runs after it"
	// +listType=atomic
	// +required
	Actions []Action `json:"actions"`
}

// Match is a condition on packets: everything that is given must hold. With
// all, any and not conditions are combined, two levels deep.
// +kubebuilder:validation:XValidation:rule="has(self.token) || has(self.subflow) || has(self.addressPair) || has(self.source) || has(self.destination) || has(self.direction) || has(self.packetTypes) || has(self.paths) || has(self.sequence) || has(self.sent) || has(self.backup) || has(self.program) || has(self.all) || has(self.any) || has(self.not)",message="an empty match is not allowed: leave match out to mean every packet, or give at least one selector, all, any or not"
type Match struct {
	Selectors `json:",inline"`

	// all holds when each of these conditions holds.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	All []NestedMatch `json:"all,omitempty"`
	// any holds when at least one of these conditions holds.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Any []NestedMatch `json:"any,omitempty"`
	// not holds when this condition does not.
	// +optional
	Not *NestedMatch `json:"not,omitempty"`
}

// NestedMatch is a condition inside another.
// +kubebuilder:validation:XValidation:rule="has(self.token) || has(self.subflow) || has(self.addressPair) || has(self.source) || has(self.destination) || has(self.direction) || has(self.packetTypes) || has(self.paths) || has(self.sequence) || has(self.sent) || has(self.backup) || has(self.program) || has(self.all) || has(self.any) || has(self.not)",message="an empty condition is not allowed: give at least one selector, all, any or not, or remove it"
type NestedMatch struct {
	Selectors `json:",inline"`

	// all holds when each of these conditions holds.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:items:XValidation:rule="has(self.token) || has(self.subflow) || has(self.addressPair) || has(self.source) || has(self.destination) || has(self.direction) || has(self.packetTypes) || has(self.paths) || has(self.sequence) || has(self.sent) || has(self.backup) || has(self.program)",message="an empty condition is not allowed: give at least one selector, or remove it"
	All []Selectors `json:"all,omitempty"`
	// any holds when at least one of these conditions holds.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:items:XValidation:rule="has(self.token) || has(self.subflow) || has(self.addressPair) || has(self.source) || has(self.destination) || has(self.direction) || has(self.packetTypes) || has(self.paths) || has(self.sequence) || has(self.sent) || has(self.backup) || has(self.program)",message="an empty condition is not allowed: give at least one selector, or remove it"
	Any []Selectors `json:"any,omitempty"`
	// not holds when this condition does not.
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.token) || has(self.subflow) || has(self.addressPair) || has(self.source) || has(self.destination) || has(self.direction) || has(self.packetTypes) || has(self.paths) || has(self.sequence) || has(self.sent) || has(self.backup) || has(self.program)",message="an empty condition is not allowed: give at least one selector, or remove it"
	Not *Selectors `json:"not,omitempty"`
}

// Direction of a packet as its endpoint sees it.
// +kubebuilder:validation:Enum=FromEndpoint;ToEndpoint
type Direction string

const (
	// DirectionFromEndpoint is what the pod sends.
	DirectionFromEndpoint Direction = "FromEndpoint"
	// DirectionToEndpoint is what the pod receives.
	DirectionToEndpoint Direction = "ToEndpoint"
)

// PacketType is a kind of TCP segment; a segment may be of several kinds.
// +kubebuilder:validation:Enum=SYN;MPCapable;MPJoin;DSS;Data;PureACK;DataACK;AddAddr;AddAddrEcho;RemoveAddr;MPPrio;MPFail;FastClose;Reset;FIN
type PacketType string

// The kinds of segments (RFC 9293 and RFC 8684).
const (
	PacketSYN         PacketType = "SYN"         // SYN flag, also with ACK
	PacketMPCapable   PacketType = "MPCapable"   // carries MP_CAPABLE
	PacketMPJoin      PacketType = "MPJoin"      // carries MP_JOIN
	PacketDSS         PacketType = "DSS"         // carries a DSS option
	PacketData        PacketType = "Data"        // has payload
	PacketPureACK     PacketType = "PureACK"     // ACK alone: no payload, no SYN, FIN or RST
	PacketDataACK     PacketType = "DataACK"     // DSS with a data ACK
	PacketAddAddr     PacketType = "AddAddr"     // ADD_ADDR, not an echo
	PacketAddAddrEcho PacketType = "AddAddrEcho" // ADD_ADDR with the echo flag
	PacketRemoveAddr  PacketType = "RemoveAddr"
	PacketMPPrio      PacketType = "MPPrio"
	PacketMPFail      PacketType = "MPFail"
	PacketFastClose   PacketType = "FastClose"
	PacketReset       PacketType = "Reset" // RST flag
	PacketFIN         PacketType = "FIN"   // FIN flag
)

// Selectors are conditions on a packet, its subflow and its connection. All that
// are given must hold.
type Selectors struct {
	// token of the connection, as 0x and 8 hexadecimal digits: that of either end.
	// +kubebuilder:validation:Pattern=`^0x[0-9a-f]{8}$`
	// +optional
	Token string `json:"token,omitempty"`
	// subflow selects one subflow, both directions, by its addresses and ports.
	// +optional
	Subflow *SubflowTuple `json:"subflow,omitempty"`
	// addressPair selects what passes between two addresses, in both directions.
	// +kubebuilder:validation:MinItems=2
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:XValidation:rule="self.size() != 2 || !isIP(self[0]) || !isIP(self[1]) || ip(self[0]).family() == ip(self[1]).family()",message="both addresses must be IPv4 or both IPv6"
	// +listType=atomic
	// +optional
	AddressPair []IPAddress `json:"addressPair,omitempty"`
	// source selects by the packet's sender.
	// +optional
	Source *Side `json:"source,omitempty"`
	// destination selects by the packet's receiver.
	// +optional
	Destination *Side `json:"destination,omitempty"`
	// direction selects what the pod sends or what it receives.
	// +optional
	Direction Direction `json:"direction,omitempty"`
	// packetTypes selects packets that are of at least one of these kinds.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=15
	// +listType=set
	// +optional
	PacketTypes []PacketType `json:"packetTypes,omitempty"`
	// paths selects subflows that go over one of these paths.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=set
	// +optional
	Paths []PathName `json:"paths,omitempty"`
	// sequence selects by position in the stream.
	// +optional
	Sequence *SequenceRanges `json:"sequence,omitempty"`
	// sent selects by what was sent so far, in the packet's direction.
	// +optional
	Sent *SentRanges `json:"sent,omitempty"`
	// backup selects subflows that are backups, or with false those that are not.
	// +optional
	Backup *bool `json:"backup,omitempty"`
	// program asks a program of the cluster's policy about each packet for which all other
	// conditions beside it hold: it holds unless the program returns BRAID_NO_MATCH. While a program is not loaded, neither this nor its not holds. A
	// chain can run 8 programs, in matches and by RunProgram together.
	// +optional
	Program *ProgramSelector `json:"program,omitempty"`
}

// ProgramSelector names a program that decides whether a condition holds.
type ProgramSelector struct {
	// name of one of the policy's programs, of type Action.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// value is passed to the program as its parameter.
	// +optional
	Value int64 `json:"value,omitempty"`
}

// IPAddress is an IPv4 or IPv6 address.
// +kubebuilder:validation:MaxLength=45
// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an IPv4 or IPv6 address"
type IPAddress string

// SubflowTuple is the addresses and ports of a subflow, in either order.
// +kubebuilder:validation:XValidation:rule="!isIP(self.sourceAddress) || !isIP(self.destinationAddress) || ip(self.sourceAddress).family() == ip(self.destinationAddress).family()",message="sourceAddress and destinationAddress must both be IPv4 or both IPv6"
type SubflowTuple struct {
	// sourceAddress is the address of one end.
	// +required
	SourceAddress IPAddress `json:"sourceAddress"`
	// sourcePort is the port of that end.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	SourcePort int32 `json:"sourcePort"`
	// destinationAddress is the address of the other end.
	// +required
	DestinationAddress IPAddress `json:"destinationAddress"`
	// destinationPort is the port of the other end.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	DestinationPort int32 `json:"destinationPort"`
}

// Side is a packet's sender or receiver.
// +kubebuilder:validation:XValidation:rule="has(self.cidr) || has(self.ports)",message="give cidr, ports or both"
type Side struct {
	// cidr is an address range; a single address is a range too, as in 10.0.0.1/32.
	// +optional
	CIDR CIDR `json:"cidr,omitempty"`
	// ports lists ports and ranges of ports, at least one of which must fit.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Ports []PortRange `json:"ports,omitempty"`
}

// PortRange is a port, or the ports from one to another.
// +kubebuilder:validation:XValidation:rule="!has(self.endPort) || self.endPort >= self.port",message="endPort must not be below port; leave it out for port alone"
type PortRange struct {
	// port, or the first one.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	Port int32 `json:"port"`
	// endPort is the last port; leave it out for port alone.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	EndPort int32 `json:"endPort,omitempty"`
}

// ByteRange is a half-open range of bytes: from ≤ n < to.
// +kubebuilder:validation:XValidation:rule="has(self.from) || has(self.to)",message="give from, to or both"
// +kubebuilder:validation:XValidation:rule="!has(self.from) || !has(self.to) || !isQuantity(self.from) || !isQuantity(self.to) || quantity(self.from).isLessThan(quantity(self.to))",message="from must be below to"
type ByteRange struct {
	// from is the first byte or amount, 0 when left out; for example 64Ki or 10M.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).isInteger() && quantity(self).compareTo(quantity('0')) >= 0",message="must be a whole number of bytes that is not negative, such as 0, 64Ki or 10M"
	// +optional
	From *resource.Quantity `json:"from,omitempty"`
	// to is the first one beyond the range; without end when left out.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).isInteger() && quantity(self).compareTo(quantity('0')) > 0",message="must be a positive whole number of bytes, such as 64Ki or 10M"
	// +optional
	To *resource.Quantity `json:"to,omitempty"`
}

// SequenceRanges select by the position of the packet's first byte of payload in
// the stream, counted from the stream's beginning. A connection older than the
// agent has no known beginning and does not match.
// +kubebuilder:validation:XValidation:rule="has(self.data) || has(self.subflow)",message="give data, subflow or both"
type SequenceRanges struct {
	// data is the position in the connection's stream (data sequence number).
	// +optional
	Data *ByteRange `json:"data,omitempty"`
	// subflow is the position in the subflow's stream (TCP sequence number).
	// +optional
	Subflow *ByteRange `json:"subflow,omitempty"`
}

// SentRanges select by amounts of payload before this packet, in its direction.
// +kubebuilder:validation:XValidation:rule="has(self.subflow) || has(self.connection)",message="give subflow, connection or both"
type SentRanges struct {
	// subflow is what the subflow has carried.
	// +optional
	Subflow *ByteRange `json:"subflow,omitempty"`
	// connection is what all subflows of the connection have carried.
	// +optional
	Connection *ByteRange `json:"connection,omitempty"`
}

// ActionType is what to do with the packets that a rule matches.
// +kubebuilder:validation:Enum=RateLimit;SetBackup;SuppressAddAddr;ReleaseAddAddr;ReportConnection;ReportSubflow;Record;Drop;Reset;Schedule;Congestion;RunProgram
type ActionType string

// The actions, most of them after table II of eMPTCP.
const (
	ActionRateLimit        ActionType = "RateLimit"
	ActionSetBackup        ActionType = "SetBackup"
	ActionSuppressAddAddr  ActionType = "SuppressAddAddr"
	ActionReleaseAddAddr   ActionType = "ReleaseAddAddr"
	ActionReportConnection ActionType = "ReportConnection"
	ActionReportSubflow    ActionType = "ReportSubflow"
	ActionRecord           ActionType = "Record"
	ActionDrop             ActionType = "Drop"
	ActionReset            ActionType = "Reset"
	ActionSchedule         ActionType = "Schedule"
	ActionCongestion       ActionType = "Congestion"
	ActionRunProgram       ActionType = "RunProgram"
)

// ActionPlace is which end of a connection carries an action out.
// +kubebuilder:validation:Enum=Endpoint;Peer
type ActionPlace string

const (
	// ActionAtEndpoint is the pod's own end, and its node.
	ActionAtEndpoint ActionPlace = "Endpoint"
	// ActionAtPeer is the other end, which is asked for it and has to accept it.
	ActionAtPeer ActionPlace = "Peer"
)

// Action is one thing to do.
// +kubebuilder:validation:XValidation:rule="(self.type == 'RateLimit') == has(self.rateLimit)",message="rateLimit goes with type: RateLimit, which needs it, and with no other type"
// +kubebuilder:validation:XValidation:rule="(self.type == 'SetBackup') == has(self.setBackup)",message="setBackup goes with type: SetBackup, which needs it, and with no other type"
// +kubebuilder:validation:XValidation:rule="(self.type == 'Schedule') == has(self.schedule)",message="schedule goes with type: Schedule, which needs it, and with no other type"
// +kubebuilder:validation:XValidation:rule="(self.type == 'Congestion') == has(self.congestion)",message="congestion goes with type: Congestion, which needs it, and with no other type"
// +kubebuilder:validation:XValidation:rule="(self.type == 'RunProgram') == has(self.runProgram)",message="runProgram goes with type: RunProgram, which needs it, and with no other type"
// +kubebuilder:validation:XValidation:rule="!has(self.at) || self.at != 'Peer' || self.type in ['RateLimit', 'Congestion', 'Schedule']",message="at: Peer goes with type RateLimit, Congestion or Schedule, which peers can be asked for, and with no other type"
// +kubebuilder:validation:XValidation:rule="!has(self.at) || self.at != 'Peer' || !has(self.rateLimit) || (!has(self.rateLimit.per) || self.rateLimit.per == 'Subflow') && (!has(self.rateLimit.mechanism) || self.rateLimit.mechanism == 'Auto')",message="with at: Peer each subflow has the rate and the peer paces it: leave per and mechanism out"
// +kubebuilder:validation:XValidation:rule="!has(self.at) || self.at != 'Peer' || !has(self.schedule) || self.schedule.strategy == 'EarliestCompletionFirst'",message="with at: Peer the strategy must be EarliestCompletionFirst: a program of this policy is not the peer's"
// +kubebuilder:validation:XValidation:rule="!has(self.suppressAddAddr) || self.type == 'SuppressAddAddr'",message="suppressAddAddr goes with type: SuppressAddAddr and with no other type"
type Action struct {
	// type of the action. RateLimit bounds the rate; SetBackup makes subflows
	// backups or ends that; SuppressAddAddr hides announced addresses, ReleaseAddAddr
	// gives hidden ones back; ReportConnection and ReportSubflow report new ones
	// as events; Record measures RTT, retransmissions and reordering; Drop and
	// Reset refuse packets and subflows; Schedule and Congestion let a strategy
	// govern the pod's sending; RunProgram runs a program of the policy.
	// +required
	Type ActionType `json:"type"`
	// at is which end of the connection carries the action out: Endpoint, the default, is
	// the pod's, and Peer asks the other one, for types RateLimit, Congestion and Schedule. The peer
	// does it for what it sends on the subflows that the rule matches, where its policy
	// accepts that (spec.transport.accept).
	// +optional
	At ActionPlace `json:"at,omitempty"`
	// rateLimit is for type RateLimit.
	// +optional
	RateLimit *RateLimit `json:"rateLimit,omitempty"`
	// setBackup is for type SetBackup.
	// +optional
	SetBackup *SetBackup `json:"setBackup,omitempty"`
	// suppressAddAddr is for type SuppressAddAddr, and may be left out.
	// +optional
	SuppressAddAddr *SuppressAddAddr `json:"suppressAddAddr,omitempty"`
	// schedule is for type Schedule.
	// +optional
	Schedule *Schedule `json:"schedule,omitempty"`
	// congestion is for type Congestion.
	// +optional
	Congestion *Congestion `json:"congestion,omitempty"`
	// runProgram is for type RunProgram.
	// +optional
	RunProgram *RunProgram `json:"runProgram,omitempty"`
}

// RateLimitScope is what shares one rate.
// +kubebuilder:validation:Enum=Subflow;Connection;Endpoint
type RateLimitScope string

const (
	// RateLimitPerSubflow gives the rate to each subflow.
	RateLimitPerSubflow RateLimitScope = "Subflow"
	// RateLimitPerConnection shares the rate among the subflows of a connection.
	RateLimitPerConnection RateLimitScope = "Connection"
	// RateLimitPerEndpoint shares the rate among all selected subflows of the pod.
	RateLimitPerEndpoint RateLimitScope = "Endpoint"
)

// RateLimitMechanism is how a rate is enforced.
// +kubebuilder:validation:Enum=Auto;Pace;Window;Police
type RateLimitMechanism string

const (
	// RateLimitAuto picks, and the endpoint's status says what and why.
	RateLimitAuto RateLimitMechanism = "Auto"
	// RateLimitPace paces the pod's own sockets: exact, no packet is touched.
	RateLimitPace RateLimitMechanism = "Pace"
	// RateLimitWindow lowers the receive window that the sender is told.
	RateLimitWindow RateLimitMechanism = "Window"
	// RateLimitPolice drops what exceeds the rate.
	RateLimitPolice RateLimitMechanism = "Police"
)

// RateLimit bounds the rate of the selected packets' subflows, in the direction
// of those packets, from the first packet that the rule matches on until the
// rules change. Where several limits match, the lowest rate holds.
type RateLimit struct {
	// rate in bits per second of payload, for example 20M: 8k at least, 10T at most.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).isInteger() && quantity(self).compareTo(quantity('8k')) >= 0 && quantity(self).compareTo(quantity('10T')) <= 0",message="must be a whole number of bits per second from 8k to 10T, such as 20M"
	// +required
	Rate resource.Quantity `json:"rate"`
	// per says what shares the rate.
	// +kubebuilder:default=Subflow
	// +optional
	Per RateLimitScope `json:"per,omitempty"`
	// mechanism is Auto, or one to insist on. Pace is for what the selected pod
	// itself sends; Window needs to have seen the subflow's SYN and an RTT of more
	// than a millisecond; Police works always and costs retransmissions. With Auto
	// the peer is also asked to send no more of what each subflow brings in
	// (direction ToEndpoint): where it accepts that, nothing is dropped.
	// +kubebuilder:default=Auto
	// +optional
	Mechanism RateLimitMechanism `json:"mechanism,omitempty"`
}

// SetBackup sets or clears the backup state of the selected subflows, at both
// ends, from the first packet that the rule matches on until the rules change.
type SetBackup struct {
	// backup is true to make them backups.
	// +required
	Backup *bool `json:"backup"`
}

// SuppressAddAddr hides announced addresses (ADD_ADDR) from the receiver of the
// selected packets, while the rule is there.
type SuppressAddAddr struct {
	// answer acknowledges the announcement in the receiver's place, so that it is
	// not repeated.
	// +optional
	Answer bool `json:"answer,omitempty"`
}

// StrategyEarliestCompletionFirst is the strategy that Braid brings: slower subflows
// rest while the backlog arrives earlier without them.
const StrategyEarliestCompletionFirst = "EarliestCompletionFirst"

// Schedule names the strategy that distributes a connection's data over its
// subflows.
type Schedule struct {
	// strategy is EarliestCompletionFirst, or the name of a program of the cluster's policy.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Strategy string `json:"strategy"`
}

// Congestion names the congestion control of the selected subflows.
type Congestion struct {
	// algorithm as the node's kernel knows it, for example cubic, or the name of a
	// program of the cluster's policy that provides one.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Algorithm string `json:"algorithm"`
}

// RunProgram names the program to run.
type RunProgram struct {
	// program is the name of one of the policy's programs.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Program string `json:"program"`
	// value is passed to the program as its parameter.
	// +optional
	Value int64 `json:"value,omitempty"`
}

// ProgramType is what a program is for.
// +kubebuilder:validation:Enum=Action;Congestion;Schedule
type ProgramType string

const (
	// ProgramAction is a program for chains, for actions of type RunProgram.
	ProgramAction ProgramType = "Action"
	// ProgramCongestion is a congestion control, for actions of type Congestion.
	ProgramCongestion ProgramType = "Congestion"
	// ProgramSchedule is a sock_ops program, for actions of type Schedule.
	ProgramSchedule ProgramType = "Schedule"
)

// Program is a BPF program of the admin's own, as a compiled object.
// +kubebuilder:validation:XValidation:rule="has(self.configMap) != has(self.file)",message="give the object either as configMap or as file"
type Program struct {
	// name by which rules refer to it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +required
	Name string `json:"name"`
	// type is what the object provides.
	// +kubebuilder:default=Action
	// +optional
	Type ProgramType `json:"type,omitempty"`
	// function is the name of the BPF program in the object; it may be left out where
	// there is only one.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Function string `json:"function,omitempty"`
	// configMap in Braid's own namespace that holds the object in binaryData.
	// +optional
	ConfigMap *ProgramConfigMap `json:"configMap,omitempty"`
	// file is the name of a file in the agents' directory of programs on each node.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9_.]*$`
	// +optional
	File string `json:"file,omitempty"`
	// sharedState names maps of the object that are not the program's own: on each node
	// all programs of this policy that name a map here have the same one, which is there
	// as long as they are. They must declare it alike, and the maps that a policy shares
	// may have room for 16 MiB in all.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	SharedState []SharedState `json:"sharedState,omitempty"`
}

// SharedState is a map that several programs have in common.
type SharedState struct {
	// name of the map in the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z_][a-z0-9_]*$`
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('block_')",message="maps whose names begin with block_ are Braid's own: choose another name"
	// +required
	Name string `json:"name"`
	// policy is the name of another ClusterMPTCPPolicy whose programs share the map, where
	// that is meant and not this policy's own. The program can read it then, and is refused
	// where it would write.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Policy string `json:"policy,omitempty"`
}

// ProgramConfigMap names a key of a ConfigMap.
type ProgramConfigMap struct {
	// name of the ConfigMap.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// key in its binaryData.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Key string `json:"key"`
}
