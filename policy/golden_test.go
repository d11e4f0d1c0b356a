// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"braid.dev/braid/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// TestGolden compiles every testdata/NAME.yaml and compares the result with
// NAME.golden.yaml and its explanation with NAME.explain.golden.
func TestGolden(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, file := range inputs {
		base := strings.TrimSuffix(file, ".yaml")
		if strings.HasSuffix(base, ".golden") {
			continue
		}
		ran++
		t.Run(filepath.Base(base), func(t *testing.T) {
			result := Compile(readInput(t, file))
			text, err := sigsyaml.Marshal(result)
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, base+".golden.yaml", string(text))
			compareGolden(t, base+".explain.golden", explanation(result))
		})
	}
	if ran == 0 {
		t.Fatal("no input under testdata")
	}
}

func explanation(result Result) string {
	var b strings.Builder
	for _, d := range result.Decisions {
		b.WriteString(d.String())
	}
	return b.String()
}

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (go test ./policy -update writes it anew):\n%s", file, diff)
	}
}

func testScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(corev1.AddToScheme(scheme))
	return scheme
}

// readInput reads the objects in a file of YAML documents.
func readInput(t *testing.T, file string) Input {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(testScheme(), serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(content)))
	var in Input
	for buffer := make([]byte, 1<<20); ; {
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return in
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		object, _, err := decoder.Decode(buffer[:n], nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		in.add(t, object)
	}
}

// addProgramObjects takes a ConfigMap's contents themselves for their revisions.
func (in *Input) addProgramObjects(m *corev1.ConfigMap) {
	if in.ProgramObjects == nil {
		in.ProgramObjects = map[ProgramObject]string{}
	}
	for key, content := range m.BinaryData {
		in.ProgramObjects[ProgramObject{ConfigMap: m.Name, Key: key}] = string(content)
	}
}

func (in *Input) add(t *testing.T, object runtime.Object) {
	t.Helper()
	switch o := object.(type) {
	case *v1alpha1.MPTCPPath:
		in.Paths = append(in.Paths, *o)
	case *v1alpha1.MPTCPPolicy:
		in.Policies = append(in.Policies, *o)
	case *v1alpha1.ClusterMPTCPPolicy:
		in.ClusterPolicies = append(in.ClusterPolicies, *o)
	case *v1alpha1.MPTCPGuardrail:
		in.Guardrails = append(in.Guardrails, *o)
	case *corev1.ConfigMap:
		in.addProgramObjects(o)
	case *corev1.Namespace:
		in.Namespaces = append(in.Namespaces, *o)
	case *corev1.Pod:
		in.Pods = append(in.Pods, *o)
	case *corev1.Node:
		in.Nodes = append(in.Nodes, *o)
	default:
		t.Fatalf("unexpected object %T", object)
	}
}
