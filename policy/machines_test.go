// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/api/v1alpha1"
)

// launcher is a pod of KubeVirt's, with this annotation; empty for none.
func launcher(annotation string) corev1.Pod {
	pod := runningPod("launcher", "10.0.0.1")
	pod.Labels = map[string]string{v1alpha1.LabelKubeVirt: v1alpha1.LabelKubeVirtLauncher, "vm.kubevirt.io/name": "launcher"}
	return annotated(pod, annotation)
}

func annotated(pod corev1.Pod, annotation string) corev1.Pod {
	if annotation != "" {
		pod.Annotations = map[string]string{v1alpha1.AnnotationVirtualMachine: annotation}
	}
	return pod
}

// forPod is what a policy that asks for all there is of sockets comes to for a pod.
func forPod(pod corev1.Pod, manager v1alpha1.SubflowManager) (v1alpha1.PlanEndpoint, Decision) {
	in := oneNode(pod)
	spec := &in.Policies[0].Spec
	spec.Sockets.Upgrade, spec.Transport = true, &v1alpha1.Transport{InitialWindow: new(int32(20))}
	spec.Subflows.Manager = manager
	result := Compile(in)
	return result.Plans["node"].Endpoints[0], result.Decisions[0]
}

func TestAPodThatHoldsAVMIsKnownByItsAnnotationOrKubeVirtsLabel(t *testing.T) {
	plain := func(annotation string) corev1.Pod { return annotated(runningPod("web", "10.0.0.1"), annotation) }
	yes, no := &v1alpha1.PlanVirtualMachine{Held: true}, &v1alpha1.PlanVirtualMachine{}
	labelled := plain("")
	labelled.Labels = map[string]string{v1alpha1.LabelKubeVirt: "virt-handler"}
	for name, tc := range map[string]struct {
		pod       corev1.Pod
		want      *v1alpha1.PlanVirtualMachine
		malformed bool
	}{
		"nothing tells":                       {plain(""), nil, false},
		"KubeVirt's label":                    {launcher(""), yes, false},
		"another part of KubeVirt's":          {labelled, nil, false},
		"an annotation":                       {plain("true"), yes, false},
		"an annotation against it":            {plain("false"), no, false},
		"an annotation goes before the label": {launcher("false"), no, false},
		"both":                                {launcher("true"), yes, false},
		"no value that is one":                {plain("yes"), nil, true},
		"the label, and no value that is one": {launcher("True"), yes, true},
		"an empty value":                      {plain(" "), nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint, decision := forPod(tc.pod, v1alpha1.SubflowManagerKernel)
			if tc.want == nil {
				require.Nil(t, endpoint.VirtualMachine)
			} else {
				require.Equal(t, tc.want.Held, endpoint.VirtualMachine.Held)
			}
			require.Nil(t, endpoint.Guest)
			require.Equal(t, tc.want == nil || !tc.want.Held, endpoint.UpgradeSockets)
			require.Equal(t, tc.malformed, len(endpoint.RefusedHints) == 1, "%v", endpoint.RefusedHints)
			if tc.malformed {
				require.Equal(t, v1alpha1.ReasonHintMalformed, endpoint.RefusedHints[0].Reason)
				require.Contains(t, endpoint.RefusedHints[0].Message, "is neither true nor false")
				require.Contains(t, decision.String(), "not followed")
			}
		})
	}
}

func TestNothingIsConfiguredInAPodThatHoldsAVM(t *testing.T) {
	guest, decision := forPod(launcher(""), v1alpha1.SubflowManagerAgent)
	pod, _ := forPod(launcher("false"), v1alpha1.SubflowManagerAgent)
	require.Equal(t, v1alpha1.SubflowManagerNone, guest.Subflows.Manager)
	require.False(t, guest.UpgradeSockets)
	require.Nil(t, guest.Transport)
	var told []string
	for _, s := range guest.NotApplied() {
		told = append(told, s.Setting)
	}
	require.Equal(t, []string{"spec.subflows", "spec.sockets", "spec.transport"}, told)
	require.Contains(t, decision.String(), `holds a VM: label kubevirt.io=virt-launcher; where its network binding is passt`)
	require.Contains(t, decision.String(), "not for a VM: spec.subflows (the guest's kernel opens subflows, not Braid: in the guest, ip mptcp endpoint add … subflow, and ip mptcp limits; or choose manager: Host")

	require.Equal(t, v1alpha1.SubflowManagerAgent, pod.Subflows.Manager)
	require.True(t, pod.UpgradeSockets)
	require.NotNil(t, pod.Transport)
	require.Empty(t, pod.NotApplied())
	require.Equal(t, pod.Paths, guest.Paths)
	require.Equal(t, pod.Addresses, guest.Addresses)

	host, _ := forPod(launcher(""), v1alpha1.SubflowManagerHost)
	require.Equal(t, v1alpha1.SubflowManagerHost, host.Subflows.Manager)
	require.Equal(t, "spec.sockets", host.NotApplied()[0].Setting, "what is asked of subflows holds")
}

// It says what the pod is, and is no wish that is counted and followed.
func TestTheAnnotationOfAVMIsNoHint(t *testing.T) {
	in := oneNode(annotated(runningPod("a", "10.0.0.1"), "true"), annotated(runningPod("b", "10.0.0.2"), "maybe"))
	result := Compile(in)
	require.Equal(t, 1, result.Policies[0].HintedPods)
	require.Len(t, result.Policies[0].RefusedHints, 1)
	require.Equal(t, "b", result.Policies[0].RefusedHints[0].Pod.Name)
	require.Empty(t, result.Plans["node"].Endpoints[0].Hinted)
	require.Equal(t, []HintChoice{{
		Annotation: v1alpha1.AnnotationVirtualMachine, Value: "true", Followed: true, Reason: "the pod's connections are those of a guest",
	}}, result.Decisions[0].Hints)
}
