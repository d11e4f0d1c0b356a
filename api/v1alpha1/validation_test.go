// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/apiserver"
)

// server is one API server for all tests of this package.
var server *apiserver.Server

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	crds, err := apiserver.CRDDir()
	if err == nil {
		server, err = apiserver.Start(context.Background(), apiserver.Options{CRDDirs: []string{crds}})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// strictClient validates as kubectl does.
type strictClient struct{ client.Client }

func newClient(t *testing.T) strictClient {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(server.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return strictClient{client.WithFieldValidation(c, metav1.FieldValidationStrict)}
}

func TestTheAPIServerRefusesA(t *testing.T) {
	c := newClient(t)
	for _, manifest := range readManifests(t, "testdata/invalid/*.yaml") {
		t.Run(manifest.name, func(t *testing.T) {
			if len(manifest.refusals) == 0 {
				t.Fatal("the file does not say in '# refused:' lines what the message must contain")
			}
			err := c.Create(t.Context(), manifest.object, client.DryRunAll)
			if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
				t.Fatalf("got %v, want a refusal", err)
			}
			for _, want := range manifest.refusals {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the message does not contain %q:\n%v", want, err)
				}
			}
		})
	}
}

func TestTheAPIServerAcceptsA(t *testing.T) {
	accept(t, "testdata/valid/*.yaml")
}

func TestTheAPIServerAcceptsTheSample(t *testing.T) {
	accept(t, "../../config/samples/braid_*.yaml")
}

func accept(t *testing.T, pattern string) {
	t.Helper()
	c := newClient(t)
	for _, manifest := range readManifests(t, pattern) {
		t.Run(manifest.name, func(t *testing.T) { c.accept(t, manifest) })
	}
}

func (c strictClient) accept(t *testing.T, m manifest) {
	t.Helper()
	if err := c.Create(t.Context(), m.object, client.DryRunAll); err != nil {
		t.Error(err)
	}
}

// example is a program of YAML in a page that is a whole object.
var example = regexp.MustCompile("(?ms)^```yaml\n(apiVersion: .*?)^```$")

// TestTheAPIServerAcceptsTheExamplesOf each page that can be pasted.
func TestTheAPIServerAcceptsTheExamplesOf(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t)
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "braid-system"}}
	if err := c.Create(t.Context(), system); err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../../README.md") {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, program := range example.FindAllStringSubmatch(string(content), -1) {
			for _, m := range parseManifests(t, page, program[1]) {
				if !isForThisServer(m.object) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d", filepath.Base(page), i+1), func(t *testing.T) { c.accept(t, m) })
			}
		}
	}
}

// isForThisServer is false for what only a client reads, or another project defines,
// of which the API server knows nothing.
func isForThisServer(object *unstructured.Unstructured) bool {
	group := object.GroupVersionKind().Group
	return group != "kustomize.config.k8s.io" && group != "projectcalico.org" && group != "kubevirt.io"
}

// manifest is one object of a YAML file.
type manifest struct {
	name     string
	object   *unstructured.Unstructured
	refusals []string
}

func readManifests(t *testing.T, pattern string) []manifest {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("no file matches %s", pattern)
	}
	var manifests []manifest
	for _, file := range files {
		manifests = append(manifests, readManifest(t, file)...)
	}
	return manifests
}

var refusedLine = regexp.MustCompile(`(?m)^# refused: (.*)$`)

func readManifest(t *testing.T, file string) []manifest {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return parseManifests(t, file, string(content))
}

func parseManifests(t *testing.T, file, content string) []manifest {
	t.Helper()
	var refusals []string
	for _, match := range refusedLine.FindAllStringSubmatch(content, -1) {
		refusals = append(refusals, match[1])
	}
	name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".yaml"), "-", " ")
	var manifests []manifest
	for _, document := range strings.Split(content, "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		manifests = append(manifests, manifest{name: name, object: object, refusals: refusals})
	}
	return manifests
}
