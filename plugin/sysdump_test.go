// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

// canary must not be in an archive, wherever a user put it.
const canary = "canary-5d1f0c"

func secretly() map[string]string { return map[string]string{"password": canary} }

// addCanaries puts it where clusters have secrets, and beside that.
func (s *scene) addCanaries() {
	s.t.Helper()
	environment := corev1.EnvVar{Name: "TOKEN_OF_A_STRANGER", Value: canary}
	for _, namespace := range []string{"shop", "braid-system"} {
		s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "keys"}, StringData: secretly()}, nil)
		s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "settings"}, Data: secretly()}, nil)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: map[string]string{"stranger.example/key": canary, "braid.dev/preferred-paths": "blue"}},
		Spec: corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{
			Name: "c", Image: "c", Env: []corev1.EnvVar{environment}, Args: []string{"--password=" + canary}, Command: []string{"sh", "-c", canary},
		}}},
	}
	s.create(pod, func() {
		pod.Status.Phase = corev1.PodFailed
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", Message: canary},
		}}}
	})
	policy := &v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "spread", Annotations: map[string]string{
		"kubectl.kubernetes.io/last-applied-configuration": canary,
	}}}
	s.create(policy, nil)
	s.addPlan("node1", endpointOf(pod, policy), nil)
	labels := map[string]string{"app.kubernetes.io/part-of": "braid", "helm.sh/chart": "braid-0.1.0"}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"stranger.example/key": canary}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "agent", Image: "braid.dev/braid-agent:1", Args: []string{"--log-level=info"}, Env: []corev1.EnvVar{environment},
			EnvFrom: []corev1.EnvFromSource{{Prefix: "CANARY_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}}}},
		}}},
	}
	about := metav1.ObjectMeta{Namespace: "braid-system", Name: "braid-agent", Labels: labels, Annotations: map[string]string{"stranger.example/key": canary}}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	s.create(&appsv1.DaemonSet{ObjectMeta: about, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}}, nil)
	about.Name = "braid-controller"
	s.create(&appsv1.Deployment{ObjectMeta: about, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}}, nil)
}

// dumpedNodes are two nodes; the agent of node2 is ill, and has no log.
func dumpedNodes(t *testing.T) *scene {
	t.Helper()
	inUTC(t)
	s := newNodeScene(t, &nodes{
		agent: func(agent string, command []string, _ io.Reader, out io.Writer) error {
			if command[1] == "metrics" {
				fmt.Fprint(out, "braid_path_peers 2\n")
				return nil
			}
			if agent == "agent-node2" {
				return errors.New("node2 has a headache")
			}
			time.Sleep(3 * time.Second) // long enough to be told of
			fmt.Fprintf(out, "%s of %s\n", command[1], agent)
			return nil
		},
		logs: map[string]string{
			"agent-node1/agent": "it runs\n", "agent-node1/agent/previous": "it ran\n",
			"controller-0/controller": "it decides\n", "controller-0/controller/previous": "it decided\n",
		},
	})
	for _, namespace := range []string{"braid-system", "shop"} {
		s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, nil)
	}
	for i := range 2 {
		node, address := fmt.Sprintf("node%d", i+1), fmt.Sprintf("192.0.2.%d", i+1)
		s.addKubelet(node, address)
		s.addSystemPod("agent", "agent-"+node, node, address, corev1.EnvVar{Name: "TOKEN_OF_A_STRANGER", Value: canary})
	}
	s.addSystemPod("controller", "controller-0", "node1", "192.0.2.9")
	s.addPath("blue")
	s.addEvent("a", "braid-controller", 10, corev1.ObjectReference{Kind: "MPTCPPath", Name: "blue"}, "NotReady", "no node has a NIC for it")
	s.addEvent("b", "kubelet", 20, corev1.ObjectReference{Kind: "Pod", Namespace: "braid-system", Name: "agent-node2"}, "BackOff", "it is ill")
	s.addEvent("c", "kubelet", 30, corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web"}, "BackOff", canary)
	s.addCanaries()
	return s
}

