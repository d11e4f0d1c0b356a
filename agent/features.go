// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"

	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
)

// features are what the kernel has and what is used where it does not. What is
// not known before a plan asks for it is left out.
func features(attachMode string, known ...*v1alpha1.KernelFeature) []v1alpha1.KernelFeature {
	var features []v1alpha1.KernelFeature
	switch attachMode {
	case "tcx":
		features = append(features, v1alpha1.KernelFeature{Name: "TCX", Supported: true})
	case "clsact":
		features = append(features, v1alpha1.KernelFeature{Name: "TCX", Message: "programs are attached by the clsact qdisc"})
	}
	features = append(features, userspacePathManager())
	for _, feature := range known {
		if feature != nil {
			features = append(features, *feature)
		}
	}
	return features
}

func userspacePathManager() v1alpha1.KernelFeature {
	feature := v1alpha1.KernelFeature{Name: "UserspacePathManager", Supported: true}
	if _, err := os.Stat("/proc/sys/net/mptcp/pm_type"); err != nil {
		feature.Supported, feature.Message = false, "policies with manager: Agent cannot be carried out"
	}
	return feature
}

// kernelRelease is what `uname -r` prints.
func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}
