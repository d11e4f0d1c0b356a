// SPDX-License-Identifier: Apache-2.0

// Package cluster_test installs Braid by its chart on a cluster with real
// kubelets and shows there what it promises, with programs that everybody knows.
//
// The cluster is one of this machine's own making; with PROVIDER=kind it is one
// of kind's, for users who have Docker and a registry.
package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/env"
	"sigs.k8s.io/e2e-framework/pkg/envconf"

	"braid.dev/braid/hack/lab"
)

const (
	systemNamespace = "braid-system"
	release         = "braid"
	workloadImage   = "braid.dev/workload:1"
	trafficImage    = "braid.dev/traffic:1"
)

// paths of every node; the routes between the nodes' pods use the first one alone.
var paths = []string{"blue", "green", "red"}

var (
	testenv    env.Environment
	repository string
	kubectlBin string
	helmBin    string
	pluginBin  string
	cluster    provider
)

func TestMain(m *testing.M) {
	lab.RunRole()
	testenv = env.NewWithConfig(envconf.New())
	testenv.Setup(setUp)
	testenv.Finish(takeDown)
	os.Exit(testenv.Run(m))
}

// setUp brings up a cluster and installs Braid on it.
func setUp(ctx context.Context, config *envconf.Config) (context.Context, error) {
	var err error
	if repository, err = lab.Repository(); err != nil {
		return ctx, err
	}
	images, err := makeImages(ctx)
	if err != nil {
		return ctx, err
	}
	otherImages.begin(ctx)
	if cluster, err = newProvider(os.Getenv("PROVIDER")); err != nil {
		return ctx, err
	}
	kubeconfig, err := cluster.up(ctx, images)
	if err != nil {
		return ctx, err
	}
	config.WithKubeconfigFile(kubeconfig)
	if err := errors.Join(findPrograms(ctx), os.Setenv("KUBECONFIG", kubeconfig)); err != nil {
		return ctx, err
	}
	return ctx, install(ctx)
}

func takeDown(ctx context.Context, _ *envconf.Config) (context.Context, error) {
	otherImages.end()
	err := os.RemoveAll(previousSource)
	if cluster == nil {
		return ctx, err
	}
	return ctx, errors.Join(err, cluster.down(ctx))
}

// makeImages builds what the nodes are to have, and returns the archives.
func makeImages(ctx context.Context) ([]string, error) {
	for _, command := range [][]string{
		{"hack/image/build.sh"},
		{"go", "build", "-trimpath", "-o", "_out/images/traffic", "./hack/lab/cmd/traffic"},
		{"go", "-C", "hack/image", "run", ".", "--programs", "../../_out/images/traffic", "--user", "0:0", "--name", trafficImage, "--output", "../../_out/images/traffic.tar"},
	} {
		if _, err := run(ctx, command[0], command[1:]...); err != nil {
			return nil, err
		}
	}
	workload, err := run(ctx, "hack/cluster/workload.sh")
	if err != nil {
		return nil, err
	}
	machine, err := lab.BuildMachineImage(ctx, machineSuite)
	if err != nil {
		return nil, err
	}
	archives, err := filepath.Glob(filepath.Join(repository, "_out/images/braid-*-amd64.tar"))
	if err != nil || len(archives) != 2 {
		return nil, fmt.Errorf("looking for the images of the controller and the agent: %v %w", archives, err)
	}
	return append(archives, filepath.Join(repository, "_out/images/traffic.tar"), strings.TrimSpace(workload), machine), nil
}

func findPrograms(ctx context.Context) (err error) {
	if kubectlBin, err = lab.Kubectl(); err != nil {
		return err
	}
	out, err := run(ctx, "hack/helm/build.sh")
	if err != nil {
		return err
	}
	helmBin, pluginBin = strings.TrimSpace(out), filepath.Join(repository, "_out", "bin", "kubectl-braid")
	_, err = run(ctx, "go", "build", "-trimpath", "-o", pluginBin, "./cmd/kubectl-braid")
	return err
}

// run runs a command in the repository and returns its output.
func run(ctx context.Context, name string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, name, arguments...)
	if strings.HasPrefix(name, "hack/") {
		command.Path = filepath.Join(repository, name)
		command.Err = nil
	}
	command.Dir = repository
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(arguments, " "), err, out, stderr.String())
	}
	return string(out), nil
}

func helm(ctx context.Context, arguments ...string) error {
	_, err := run(ctx, helmBin, append(arguments, "--namespace", systemNamespace)...)
	return err
}

// install is what docs/installation.md says, with images that are there already.
func install(ctx context.Context) error {
	began := time.Now()
	defer func() { installTook = time.Since(began) }()
	arguments := []string{
		"install", release, "charts/braid", "--create-namespace",
		"--set", "image.pullPolicy=Never", "--wait", "--timeout", "2m",
	}
	if lab.ClusterNetwork(os.Getenv("NETWORK")) == lab.CalicoBGP { // docs/routed.md says when
		arguments = append(arguments, "--set", "controller.podRanges={10.244.0.0/16}")
	}
	err := helm(ctx, arguments...)
	if err != nil {
		return err
	}
	// The agents are ready, so each has its object; kubectl fails where there is none.
	_, err = kubectl(ctx, "wait", "--for=condition=Ready", "mnode", "--all", "--timeout=60s")
	return err
}

func kubectl(ctx context.Context, arguments ...string) (string, error) {
	return run(ctx, kubectlBin, arguments...)
}
