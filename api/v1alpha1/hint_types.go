// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations of pods by which their owners say what they would like. They are
// hints: guardrails and the state of the paths go before them.
const (
	// AnnotationPreferredPaths lists paths, with commas between them, that the
	// pod's subflows are to use while these are as good as the policy asks.
	AnnotationPreferredPaths = "braid.dev/preferred-paths"
	// AnnotationBackupPaths lists paths that are to be used only while no other
	// path of the pod can be.
	AnnotationBackupPaths = "braid.dev/backup-paths"
	// AnnotationMaxRate is the most that the pod is to send over all paths
	// together, in bits a second, such as 200M.
	AnnotationMaxRate = "braid.dev/max-rate"
)

const (
	// AnnotationVirtualMachine says of a pod whether it holds a virtual machine: "true"
	// where its connections are those of a guest, which has sockets of its own, and "false"
	// where they are the pod's, as with passt. It goes before LabelKubeVirt.
	AnnotationVirtualMachine = "braid.dev/virtual-machine"
	// LabelKubeVirt is the label by which KubeVirt marks pods of its own.
	LabelKubeVirt = "kubevirt.io"
	// LabelKubeVirtLauncher is its value of those that hold virtual machines.
	LabelKubeVirtLauncher = "virt-launcher"
)

// Hint is one of the annotations that pods can have.
// +kubebuilder:validation:Enum=PreferredPaths;BackupPaths;MaxRate
type Hint string

const (
	// HintPreferredPaths is braid.dev/preferred-paths.
	HintPreferredPaths Hint = "PreferredPaths"
	// HintBackupPaths is braid.dev/backup-paths.
	HintBackupPaths Hint = "BackupPaths"
	// HintMaxRate is braid.dev/max-rate.
	HintMaxRate Hint = "MaxRate"
)

// Preference says how far preferred paths are preferred, and when they are given
// up and returned to.
type Preference struct {
	// weight is the share of the subflows, in percent, that follows the
	// preference; the others are spread as if there were none. The default is 100.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	Weight *int32 `json:"weight,omitempty"`

	// maxRTTPercent is the longest smoothed round-trip time that a preferred path may
	// have, in percent of that of the best path: 150 is one and a half times as long.
	// Beyond it the path is given up. The default is 200.
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=10000
	// +optional
	MaxRTTPercent *int32 `json:"maxRTTPercent,omitempty"`

	// minRTTDifference is by how much the round-trip time of a preferred path must
	// exceed that of the best one before maxRTTPercent counts: between paths
	// of microseconds a percentage means nothing. The default is 5ms.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s') && duration(self) <= duration('10s')",message="must be a time from 0s to 10s, such as 5ms"
	// +optional
	MinRTTDifference *metav1.Duration `json:"minRTTDifference,omitempty"`

	// maxLossPercent is the share of probes lost, in percent, beyond which a
	// preferred path is given up. The default is 10.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	MaxLossPercent *int32 `json:"maxLossPercent,omitempty"`

	// leaveAfter is how long a preferred path must be worse than that before it is
	// given up; one that is dead is left at once. The default is 100ms.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s') && duration(self) <= duration('5m')",message="must be a time from 0s to 5m, such as 100ms"
	// +optional
	LeaveAfter *metav1.Duration `json:"leaveAfter,omitempty"`

	// returnAfter is how long it must be good again before it is used again. The
	// default is 500ms.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s') && duration(self) <= duration('5m')",message="must be a time from 0s to 5m, such as 500ms"
	// +optional
	ReturnAfter *metav1.Duration `json:"returnAfter,omitempty"`
}

// Defaults of Preference.
const (
	DefaultPreferenceWeight       int32 = 100
	DefaultMaxRTTPercent          int32 = 200
	DefaultMinRTTDifferenceMicros int32 = 5000
	DefaultMaxLossPercent         int32 = 10
	DefaultLeaveAfterMillis       int32 = 100
	DefaultReturnAfterMillis      int32 = 500
)

