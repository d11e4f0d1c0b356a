// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Images for clusters with kubelets, as BuildImages makes them.
const (
	// WorkloadImage has nginx, curl, ab, mptcpize and busybox.
	WorkloadImage = "braid.dev/workload:1"
	// TrafficImage has the lab's generator of traffic.
	TrafficImage = "braid.dev/traffic:1"
	// PauseImage is the sandbox of every pod, and as a container does nothing.
	PauseImage = pauseImage
)

// BuildImages builds the images of the controller, the agent and the programs that
// clusters are tried with, and returns their archives.
func BuildImages(ctx context.Context) ([]string, error) {
	repository, err := Repository()
	if err != nil {
		return nil, err
	}
	traffic := filepath.Join(repository, "_out", "images", "traffic")
	for _, command := range [][]string{
		{"hack/image/build.sh"},
		{"go", "build", "-trimpath", "-o", traffic, "./hack/lab/cmd/traffic"},
		{"go", "-C", "hack/image", "run", ".", "--programs", traffic, "--user", "0:0", "--name", TrafficImage, "--output", traffic + ".tar"},
	} {
		if _, err := runIn(ctx, repository, command...); err != nil {
			return nil, err
		}
	}
	workload, err := runIn(ctx, repository, "hack/cluster/workload.sh")
	if err != nil {
		return nil, err
	}
	archives, err := filepath.Glob(filepath.Join(repository, "_out/images/braid-*-amd64.tar"))
	if err != nil || len(archives) != 2 {
		return nil, fmt.Errorf("looking for the images of the controller and the agent: %v %w", archives, err)
	}
	return append(archives, traffic+".tar", strings.TrimSpace(workload)), nil
}

// runIn runs a command in the repository, without cgo, and returns its output.
func runIn(ctx context.Context, repository string, line ...string) (string, error) {
	if strings.HasPrefix(line[0], "hack/") {
		line[0] = filepath.Join(repository, line[0])
	}
	command := exec.CommandContext(ctx, line[0], line[1:]...)
	command.Dir = repository
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s%s", strings.Join(line, " "), err, out, stderr.String())
	}
	return string(out), nil
}

// InstallChart installs Braid's chart on a cluster with kubelets, whose nodes have
// its images, as docs/installation.md says, and waits until every node's agent
// reports.
func (l *Lab) InstallChart(ctx context.Context, settings ...string) error {
	helm, err := runIn(ctx, l.repository, "hack/helm/build.sh")
	if err != nil {
		return err
	}
	arguments := []string{
		strings.TrimSpace(helm), "install", "braid", "charts/braid", "--kubeconfig", l.Server.KubeconfigPath(),
		"--namespace", SystemNamespace, "--create-namespace", "--wait", "--timeout", "2m", "--set", "image.pullPolicy=Never",
	}
	for _, setting := range settings {
		arguments = append(arguments, "--set", setting)
	}
	if _, err := runIn(ctx, l.repository, arguments...); err != nil {
		return err
	}
	for _, node := range l.Network.Nodes {
		if err := l.WaitForAgent(ctx, node.NodeName()); err != nil {
			return err
		}
	}
	return nil
}
