// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Transport gives settings to the pods' own TCP sockets: plain TCP, and each subflow of
// MPTCP, to any peer. What a policy gives holds over what the application chose before
// the connection was established; what it chooses later stands. It needs no change to
// images and no right of the pods, so it also gives them what the node keeps for itself,
// such as a congestion control that net.ipv4.tcp_allowed_congestion_control leaves out.
// Connections that exist get the settings too, but for initialWindow, and go back to
// their own when the policy goes.
// +kubebuilder:validation:MinProperties=1
type Transport struct {
	// congestionControl is the name of one that the node's kernel has, such as bbr: see
	// net.ipv4.tcp_available_congestion_control there. A rule that chooses one for a
	// subflow goes before it.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9_]{1,15}$')",message="must be the name of a congestion control, such as cubic or bbr: lower-case letters, digits and '_', 15 at most"
	// +kubebuilder:validation:MaxLength=63
	// +optional
	CongestionControl string `json:"congestionControl,omitempty"`
	// initialWindow is how many segments a connection sends before the first
	// acknowledgement; the kernel's own is 10.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	InitialWindow *int32 `json:"initialWindow,omitempty"`
	// userTimeout is how long data may stay unacknowledged before a connection ends with
	// an error. Linux counts from the first retransmission.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('24h')",message="must be a time from 100ms to 24h, such as 30s"
	// +optional
	UserTimeout *metav1.Duration `json:"userTimeout,omitempty"`
	// keepalive has idle connections probed, also where the application does not ask
	// for it.
	// +optional
	Keepalive *Keepalive `json:"keepalive,omitempty"`
	// delayedAck is the most by which an acknowledgement is delayed; the kernel's own is
	// 200ms. It needs at least two of the kernel's ticks: 8ms with 250 of them a second.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('2ms') && duration(self) <= duration('200ms')",message="must be a time from 2ms to 200ms"
	// +optional
	DelayedAck *metav1.Duration `json:"delayedAck,omitempty"`
	// minRTO is the least time after which a segment is sent again; the kernel's own is
	// 200ms. In a data centre less ends the pause after a lost tail; over long ways it
	// makes segments go out twice in vain. It needs at least two of the kernel's ticks.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('2ms') && duration(self) <= duration('200ms')",message="must be a time from 2ms to 200ms"
	// +optional
	MinRTO *metav1.Duration `json:"minRTO,omitempty"`
	// inactivityTimeout is how long an MPTCP connection that has lost its last subflow waits
	// for another one before it ends, in whole seconds; the kernel's own is 60s. It is set
	// in the pod's network namespace (net.mptcp.close_timeout, which Linux 6.1 lacks), so it
	// needs subflows.manager Kernel or Agent.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h') && duration(self).getMilliseconds() % 1000 == 0",message="must be a time of whole seconds from 1s to 24h, such as 5m"
	// +optional
	InactivityTimeout *metav1.Duration `json:"inactivityTimeout,omitempty"`
	// receiveBuffer is the size of the sockets' receive buffers, in bytes. It takes the
	// place of the kernel's own choice, which grows with a connection: a large one lets a
	// peer send much at once, as with a wide initial window. Of a connection that had it,
	// the kernel does not choose the size again when the policy goes. It is bounded by the
	// node's net.core.rmem_max. For new MPTCP connections it is set in the pod's network
	// namespace (net.ipv4.tcp_rmem), so from Linux 6.18 on these need subflows.manager Kernel
	// or Agent.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 4096 && self <= 67108864 : isQuantity(self) && quantity(self).compareTo(quantity('4Ki')) >= 0 && quantity(self).compareTo(quantity('64Mi')) <= 0",message="must be a quantity of bytes from 4Ki to 64Mi, such as 1Mi"
	// +optional
	ReceiveBuffer *resource.Quantity `json:"receiveBuffer,omitempty"`
	// request asks the peers of the pods' connections for settings of their sockets, by TCP
	// options. A peer that does not know them, or whose policy does not accept them, goes
	// on as it is. It holds for VMs too, and nothing else of transport does.
	// +optional
	Request *TransportRequest `json:"request,omitempty"`
	// accept says which requests of peers are honoured; without it none is.
	// +optional
	Accept *TransportAcceptance `json:"accept,omitempty"`
}