// unpack returns the files without the directory that all are in.
func unpack(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	packed, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for reader := tar.NewReader(packed); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		directory, name, _ := strings.Cut(header.Name, "/")
		if !strings.HasPrefix(directory, "braid-sysdump-20") || path.Clean(header.Name) != header.Name {
			t.Errorf("a file is called %s", header.Name)
		}
		files[name] = string(content)
	}
}

func TestASysdumpHasWhatMattersAndNoSecret(t *testing.T) {
	s := dumpedNodes(t)
	file := filepath.Join(t.TempDir(), "dump.tar.gz")
	out, err := s.run("sysdump", "--file", file)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, archive)
	var names strings.Builder
	for _, name := range sortedKeys(files) {
		names.WriteString(name + "\n")
		if strings.Contains(files[name], canary) {
			t.Errorf("%s has a secret:\n%s", name, files[name])
		}
	}
	s.golden("sysdump_files", names.String())
	s.golden("sysdump_errors", strings.ReplaceAll(files["errors.txt"], s.server.Config().Host, "SERVER"))
	for name, has := range map[string]string{
		"nodes/node1/subflows.json": "subflows of agent-node1", "nodes/node1/rules.json": "rules of agent-node1", "nodes/node1/reports.jsonl": "events of agent-node1",
		"nodes/node1/spreading.json": "spreading of agent-node1",
		"logs/agent-node1/agent.log": "it runs", "logs/agent-node1/agent.previous.log": "it ran", "logs/controller-0/controller.log": "it decides",
		"metrics/controller-0.txt": "braid_path_peers", "metrics/agent-node2.txt": "braid_path_peers",
		"versions.yaml": "plugin: test", "status.txt": "paths", "objects/mptcppolicies.yaml": "name: spread",
		"objects/pods.yaml": "braid.dev/preferred-paths: blue", "objects/nodes.yaml": "192.0.2.1", "objects/crds.yaml": "mptcppaths.braid.dev",
		"workloads.yaml": "helm.sh/chart: braid-0.1.0", "events.yaml": "no node has a NIC for it", "objects/configmap_sizes.yaml": fmt.Sprintf("password: %d", len(canary)),
	} {
		if !strings.Contains(files[name], has) {
			t.Errorf("%s has no %q:\n%s", name, has, files[name])
		}
	}
	for name, has := range map[string]string{"workloads.yaml": "TOKEN_OF_A_STRANGER", "objects/pods.yaml": "ended with 3: Error", "events.yaml": "it is ill"} {
		if !strings.Contains(files[name], has) {
			t.Errorf("%s has no %q:\n%s", name, has, files[name])
		}
	}
	if !strings.Contains(out, file) || !strings.Contains(out, "could not be read, see errors.txt") {
		t.Errorf("it says %s", out)
	}
	if !strings.Contains(s.warnings.String(), "still reading what the agent on node1 shows") {
		t.Errorf("nothing is told of what takes its time: %s", s.warnings.String())
	}
	if about, err := os.Stat(file); err != nil || about.Mode().Perm() != 0o600 {
		t.Errorf("the archive is %v, %v", about.Mode(), err)
	}
	if _, err := s.run("sysdump", "--file", file); !errors.Is(err, os.ErrExist) {
		t.Errorf("an archive that is there is written over: %v", err)
	}
}

func sortedKeys(files map[string]string) (names []string) {
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestASysdumpWithoutAnAPIServerFailsAndLeavesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dump.tar.gz")
	out, err := offline(t, "", "sysdump", "--file", file, "--server", "https://127.0.0.1:1")
	if err == nil || !strings.Contains(err.Error(), "asking the API server") {
		t.Errorf("the error is %v, and it printed %s", err, out)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an archive is there: %v", err)
	}
}

func TestASysdumpOfAClusterWithoutBraidSaysWhatIsMissing(t *testing.T) {
	s := newNodeScene(t, &nodes{})
	out, err := s.run("sysdump", "--file", "-")
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, []byte(out))
	if !strings.Contains(files["errors.txt"], "namespace braid-system has no pod of Braid") || files["status.txt"] == "" {
		t.Errorf("the archive has %v and says %s", sortedKeys(files), files["errors.txt"])
	}
}
