// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestMirrorsOfStaticPodsHaveTheCgroupsOfTheirHash(t *testing.T) {
	const hash = "8f14e45fceea167a5a36dedd4bea2543"
	for _, test := range []struct {
		name        string
		annotations map[string]string
		want        types.UID
	}{
		{"a pod", nil, ""},
		{"a mirror", map[string]string{corev1.MirrorPodAnnotationKey: hash}, hash},
		{"a mirror with its own UID", map[string]string{corev1.MirrorPodAnnotationKey: "own"}, ""},
		{"a pod that only says that it has a hash", map[string]string{"kubernetes.io/config.hash": hash}, ""},
		{"more than a plan takes", map[string]string{corev1.MirrorPodAnnotationKey: strings.Repeat("a", 65)}, ""},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "own", Annotations: test.annotations}}
		if got := cgroupUID(pod); got != test.want {
			t.Errorf("%s: its cgroups have %q, want %q", test.name, got, test.want)
		}
	}
}
