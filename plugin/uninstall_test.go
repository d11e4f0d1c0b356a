// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/plugin"
)

const attachedLeft = `[{"kind": "Pin", "name": "/sys/fs/bpf/braid/datapath", "detail": "14 maps, links and programs"},
	{"kind": "Program", "name": "to_uplink", "detail": "ens1 egress"}]`

// answers are what agents say that is left, by their pods.
type answers struct {
	sync.Mutex
	left map[string]string
}

func (a *answers) set(left map[string]string) {
	a.Lock()
	defer a.Unlock()
	a.left = left
}

func (a *answers) answer(agent string, command []string, _ io.Reader, out io.Writer) error {
	a.Lock()
	defer a.Unlock()
	if !slices.Contains(command, "cleanup") || a.left[agent] == "" {
		return fmt.Errorf("%s does not know: %v", agent, command)
	}
	_, err := fmt.Fprintln(out, a.left[agent])
	return err
}

// installedScene is a cluster of two nodes with Braid on it.
func installedScene(t *testing.T) (*scene, *answers) {
	t.Helper()
	a := &answers{}
	n := &nodes{agent: a.answer}
	s := newNodeScene(t, n)
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "braid-system"}}, nil)
	for i := range 2 {
		node, address := fmt.Sprintf("node%d", i+1), fmt.Sprintf("192.0.2.%d", i+1)
		s.addKubelet(node, address)
		s.addSystemPod("agent", "agent-"+node, node, address)
	}
	labels := map[string]string{"app.kubernetes.io/name": "braid-agent"}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "braid-system", Name: "braid-agent"}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	set.Spec.Template = corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
	}
	s.create(set, nil)
	s.create(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "braid-system", Name: v1alpha1.AgentLeasePrefix + "node1"}}, nil)
	return s, a
}

func (s *scene) remove(objects ...client.Object) {
	s.t.Helper()
	for _, object := range objects {
		if err := s.client.Delete(s.t.Context(), object, client.GracePeriodSeconds(0)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// expectRemoval runs the check, and fails unless it says all this and ends so.
func (s *scene) expectRemoval(fine bool, texts ...string) string {
	s.t.Helper()
	out, err := s.run("uninstall", "--check")
	if fine && err != nil || !fine && !errors.Is(err, plugin.ErrNotFine) {
		s.t.Errorf("the error is %v", err)
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			s.t.Errorf("the output has no %q:\n%s", text, out)
		}
	}
	return out
}

// One cluster, on its way from Braid in use to nothing that is left.
func TestEachStepOfARemovalIsToldFromTheNext(t *testing.T) {
	s, agents := installedScene(t)
	s.addPath("blue")
	pod := s.addPod("web", "node1")
	winner := s.addPolicy("spread", ready(v1alpha1.ConditionAccepted))
	result := resultOf(pod, winner)
	result.SocketUpgrade = v1alpha1.SocketUpgradeActive
	s.addPlan("node1", endpointOf(pod, winner), result)
	agents.set(map[string]string{"agent-node1": attachedLeft, "agent-node2": "[]"})
	s.golden("uninstall_in_use", s.expectRemoval(false))

	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	s.remove(winner, plan)
	agents.set(map[string]string{"agent-node1": "[]"})
	s.expectRemoval(false, "Not known: node node2: ", "agent-node2 does not know", "Whether Braid can be removed, or is gone, is not known")
	agents.set(map[string]string{"agent-node1": "[]", "agent-node2": "[]"})
	s.expectRemoval(true, "can be removed without harm", "helm uninstall braid --namespace braid-system")

	system := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "braid-system", Name: name} }
	path := &v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}
	s.remove(path, &corev1.Pod{ObjectMeta: system("agent-node1")}, &corev1.Pod{ObjectMeta: system("agent-node2")},
		&appsv1.DaemonSet{ObjectMeta: system("braid-agent")})
	s.golden("uninstall_left", s.expectRemoval(false))
}

func TestWhatMayNotBeReadIsNotTakenForGone(t *testing.T) {
	s, agents := installedScene(t)
	agents.set(map[string]string{"agent-node1": "[]", "agent-node2": "[]"})
	out, err := s.addTenant().run("uninstall", "--check")
	require.ErrorContains(t, err, "forbidden")
	require.NotContains(t, out, "Nothing of Braid is left")
}

func TestUninstallRemovesNothingItself(t *testing.T) {
	if _, err := offline(t, "", "uninstall"); err == nil || !strings.Contains(err.Error(), "--check") {
		t.Errorf("the error is %v", err)
	}
}
