// SPDX-License-Identifier: Apache-2.0

package charts_test

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/internal/lab/apiserver"
)

// manifests are the objects of a render by kind and name.
type manifests map[string]*unstructured.Unstructured

// systemNamespace is that of config/.
const systemNamespace = "braid-system"

// ofHelm are labels and annotations that say only that Helm made an object.
var ofHelm = []string{"helm.sh/chart", "app.kubernetes.io/managed-by", "helm.sh/resource-policy"}

func parse(t *testing.T, text string) manifests {
	t.Helper()
	found := manifests{}
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if object.Object == nil {
			continue // a document of comments
		}
		forgetHelm(object)
		key := object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
		if found[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		found[key] = object
	}
}

func forgetHelm(object *unstructured.Unstructured) {
	for _, path := range [][]string{{"metadata"}, {"spec", "template", "metadata"}} {
		for _, field := range []string{"labels", "annotations"} {
			entries, given, _ := unstructured.NestedMap(object.Object, append(path, field)...)
			for _, key := range ofHelm {
				delete(entries, key)
			}
			if given && len(entries) == 0 {
				unstructured.RemoveNestedField(object.Object, append(path, field)...)
			} else if given {
				_ = unstructured.SetNestedMap(object.Object, entries, append(path, field)...)
			}
		}
	}
}

func chartManifests(t *testing.T) manifests {
	t.Helper()
	// What guards `helm uninstall` is Helm's alone.
	return parse(t, mustHelm(t, "template", "braid", "braid", "--namespace", systemNamespace, "--set", "uninstallGuard.enabled=false"))
}

func kustomize(t *testing.T, directory string) manifests {
	t.Helper()
	binaries, err := apiserver.DefaultBinDir()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(binaries, "kubectl"), "kustomize", directory).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return parse(t, string(out))
}

// generated are the files of config/ that are written from the chart, and what is in
// them.
var generated = map[string]struct {
	what    string
	objects []string
}{
	"../config/manager/manager.yaml": {"The controller", []string{
		"Deployment braid-system/braid-controller", "PodDisruptionBudget braid-system/braid-controller",
		"Service braid-system/braid-controller-metrics", "NetworkPolicy braid-system/braid-controller",
	}},
	"../config/agent/agent.yaml": {"The agents", []string{
		"DaemonSet braid-system/braid-agent", "Service braid-system/braid-agent-metrics",
	}},
}

func TestTheManifestsOfTheProgramsAreThoseOfTheChart(t *testing.T) {
	rendered := chartManifests(t)
	for path, file := range generated {
		var text strings.Builder
		fmt.Fprintf(&text, "# SPDX-License-Identifier: Apache-2.0\n#\n# %s, as the chart makes them by default: go test ./charts -update writes this anew.\n", file.what)
		for i, key := range file.objects {
			object := rendered[key]
			if object == nil {
				t.Fatalf("the chart has no %s", key)
			}
			content, err := yaml.Marshal(object.Object)
			if err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				text.WriteString("---\n")
			}
			text.Write(content)
		}
		compare(t, path, text.String())
	}
}

func TestTheManifestsMakeTheSameInstallationAsTheChart(t *testing.T) {
	want, got := chartManifests(t), kustomize(t, "../config/default")
	namespace := "Namespace /" + systemNamespace
	if got[namespace] == nil {
		t.Error("the manifests do not make the namespace, which Helm makes by itself")
	}
	delete(got, namespace)
	for key, object := range want {
		if object.GetKind() == "CustomResourceDefinition" {
			object.SetLabels(nil) // the chart's own, to find them by
		}
		if got[key] == nil {
			t.Errorf("the manifests lack %s", key)
			continue
		}
		if diff := cmp.Diff(object.Object, got[key].Object); diff != "" {
			t.Errorf("%s (- chart, + manifests):\n%s", key, diff)
		}
		delete(got, key)
	}
	for key := range got {
		t.Errorf("the chart lacks %s", key)
	}
}

func TestTheManifestsApplyAndGoAgain(t *testing.T) {
	c := cluster{t, startServer(t)}
	c.kubectl("apply", "--server-side", "-k", "../config/default")
	for _, file := range generated {
		for _, key := range file.objects {
			kind, name, _ := strings.Cut(key, " "+systemNamespace+"/")
			c.kubectl("get", kind, name, "--namespace", systemNamespace)
		}
	}
	// No controller ends the namespace here.
	c.kubectl("delete", "--wait=false", "-k", "../config/default")
	if left := c.named(everyKind); len(left) > 0 {
		t.Errorf("what is left: %v", left)
	}
}
