// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/plugin"
	"braid.dev/braid/policy"
)

// The API servers of these tests: one that reaches kubelets and pods by a tunnel, and one that
// reaches none.
var plain, tunneled apiserver.Shared

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	directory, err := os.MkdirTemp("", "braid")
	if err != nil {
		return 1, err
	}
	tunneled.Options.Tunnel = filepath.Join(directory, "tunnel")
	code = m.Run()
	return code, errors.Join(plain.Stop(), tunneled.Stop(), os.RemoveAll(directory))
}

// scene is a cluster of two nodes, as the controller and the agents would leave it.
type scene struct {
	t      *testing.T
	server *apiserver.Server
	client client.Client
	// kubeconfig is a tenant's; empty for the admin's.
	kubeconfig string
	// warnings are what the last command wrote beside its output.
	warnings bytes.Buffer
}

func newScene(t *testing.T) *scene {
	t.Helper()
	return sceneOf(t, plain.Use(t))
}

func sceneOf(t *testing.T, server *apiserver.Server) *scene {
	t.Helper()
	s := &scene{t: t, server: server}
	types := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(types), v1alpha1.AddToScheme(types)); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.client, err = client.New(s.server.Config(), client.Options{Scheme: types}); err != nil {
		t.Fatal(err)
	}
	return s
}

// in is the scene for a part of the test.
func (s *scene) in(t *testing.T) *scene { return &scene{t: t, server: s.server, client: s.client} }

// create creates an object, and writes its status where it has one.
func (s *scene) create(object client.Object, setStatus func()) {
	s.t.Helper()
	if err := s.client.Create(s.t.Context(), object); err != nil {
		s.t.Fatal(err)
	}
	if setStatus == nil {
		return
	}
	setStatus()
	if err := s.client.Status().Update(s.t.Context(), object); err != nil {
		s.t.Fatal(err)
	}
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) []metav1.Condition {
	return []metav1.Condition{{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Now(), ObservedGeneration: 1}}
}

func ready(kind string) []metav1.Condition { return condition(kind, metav1.ConditionTrue, kind, "") }

func (s *scene) addNode(name string, paths ...v1alpha1.NodePath) {
	s.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil)
	member := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	s.create(member, func() {
		member.Status.Conditions = ready(v1alpha1.ConditionReady)
		member.Status.Paths = paths
	})
}

func (s *scene) addPath(name string) {
	path := &v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: name}}
	path.Spec.Interfaces = []v1alpha1.InterfacePattern{v1alpha1.InterfacePattern(name)}
	s.create(path, func() { path.Status.Conditions = ready(v1alpha1.ConditionReady) })
}

func (s *scene) addPod(name, node string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}
	s.create(pod, func() {
		pod.Status.Phase = corev1.PodRunning
		pod.Status.PodIP, pod.Status.PodIPs = "10.0.0.9", []corev1.PodIP{{IP: "10.0.0.9"}}
	})
	return pod
}

func (s *scene) addPolicy(name string, conditions []metav1.Condition) *v1alpha1.MPTCPPolicy {
	policy := &v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	s.create(policy, func() { policy.Status.Conditions = conditions })
	return policy
}

func (s *scene) addPlan(node string, endpoint v1alpha1.PlanEndpoint, result *v1alpha1.EndpointStatus) {
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: node}}
	plan.Spec.Endpoints = []v1alpha1.PlanEndpoint{endpoint}
	s.create(plan, func() {
		if result != nil {
			plan.Status.ObservedGeneration = plan.Generation
			plan.Status.Endpoints = []v1alpha1.EndpointStatus{*result}
		}
	})
}

// run runs a command and returns what it printed.
func (s *scene) run(arguments ...string) (string, error) {
	return s.runAsIs(append(arguments, s.access()...)...)
}

// access says how to reach the API server.
func (s *scene) access() []string {
	return []string{"--kubeconfig", cmp.Or(s.kubeconfig, s.server.KubeconfigPath()), "--cache-dir", s.t.TempDir()}
}

// runAsIs runs a command that finds the API server by itself.
func (s *scene) runAsIs(arguments ...string) (string, error) {
	var out bytes.Buffer
	command := plugin.Command(&out, "test")
	s.warnings.Reset()
	command.SetErr(&s.warnings)
	command.SetArgs(arguments)
	err := command.ExecuteContext(context.Background())
	return out.String(), err
}

// runWith runs a command whose input or output the test chose.
func (s *scene) runWith(command *cobra.Command, arguments ...string) error {
	command.SetArgs(append(arguments, s.access()...))
	if command.Context() == nil {
		command.SetContext(context.Background())
	}
	return command.Execute()
}

func (s *scene) golden(name, got string) {
	s.t.Helper()
	plugin.Golden(s.t, name, got)
}

