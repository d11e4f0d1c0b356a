// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"braid.dev/braid/internal/lab/apiserver"
)

// maxAnnotations is how many bytes all annotations of an object may have.
const maxAnnotations = 256 * 1024

// TestEveryCRDFitsIntoTheAnnotationOfKubectlApply leaves room for other
// annotations: kubectl apply keeps the whole object in one.
func TestEveryCRDFitsIntoTheAnnotationOfKubectlApply(t *testing.T) {
	dir, err := apiserver.CRDDir()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "braid.dev_*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRD in %s: %v", dir, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		annotation, err := yaml.YAMLToJSON(content)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if limit := maxAnnotations * 9 / 10; len(annotation) > limit {
			t.Errorf("%s has %d bytes as JSON, more than %d", filepath.Base(file), len(annotation), limit)
		}
	}
}
