// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// DefaultBinDir is where hack/kube/build.sh puts the binaries.
func DefaultBinDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache of the Kubernetes binaries: %w", err)
	}
	return filepath.Join(cache, "braid", "kube", KubernetesVersion), nil
}

func checkBinaries(dir string) error {
	for _, name := range []string{"kube-apiserver", "etcd"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("a Kubernetes binary is missing: run hack/kube/build.sh first: %w", err)
		}
	}
	return nil
}

// CRDDir is the directory of this repository's CustomResourceDefinitions. It
// looks for the repository from the working directory upwards.
func CRDDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		candidate := filepath.Join(dir, "config", "crd")
		if _, err := os.Stat(candidate); err == nil {
			return candidate, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no config/crd here or above: run this inside the repository")
		}
		dir = parent
	}
}

// ForTest starts a server with this repository's CRDs, which ends with the test.
func ForTest(t testing.TB) *Server {
	t.Helper()
	crds, err := CRDDir()
	if err != nil {
		t.Fatal(err)
	}
	server, err := Start(t.Context(), Options{CRDDirs: []string{crds}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("stopping the API server: %v", err)
		}
	})
	return server
}
