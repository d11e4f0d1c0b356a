// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EndpointInterface says how the node finds the host's end of a VM's interface.
// +kubebuilder:validation:XValidation:rule="has(self.name) != has(self.macAddress)",message="give either name or macAddress"
type EndpointInterface struct {
	// name of the tap on the host, as ip link shows it, such as vnet0.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[^/:\s]+$`
	// +kubebuilder:validation:XValidation:rule="self != '.' && self != '..' && self != 'lo'",message="must be the name of the VM's interface on the host"
	// +optional
	Name string `json:"name,omitempty"`

	// macAddress is the guest's, such as 52:54:00:12:34:56. It leads to the tap by what the
	// host alone writes: a permanent forwarding entry of the tap's bridge, or the tap's own
	// address where that is the guest's with fe as its first byte, as libvirt gives it.
	// Entries that a bridge learned from frames do not count: any guest of the bridge
	// can write them.
	// +kubebuilder:validation:Pattern=`^[0-9a-fA-F][02468aceACE](:[0-9a-fA-F]{2}){5}$`
	// +kubebuilder:validation:MaxLength=17
	// +kubebuilder:validation:XValidation:rule="self != '00:00:00:00:00:00'",message="must be the guest's own address"
	// +optional
	MACAddress string `json:"macAddress,omitempty"`
}

// EndpointAddress is an address of a VM, in the one form that is compared.
// +kubebuilder:validation:MaxLength=45
// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an IPv4 or IPv6 address"
// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip.isCanonical(self)",message="must be written in its shortest form, with small letters, such as 2001:db8::1"
// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast()",message="must be a unicast address that is not of one link alone"
type EndpointAddress string

// MPTCPEndpointSpec says where a VM is and what addresses it has.
// +kubebuilder:validation:XValidation:rule="!has(self.guestAgentDomain) || has(self.guestAgentSocket)",message="guestAgentDomain needs guestAgentSocket, the socket of libvirt's daemon"
type MPTCPEndpointSpec struct {
	// nodeName is the node on which the VM runs. Who migrates the VM changes it, with the
	// interface.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="must be the name of a Node"
	// +required
	NodeName string `json:"nodeName"`

	// interface is the host's end of the VM's interface.
	// +required
	Interface EndpointInterface `json:"interface"`

	// addresses of the guest, IPv4 and IPv6. The node's own routes to them must lead to the
	// interface, or to the bridge that has it. Limits and rules belong to addresses:
	// these cannot be changed, for others delete the object and create it again.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="addresses cannot be changed: delete the object and create it with others"
	// +listType=set
	// +required
	Addresses []EndpointAddress `json:"addresses"`

	// guestAgentSocket is the socket of QEMU's guest agent on the node, for policies with
	// sockets.guestAgent: its path below the directory that agent.guestAgentDirectory of the
	// chart names, without symbolic links. QEMU serves one client of a socket at a time:
	// it must be one that nothing else holds open. Where libvirt holds it, as it does that of
	// the channel org.qemu.guest_agent.0, give the socket of libvirt's daemon, such as
	// virtqemud-sock below /run/libvirt, and guestAgentDomain.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[^/\s]+(/[^/\s]+)*$`
	// +kubebuilder:validation:XValidation:rule="!self.split('/').exists(part, part == '.' || part == '..')",message="must be a path below the directory of guest agents' sockets, without . and .."
	// +optional
	GuestAgentSocket string `json:"guestAgentSocket,omitempty"`

	// guestAgentDomain is the name of the VM's domain in libvirt, where guestAgentSocket is the
	// socket of libvirt's daemon: the node then reaches the guest agent by way of libvirt.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[^/\n]+$`
	// +optional
	GuestAgentDomain string `json:"guestAgentDomain,omitempty"`
}

// NotAppliedSetting is a part of a policy that does not hold for a VM, because a host
// configures nothing in a guest.
type NotAppliedSetting struct {
	// setting is the field of the policy, such as spec.sockets.upgrade.
	// +required
	Setting string `json:"setting"`
	// message says why, and what can be done in the guest.
	// +optional
	Message string `json:"message,omitempty"`
}

// MPTCPEndpointStatus is what became of a VM; written by the controller.
type MPTCPEndpointStatus struct {
	// hostInterface is the interface on the host that the node's agent found.
	// +optional
	HostInterface string `json:"hostInterface,omitempty"`
	// policy that decides for the VM; absent while none does.
	// +optional
	Policy *PolicyReference `json:"policy,omitempty"`
	// notApplied lists what of that policy does not hold for a VM.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=setting
	// +optional
	NotApplied []NotAppliedSetting `json:"notApplied,omitempty"`
	// conditions: Accepted says whether the addresses are the VM's, Programmed whether its
	// node carries the policy out, as far as a host can, Spreading what its traffic does,
	// GuestSubflows, with manager: Host, whether its kernel follows what the node announces, and
	// GuestAgent, with sockets.guestAgent, whether its limits are set.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MPTCPEndpoint is a VM that is no pod, or any other machine behind an interface of a
// node. Policies, guardrails and annotations reach it by its namespace and labels, as they
// reach pods. Its sockets are the guest's own: nothing is configured in it. Whoever can
// create one says whose an address is: that is for admins and managers of VMs.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=mep,categories=braid
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="Interface",type=string,JSONPath=`.status.hostInterface`
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.status.policy.name`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].reason`
// +kubebuilder:printcolumn:name="Spreading",type=string,JSONPath=`.status.conditions[?(@.type=="Spreading")].reason`,priority=1
// +kubebuilder:printcolumn:name="GuestSubflows",type=string,JSONPath=`.status.conditions[?(@.type=="GuestSubflows")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MPTCPEndpoint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is where the VM is.
	// +required
	Spec MPTCPEndpointSpec `json:"spec"`
	// status is what became of it.
	// +optional
	Status MPTCPEndpointStatus `json:"status,omitempty"`
}

// MPTCPEndpointList is a list of MPTCPEndpoint.
// +kubebuilder:object:root=true
type MPTCPEndpointList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MPTCPEndpoint `json:"items"`
}