// TransportRequest is what the peers of a pod's connections are asked for. It is repeated
// while the policy holds, and a peer goes back to its own some seconds after it stops.
// +kubebuilder:validation:MinProperties=1
type TransportRequest struct {
	// congestionControl is the name of one that the peer is to use for what it sends.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9_]{1,15}$')",message="must be the name of a congestion control, such as cubic or bbr: lower-case letters, digits and '_', 15 at most"
	// +kubebuilder:validation:MaxLength=63
	// +optional
	CongestionControl string `json:"congestionControl,omitempty"`
	// initialWindow is how many segments the peer is to send before the first
	// acknowledgement. It is asked for on connections that the pod opens. A wide one needs a
	// receiveBuffer that has room for it.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	InitialWindow *int32 `json:"initialWindow,omitempty"`
	// userTimeout is how long what the peer sends may stay unacknowledged before it gives
	// the connection up (RFC 5482).
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('9h') && duration(self).getMilliseconds() % 1000 == 0",message="must be a time of whole seconds from 1s to 9h, such as 30s"
	// +optional
	UserTimeout *metav1.Duration `json:"userTimeout,omitempty"`
	// delayedAck is the most by which the peer is to delay an acknowledgement.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('2ms') && duration(self) <= duration('200ms')",message="must be a time from 2ms to 200ms"
	// +optional
	DelayedAck *metav1.Duration `json:"delayedAck,omitempty"`
	// rates are the most that the peer is to send on each subflow of a path.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=path
	// +optional
	Rates []PathRate `json:"rates,omitempty"`
	// schedule is the strategy by which the peer is to distribute what it sends over a
	// connection's subflows, as with an action Schedule of its own.
	// +kubebuilder:validation:Enum=EarliestCompletionFirst
	// +optional
	Schedule string `json:"schedule,omitempty"`
	// delayThreshold is the round-trip time up to which the peer is to keep a thin stream on
	// one subflow, the one that the connection began with, while the others rest. Above it
	// the stream moves to the subflow with the shortest round-trip time. A stream is thin
	// while no more than 64 KiB of it wait; what is more uses all subflows.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1ms') && duration(self) <= duration('10s')",message="must be a time from 1ms to 10s, such as 100ms"
	// +optional
	DelayThreshold *metav1.Duration `json:"delayThreshold,omitempty"`
	// inactivityTimeout is how long the pod may be silent before the peer gives up a plain
	// TCP connection, or a subflow: the peer probes it meanwhile, and a living pod answers.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('2s') && duration(self) <= duration('9h') && duration(self).getMilliseconds() % 1000 == 0",message="must be a time of whole seconds from 2s to 9h, such as 2m"
	// +optional
	InactivityTimeout *metav1.Duration `json:"inactivityTimeout,omitempty"`
}

// PathRate is a rate on one path.
type PathRate struct {
	// path is the name of an MPTCPPath.
	// +required
	Path PathName `json:"path"`
	// rate in bits a second.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).isInteger() && quantity(self).compareTo(quantity('100k')) >= 0 && quantity(self).compareTo(quantity('100G')) <= 0",message="must be a rate from 100k to 100G bits a second, such as 20M"
	// +required
	Rate resource.Quantity `json:"rate"`
}

