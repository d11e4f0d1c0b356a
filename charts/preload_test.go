// SPDX-License-Identifier: Apache-2.0

package charts_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/internal/testutil"
)

const (
	preloadDirectory = "/opt/braid/preload"
	preloadLibrary   = preloadDirectory + "/libmptcpwrap.so"
)

var preloaded = map[string]string{"braid.dev/preload": "true"}

// admission is an API server with the chart's policy for sockets, which has effect.
type admission struct {
	client.Client
	t *testing.T
}

func admit(t *testing.T, values ...string) admission {
	t.Helper()
	server := startServer(t)
	arguments := []string{"install", "braid", "braid", "--create-namespace", "--set", "crds.install=false,sockets.preload.enabled=true"}
	cluster{t, server}.helm(append(arguments, values...)...)
	c, err := client.New(server.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := admission{c, t}
	a.namespace("apps", nil)
	return a
}

func (a admission) namespace(name string, labels map[string]string) {
	a.t.Helper()
	if err := a.Create(a.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}); err != nil {
		a.t.Fatal(err)
	}
}

// create has the server admit a pod, without keeping it.
func (a admission) create(namespace string, labels map[string]string, spec corev1.PodSpec) (*corev1.Pod, error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pod", Labels: labels}, Spec: spec}
	return pod, a.Create(context.Background(), pod, client.DryRunAll)
}

func (a admission) mustCreate(namespace string, labels map[string]string, spec corev1.PodSpec) *corev1.Pod {
	a.t.Helper()
	pod, err := a.create(namespace, labels, spec)
	if err != nil {
		a.t.Fatal(err)
	}
	return pod
}

// waitFor waits until the server, which learns of policies shortly after they were
// made, changes such a pod.
func (a admission) waitFor(namespace string, labels map[string]string) {
	a.t.Helper()
	testutil.Eventually(a.t, 30*time.Second, "the policy has effect", func() bool {
		return len(a.mustCreate(namespace, labels, containers(nil)).Spec.Containers[0].Env) > 0
	})
}

// containers is a pod of one container with these variables, and an init container
// with the same.
func containers(env []corev1.EnvVar) corev1.PodSpec {
	container := func(name string) corev1.Container {
		return corev1.Container{Name: name, Image: "example.invalid/none", Env: env}
	}
	return corev1.PodSpec{InitContainers: []corev1.Container{container("first")}, Containers: []corev1.Container{container("main")}}
}

func variables(pairs ...string) (env []corev1.EnvVar) {
	for i := 0; i < len(pairs); i += 2 {
		env = append(env, corev1.EnvVar{Name: pairs[i], Value: pairs[i+1]})
	}
	return env
}

func TestPreloading(t *testing.T) {
	a := admit(t)
	a.namespace("strict", map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	a.waitFor("apps", preloaded)
	t.Run("selected pods get what makes programs ask for MPTCP", a.selected)
	t.Run("other pods stay as they are", a.others)
	t.Run("pods that may have nothing of the host get the variable for Go alone", a.strict)
	t.Run("pods of namespaces that ask for it get what the namespace says", a.wholeNamespaces)
}

func (a admission) wholeNamespaces(t *testing.T) {
	none, variable := []corev1.EnvVar(nil), variables("GODEBUG", "multipathtcp=1")
	library := append(variables("GODEBUG", "multipathtcp=1"), variables("LD_PRELOAD", preloadLibrary)...)
	refusing, otherwise := map[string]string{"braid.dev/preload": "false"}, map[string]string{"app": "web"}
	strict := map[string]string{"braid.dev/preload": "library", "pod-security.kubernetes.io/enforce": "restricted"}
	a.namespace("go", preloaded)
	a.namespace("both", map[string]string{"braid.dev/preload": "library"})
	a.namespace("strict-both", strict)
	a.namespace("typo", map[string]string{"braid.dev/preload": "yes"})
	a.namespace("off", refusing)
	a.waitFor("go", nil)
	for name, test := range map[string]struct {
		namespace string
		labels    map[string]string
		want      []corev1.EnvVar
	}{
		"true: the variable, which no image is harmed by": {"go", otherwise, variable},
		"true, and a pod that says the library fits":      {"go", preloaded, library},
		"true, and a pod that refuses":                    {"go", refusing, none},
		"library: both":                                   {"both", nil, library},
		"library, and a pod that refuses":                 {"both", refusing, none},
		"library, and pods must have nothing of the host": {"strict-both", nil, variable},
		"false":                                {"off", nil, none},
		"false, and a pod that asks for it":    {"off", preloaded, library},
		"a word that means nothing":            {"typo", nil, none},
		"no word, and a pod that says nothing": {"apps", nil, none},
	} {
		t.Run(name, func(t *testing.T) {
			pod := a.mustCreate(test.namespace, test.labels, restricted())
			if diff := cmp.Diff(test.want, pod.Spec.Containers[0].Env); diff != "" {
				t.Errorf("the variables:\n%s", diff)
			}
			if withLibrary := len(test.want) == 2; (len(pod.Spec.Volumes) == 1) != withLibrary {
				t.Errorf("the volumes: %v", pod.Spec.Volumes)
			}
			again := a.mustCreate(test.namespace, test.labels, pod.Spec)
			if diff := cmp.Diff(pod.Spec, again.Spec); diff != "" {
				t.Errorf("a second time changes more:\n%s", diff)
			}
		})
	}
}

// restricted is a pod that may run everywhere.
func restricted() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.invalid/none", SecurityContext: &corev1.SecurityContext{
		RunAsNonRoot: new(true), AllowPrivilegeEscalation: new(false), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}}}}
}