func endpointOf(pod *corev1.Pod, policy *v1alpha1.MPTCPPolicy) v1alpha1.PlanEndpoint {
	return v1alpha1.PlanEndpoint{
		UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Addresses: []string{pod.Status.PodIP},
		Policy:   v1alpha1.PolicyReference{Kind: "MPTCPPolicy", Namespace: "default", Name: policy.Name, Generation: policy.Generation},
		Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerKernel, Count: 2},
	}
}

// decidedFor is the pod's endpoint as the controller makes it.
func (s *scene) decidedFor(pod *corev1.Pod) v1alpha1.PlanEndpoint {
	s.t.Helper()
	var paths v1alpha1.MPTCPPathList
	var policies v1alpha1.MPTCPPolicyList
	var namespaces corev1.NamespaceList
	var nodes corev1.NodeList
	for _, list := range []client.ObjectList{&paths, &policies, &namespaces, &nodes} {
		if err := s.client.List(s.t.Context(), list); err != nil {
			s.t.Fatal(err)
		}
	}
	compiled := policy.Compile(policy.Input{Paths: paths.Items, Policies: policies.Items, Namespaces: namespaces.Items, Nodes: nodes.Items, Pods: []corev1.Pod{*pod}})
	return compiled.Plans[pod.Spec.NodeName].Endpoints[0]
}

func resultOf(pod *corev1.Pod, policy *v1alpha1.MPTCPPolicy) *v1alpha1.EndpointStatus {
	return &v1alpha1.EndpointStatus{
		UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, PolicyGeneration: policy.Generation, State: v1alpha1.EndpointProgrammed,
	}
}

func TestAClusterInOrderIsFineAndAPodIsExplained(t *testing.T) {
	s := newScene(t)
	s.addBraid(time.Hour, "node1")
	s.addPath("blue")
	s.addPath("green")
	s.addNode("node1",
		v1alpha1.NodePath{Name: "blue", Interface: "ens1", State: v1alpha1.LinkUp, PeersProbed: 1, PeersAlive: 1, MedianRTTMicros: 240},
		v1alpha1.NodePath{Name: "green", Interface: "ens2", State: v1alpha1.LinkDown, Message: "ens2 has no carrier"})
	pod := s.addPod("web", "node1")
	winner := s.addPolicy("spread", append(ready(v1alpha1.ConditionAccepted), ready(v1alpha1.ConditionProgrammed)...))
	s.addPlan("node1", s.decidedFor(pod), resultOf(pod, winner))

	for _, command := range []string{"status", "paths", "explain web"} {
		out, err := s.run(strings.Fields(command)...)
		if err != nil {
			t.Errorf("%s: %v", command, err)
		}
		s.golden("fine_"+strings.Fields(command)[0], out)
	}
	out, err := s.run("status", "--output", "yaml")
	if err != nil || !strings.Contains(out, "fine: true\n") {
		t.Errorf("as YAML: %v\n%s", err, out)
	}
}

func TestWhatIsNotFineIsNamedWithItsCause(t *testing.T) {
	s := newScene(t)
	s.addBraid(time.Hour, "node1")
	s.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node2"}}, nil)
	s.addNode("node1")
	pod := s.addPod("web", "node1")
	winner := s.addPolicy("spread", append(ready(v1alpha1.ConditionAccepted),
		condition(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonEndpointFailed, "1 of 1 pods is not programmed")...))
	s.addPolicy("typo", condition(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonPathNotFound, "there is no path grren"))
	failed := resultOf(pod, winner)
	failed.State, failed.Message = v1alpha1.EndpointFailed, "net.mptcp.enabled is 0"
	s.addPlan("node1", endpointOf(pod, winner), failed)

	out, err := s.run("status")
	if !errors.Is(err, plugin.ErrNotFine) {
		t.Errorf("the error is %v", err)
	}
	s.golden("broken_status", out)
}

func TestMistakesAreToldWithTheRemedy(t *testing.T) {
	s := newScene(t)
	tests := map[string]struct {
		command, says string
	}{
		"a pod that does not exist": {"explain web", `pods "web" not found`},
		"an output that is none":    {"status --output table", "must be json or yaml"},
		"no pod at all":             {"explain", "accepts 1 arg"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := s.run(strings.Fields(test.command)...); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error is %v, wanted one that says %q", err, test.says)
			}
		})
	}
}

func TestAClusterWithoutBraidIsToldApart(t *testing.T) {
	server, err := apiserver.Start(t.Context(), apiserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := &scene{t: t, server: server}
	if _, err := s.run("status"); err == nil || !strings.Contains(err.Error(), "not installed") {
		t.Errorf("the error is %v", err)
	}
}
