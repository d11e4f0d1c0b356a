// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// IncastMode is how pods keep from overrunning each other's NICs.
// +kubebuilder:validation:Enum=None;Credits
type IncastMode string

// The modes.
const (
	// IncastNone leaves it to congestion control.
	IncastNone IncastMode = "None"
	// IncastCredits has receivers tell senders how fast to send.
	IncastCredits IncastMode = "Credits"
)

// Incast says what pods do so that many of them that send to one at the same time do not
// overrun its NIC.
// +kubebuilder:validation:XValidation:rule="self.mode != 'Credits' || has(self.peers)",message="mode Credits needs peers: the address ranges of the pods that give credits to each other, such as the cluster's pod CIDRs"
// +kubebuilder:validation:XValidation:rule="self.mode == 'Credits' || !has(self.peers)",message="peers have a meaning with mode Credits alone: remove them, or choose Credits"
type Incast struct {
	// mode is None or Credits. With Credits, each pod of the policy shares the capacity of
	// its node's NIC among those that send to it, and writes each one's share into its
	// acknowledgements (a TCP option, no packet more); and each pod sends no faster than
	// those that it sends to tell it. It works for TCP and for each subflow of MPTCP, on
	// paths whose capacity the MPTCPPath gives. Credits only ever slow a sender down:
	// congestion control goes on.
	// +kubebuilder:default=None
	// +optional
	Mode IncastMode `json:"mode,omitempty"`
	// peers are ranges of addresses: pods give credits to these and heed theirs, and
	// nobody else's. They should be ranges of pods of which a policy with Credits selects
	// most, as a peer without is told in vain.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	// +optional
	Peers []CIDR `json:"peers,omitempty"`
}