func (a admission) selected(t *testing.T) {
	fromPod := []corev1.EnvVar{{Name: "GODEBUG", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}}}
	for name, test := range map[string]struct{ given, want []corev1.EnvVar }{
		"without variables of its own": {
			nil, variables("GODEBUG", "multipathtcp=1", "LD_PRELOAD", preloadLibrary),
		},
		"with others": {
			variables("A", "1", "B", "$(A)"), variables("A", "1", "B", "$(A)", "GODEBUG", "multipathtcp=1", "LD_PRELOAD", preloadLibrary),
		},
		"with the same ones, which are added to": {
			variables("GODEBUG", "http2debug=1,netdns=go", "A", "1", "LD_PRELOAD", "/lib/a.so:/lib/b.so"),
			variables("GODEBUG", "http2debug=1,netdns=go,multipathtcp=1", "A", "1", "LD_PRELOAD", "/lib/a.so:/lib/b.so:"+preloadLibrary),
		},
		"with empty ones": {
			variables("GODEBUG", "", "LD_PRELOAD", ""), variables("GODEBUG", "multipathtcp=1", "LD_PRELOAD", preloadLibrary),
		},
		"with its own word about MPTCP": {
			variables("GODEBUG", "a=b,multipathtcp=0"), variables("GODEBUG", "a=b,multipathtcp=0", "LD_PRELOAD", preloadLibrary),
		},
		"with the library already": {
			variables("LD_PRELOAD", "/lib/a.so "+preloadLibrary, "GODEBUG", "multipathtcp=1"),
			variables("LD_PRELOAD", "/lib/a.so "+preloadLibrary, "GODEBUG", "multipathtcp=1"),
		},
		"with a value from elsewhere": {
			fromPod, append(fromPod, variables("LD_PRELOAD", preloadLibrary)...),
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := a.mustCreate("apps", preloaded, containers(test.given))
			for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
				if diff := cmp.Diff(test.want, container.Env); diff != "" {
					t.Errorf("the variables of %s:\n%s", container.Name, diff)
				}
			}
			expectLibrary(t, pod)
			again := a.mustCreate("apps", preloaded, pod.Spec)
			if diff := cmp.Diff(pod.Spec, again.Spec); diff != "" {
				t.Errorf("a second time changes more:\n%s", diff)
			}
		})
	}
}

// expectLibrary fails unless the pod has the host's directory and each container
// mounts it.
func expectLibrary(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	kind := corev1.HostPathDirectoryOrCreate
	volumes := []corev1.Volume{{Name: "braid-preload", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: preloadDirectory, Type: &kind}}}}
	if diff := cmp.Diff(volumes, pod.Spec.Volumes); diff != "" {
		t.Errorf("the volumes:\n%s", diff)
	}
	mounts := []corev1.VolumeMount{{Name: "braid-preload", MountPath: preloadDirectory, ReadOnly: true}}
	for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		if diff := cmp.Diff(mounts, container.VolumeMounts); diff != "" {
			t.Errorf("the mounts of %s:\n%s", container.Name, diff)
		}
	}
}

func (a admission) others(t *testing.T) {
	plain := containers(variables("GODEBUG", "a=b"))
	onHost := *plain.DeepCopy()
	onHost.HostNetwork = true
	for name, test := range map[string]struct {
		labels map[string]string
		spec   corev1.PodSpec
	}{
		"without the label":           {nil, plain},
		"with another value of it":    {map[string]string{"braid.dev/preload": "false"}, plain},
		"that use the host's network": {preloaded, onHost},
	} {
		t.Run(name, func(t *testing.T) {
			pod := a.mustCreate("apps", test.labels, test.spec)
			if diff := cmp.Diff(variables("GODEBUG", "a=b"), pod.Spec.Containers[0].Env); diff != "" {
				t.Errorf("the variables:\n%s", diff)
			}
			if len(pod.Spec.Volumes) > 0 {
				t.Errorf("the volumes: %v", pod.Spec.Volumes)
			}
		})
	}
}

func (a admission) strict(t *testing.T) {
	pod := a.mustCreate("strict", preloaded, restricted())
	if diff := cmp.Diff(variables("GODEBUG", "multipathtcp=1"), pod.Spec.Containers[0].Env); diff != "" {
		t.Errorf("the variables:\n%s", diff)
	}
	if len(pod.Spec.Volumes) > 0 {
		t.Errorf("the volumes: %v", pod.Spec.Volumes)
	}
}

func TestPreloadingGoesBySelectorsWhereSomeAreGiven(t *testing.T) {
	a := admit(t, "--set", "sockets.preload.namespaceSelector.matchLabels.team=network,sockets.preload.directory=")
	a.namespace("ours", map[string]string{"team": "network"})
	a.waitFor("ours", nil)
	pod := a.mustCreate("ours", nil, containers(nil))
	if diff := cmp.Diff(variables("GODEBUG", "multipathtcp=1"), pod.Spec.Containers[0].Env); diff != "" || len(pod.Spec.Volumes) > 0 {
		t.Errorf("without a directory for the library the pod has %v and the variables:\n%s", pod.Spec.Volumes, diff)
	}
	if pod := a.mustCreate("ours", map[string]string{"braid.dev/preload": "false"}, containers(nil)); len(pod.Spec.Containers[0].Env) > 0 {
		t.Errorf("a pod that refuses got %v", pod.Spec.Containers[0].Env)
	}
	if pod := a.mustCreate("apps", preloaded, containers(nil)); len(pod.Spec.Containers[0].Env) > 0 {
		t.Errorf("a pod of another namespace got %v", pod.Spec.Containers[0].Env)
	}
}
