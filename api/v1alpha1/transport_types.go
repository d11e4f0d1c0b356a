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
	// node's net.core.rmem_max.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 4096 && self <= 67108864 : isQuantity(self) && quantity(self).compareTo(quantity('4Ki')) >= 0 && quantity(self).compareTo(quantity('64Mi')) <= 0",message="must be a quantity of bytes from 4Ki to 64Mi, such as 1Mi"
	// +optional
	ReceiveBuffer *resource.Quantity `json:"receiveBuffer,omitempty"`
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

// TransportBounds are what policies may give to sockets by spec.transport. What exceeds a
// bound is brought down to it, and a congestion control that is not listed is left out;
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
	// maxInactivityTimeout is the longest inactivityTimeout.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h') && duration(self).getMilliseconds() % 1000 == 0",message="must be a time of whole seconds from 1s to 24h, such as 5m"
	// +optional
	MaxInactivityTimeout *metav1.Duration `json:"maxInactivityTimeout,omitempty"`
	// maxReceiveBuffer is the largest receiveBuffer, in bytes.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 4096 && self <= 67108864 : isQuantity(self) && quantity(self).compareTo(quantity('4Ki')) >= 0 && quantity(self).compareTo(quantity('64Mi')) <= 0",message="must be a quantity of bytes from 4Ki to 64Mi, such as 1Mi"
	// +optional
	MaxReceiveBuffer *resource.Quantity `json:"maxReceiveBuffer,omitempty"`
}