// TransportAcceptance says which requests of peers are honoured. What is left out is not
// accepted; what exceeds a bound is brought to it.
// +kubebuilder:validation:XValidation:rule="has(self.congestionControls) || has(self.maxInitialWindow) || has(self.maxUserTimeout) || has(self.minDelayedAck) || has(self.minRate) || has(self.schedules) || has(self.minDelayThreshold) || has(self.maxInactivityTimeout)",message="accept needs something to accept beside from: congestionControls, maxInitialWindow, maxUserTimeout, minDelayedAck, minRate, schedules, minDelayThreshold or maxInactivityTimeout"
type TransportAcceptance struct {
	// from lists the addresses of peers whose requests are honoured. They are those that
	// the pod sees: of what comes in from outside by a Service, often those of nodes.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	// +required
	From []CIDR `json:"from"`
	// congestionControls are those that a peer may choose.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Pattern="^[a-z0-9_]{1,15}$"
	// +listType=set
	// +optional
	CongestionControls []string `json:"congestionControls,omitempty"`
	// maxInitialWindow is the widest initial window, in segments.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	MaxInitialWindow *int32 `json:"maxInitialWindow,omitempty"`
	// maxUserTimeout is the longest user timeout.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="must be a time from 1s to 24h, such as 5m"
	// +optional
	MaxUserTimeout *metav1.Duration `json:"maxUserTimeout,omitempty"`
	// minDelayedAck is the least delay of acknowledgements: they cost the pod work.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('2ms') && duration(self) <= duration('200ms')",message="must be a time from 2ms to 200ms"
	// +optional
	MinDelayedAck *metav1.Duration `json:"minDelayedAck,omitempty"`
	// minRate is the least rate of a subflow, in bits a second.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).isInteger() && quantity(self).compareTo(quantity('100k')) >= 0 && quantity(self).compareTo(quantity('100G')) <= 0",message="must be a rate from 100k to 100G bits a second, such as 1M"
	// +optional
	MinRate *resource.Quantity `json:"minRate,omitempty"`
	// schedules are the strategies that a peer may choose for what the pod sends to it. They
	// need subflows.manager Agent.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:Enum=EarliestCompletionFirst
	// +listType=set
	// +optional
	Schedules []string `json:"schedules,omitempty"`
	// minDelayThreshold is the least delayThreshold of a peer: the lower one is, the more
	// often a stream moves. It needs subflows.manager Agent.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1ms') && duration(self) <= duration('10s')",message="must be a time from 1ms to 10s, such as 20ms"
	// +optional
	MinDelayThreshold *metav1.Duration `json:"minDelayThreshold,omitempty"`
	// maxInactivityTimeout is the longest inactivityTimeout of a peer.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('2s') && duration(self) <= duration('9h') && duration(self).getMilliseconds() % 1000 == 0",message="must be a time of whole seconds from 2s to 9h, such as 2m"
	// +optional
	MaxInactivityTimeout *metav1.Duration `json:"maxInactivityTimeout,omitempty"`
}

// Keepalive says how idle connections are probed. What is left out is the node's own.
type Keepalive struct {
	// idle is how long a connection is idle before the first probe.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('9h')",message="must be a time from 1s to 9h"
	// +optional
	Idle *metav1.Duration `json:"idle,omitempty"`
	// interval lies between two probes.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('9h')",message="must be a time from 1s to 9h"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`
	// probes is how many stay unanswered before the connection ends with an error.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=127
	// +optional
	Probes *int32 `json:"probes,omitempty"`
}

// TransportBounds are what policies may give to sockets by spec.transport, also at the wish
// of peers (accept). What exceeds a bound is brought down to it, and a congestion control that is not listed is left out;
// kubectl braid explain tells.
// +kubebuilder:validation:MinProperties=1
type TransportBounds struct {
	// congestionControls are those that may be chosen. Leave it out to allow all.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	// +listType=set
	// +optional
	CongestionControls []string `json:"congestionControls,omitempty"`
	// maxInitialWindow is the widest initialWindow, in segments.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	MaxInitialWindow *int32 `json:"maxInitialWindow,omitempty"`
	// maxInactivityTimeout is the longest inactivityTimeout, of a policy and of peers.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h') && duration(self).getMilliseconds() % 1000 == 0",message="must be a time of whole seconds from 1s to 24h, such as 5m"
	// +optional
	MaxInactivityTimeout *metav1.Duration `json:"maxInactivityTimeout,omitempty"`
	// maxReceiveBuffer is the largest receiveBuffer, in bytes.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 4096 && self <= 67108864 : isQuantity(self) && quantity(self).compareTo(quantity('4Ki')) >= 0 && quantity(self).compareTo(quantity('64Mi')) <= 0",message="must be a quantity of bytes from 4Ki to 64Mi, such as 1Mi"
	// +optional
	MaxReceiveBuffer *resource.Quantity `json:"maxReceiveBuffer,omitempty"`
}