// PlanPreference is a Preference with every default filled in.
type PlanPreference struct {
	// weight in percent.
	// +required
	Weight int32 `json:"weight"`
	// maxRTTPercent of the round-trip time of the best path.
	// +required
	MaxRTTPercent int32 `json:"maxRTTPercent"`
	// minRTTDifferenceMicros in microseconds.
	// +required
	MinRTTDifferenceMicros int32 `json:"minRTTDifferenceMicros"`
	// maxLossPercent of the probes.
	// +required
	MaxLossPercent int32 `json:"maxLossPercent"`
	// leaveAfterMillis in milliseconds.
	// +required
	LeaveAfterMillis int32 `json:"leaveAfterMillis"`
	// returnAfterMillis in milliseconds.
	// +required
	ReturnAfterMillis int32 `json:"returnAfterMillis"`
}

// PlanGuard is what the guardrails make of one endpoint.
type PlanGuard struct {
	// maxRate of the pod over all paths together, in bits a second; 0 for none.
	// +optional
	MaxRate int64 `json:"maxRate,omitempty"`
	// spoofCheck drops packets from addresses that are not the pod's.
	// +optional
	SpoofCheck bool `json:"spoofCheck,omitempty"`
	// dropUnparsable drops packets to and from the pod whose TCP header rules cannot see.
	// +optional
	DropUnparsable bool `json:"dropUnparsable,omitempty"`
}

// PlanNewPods is what holds for pods of the node that the plan does not have yet.
type PlanNewPods struct {
	// maxRate of each of them over all paths together, in bits a second; 0 for none.
	// +optional
	MaxRate int64 `json:"maxRate,omitempty"`
	// spoofCheck drops packets from addresses that the node does not route to the
	// interface that they come from.
	// +optional
	SpoofCheck bool `json:"spoofCheck,omitempty"`
	// exempt are pods of the node that are not guarded though no endpoint is theirs,
	// sorted by namespace and name.
	// +kubebuilder:validation:MaxItems=1024
	// +listType=atomic
	// +optional
	Exempt []PlanExemptPod `json:"exempt,omitempty"`
}

// PlanExemptPod is a pod that nobody guards. It need not run yet.
type PlanExemptPod struct {
	// uid of the pod.
	// +required
	UID types.UID `json:"uid"`
	// cgroupUID is the UID in the names of the pod's cgroups, where that is not uid.
	// +optional
	CgroupUID types.UID `json:"cgroupUID,omitempty"`
	// addresses of the pod, as far as they are known.
	// +kubebuilder:validation:MaxItems=8
	// +listType=set
	// +optional
	Addresses []string `json:"addresses,omitempty"`
}

// PlanTenantPath is a ceiling or weight of a tenant on one path.
type PlanTenantPath struct {
	// path is the name of the MPTCPPath.
	// +required
	Path PathName `json:"path"`
	// maxRate in bits a second; 0 for none.
	// +optional
	MaxRate int64 `json:"maxRate,omitempty"`
	// weight in relation to the other tenants; 0 where none has one.
	// +optional
	Weight int32 `json:"weight,omitempty"`
}

// PlanTenant is a namespace of the plan with ceilings or weights.
type PlanTenant struct {
	// namespace whose endpoints of this plan are meant.
	// +required
	Namespace string `json:"namespace"`
	// paths with a ceiling or weight, sorted by name.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=path
	// +required
	Paths []PlanTenantPath `json:"paths"`
}

// RefusedHint is a hint that is not followed, or not as a whole.
type RefusedHint struct {
	// annotation is its key.
	// +required
	Annotation string `json:"annotation"`
	// reason is HintMalformed, HintPathNotFound, HintPathNotAllowed, HintNotAllowed,
	// HintRateTooHigh or HintUnknown.
	// +required
	Reason string `json:"reason"`
	// message says what is wrong and what is allowed.
	// +kubebuilder:validation:MaxLength=512
	// +required
	Message string `json:"message"`
}

// HintState is what became of a hint.
// +kubebuilder:validation:Enum=Followed;GivenUp;Refused
type HintState string

const (
	// HintFollowed means: the datapath does what the hint asks.
	HintFollowed HintState = "Followed"
	// HintGivenUp means: the hint stands, and the state of the paths to some peers
	// keeps it from being followed now.
	HintGivenUp HintState = "GivenUp"
	// HintRefused means: the hint is wrong or beyond a guardrail.
	HintRefused HintState = "Refused"
)

// HintStatus is what became of one hint of an endpoint.
type HintStatus struct {
	// annotation is its key; spec.paths for what a policy prefers.
	// +required
	Annotation string `json:"annotation"`
	// state is Followed, GivenUp or Refused.
	// +required
	State HintState `json:"state"`
	// message says why.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
}
