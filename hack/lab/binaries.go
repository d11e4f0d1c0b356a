// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"braid.dev/braid/internal/lab/apiserver"
)

// Repository is the root of this repository, looked for from the working
// directory upwards.
func Repository() (string, error) {
	crds, err := apiserver.CRDDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(crds, "..", ".."), nil
}

// programs are those of this repository that a lab runs.
var programs = []string{"./cmd/braid-controller", "./cmd/braid-agent", "./cmd/braid-trace", "./hack/lab/cmd/traffic"}

// Binary is the path of a program: braid-controller, braid-agent or traffic.
func (l *Lab) Binary(name string) string { return filepath.Join(l.repository, "_out", "bin", name) }

// buildPrograms builds them; the toolchain's cache makes that short.
func (l *Lab) buildPrograms(ctx context.Context) error {
	arguments := append([]string{"build", "-o", l.Binary("") + "/"}, programs...)
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Dir = l.repository
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("building %v: %w: %s", programs, err, out)
	}
	return nil
}

// FetchKubernetes makes sure that the Kubernetes binaries are there; the first
// time that takes minutes, and it says how far it is.
func FetchKubernetes(ctx context.Context) error {
	if _, err := Kubectl(); err == nil {
		return nil
	}
	if _, err := runScript(ctx, "kube"); err != nil {
		return fmt.Errorf("getting the Kubernetes binaries: %w", err)
	}
	return nil
}

// runScript runs the build script of a directory in hack/, which says how far it
// is, and returns its output.
func runScript(ctx context.Context, directory string) (string, error) {
	return runBuildScript(ctx, directory+"/build.sh")
}

// runBuildScript runs a script of hack/.
func runBuildScript(ctx context.Context, script string, arguments ...string) (string, error) {
	repository, err := Repository()
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, filepath.Join(repository, "hack", script), arguments...)
	command.Stderr = os.Stderr
	// An interrupt reaches the script by itself; it must have time to clean up.
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	out, err := command.Output()
	return string(out), err
}

// Kubectl is the path of the kubectl that belongs to the lab's API server.
func Kubectl() (string, error) {
	directory, err := apiserver.DefaultBinDir()
	if err != nil {
		return "", err
	}
	for _, name := range []string{"kube-apiserver", "etcd", "kubectl"} {
		if _, err := os.Stat(filepath.Join(directory, name)); err != nil {
			return "", errors.Join(errors.New("a Kubernetes binary is missing: run hack/kube/build.sh first"), err)
		}
	}
	return filepath.Join(directory, "kubectl"), nil
}
