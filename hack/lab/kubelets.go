// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/internal/lab/network"
)

// advertised is where pods reach the API server: an address of every node's lo, on
// which the forwarder listens.
const advertised = "10.255.255.254"

func (l *Lab) advertise() string {
	if l.options.Kubelets {
		return advertised
	}
	return ""
}

func (l *Lab) tunnel() string {
	if l.options.Kubelets {
		return l.path("tunnel.sock")
	}
	return ""
}

// pauseImage is the sandbox of every pod.
const pauseImage = "braid.dev/pause:1"

// FetchCluster makes sure that the programs of a cluster with kubelets are there
// and returns their directory; the first time that takes minutes.
func FetchCluster(ctx context.Context) (string, error) {
	out, err := runScript(ctx, "cluster")
	if err != nil {
		return "", fmt.Errorf("getting kubelet, containerd and the rest: %w", err)
	}
	return strings.TrimSpace(out), nil
}

// clusterBinary is the path of a program that hack/cluster builds.
func (l *Lab) clusterBinary(name string) string { return filepath.Join(l.clusterBinaries, name) }

// upWithKubelets brings up a cluster in which pods are scheduled and run.
func (l *Lab) upWithKubelets(ctx context.Context) (err error) {
	err = l.step("kubelet, containerd and the rest", func() (err error) {
		if l.clusterBinaries, err = FetchCluster(ctx); err != nil {
			return err
		}
		return errors.Join(l.fetchFlannel(ctx), l.findCalico(), l.fetchCilium(ctx))
	})
	if err != nil {
		return err
	}
	var ready errgroup.Group
	ready.Go(func() error {
		return l.step("A Kubernetes API server and its etcd", func() error { return l.startServer(ctx) })
	})
	ready.Go(func() error { return l.step(l.describeNetwork(), l.buildNetwork) })
	if err := ready.Wait(); err != nil {
		return err
	}
	if err := l.defineCalico(ctx); err != nil {
		return err
	}
	if err := l.step("Controller manager and scheduler", func() error { return l.startControllers(ctx) }); err != nil {
		return err
	}
	return l.step("containerd, kubelet and kube-proxy on each node", func() error { return l.startNodes(ctx) })
}

// startControllers starts what acts on the API server's objects, and makes it
// reachable from the nodes.
func (l *Lab) startControllers(ctx context.Context) error {
	for _, node := range l.Network.Nodes {
		if err := l.prepareNode(node); err != nil {
			return err
		}
	}
	if err := l.startForwarder(ctx); err != nil {
		return err
	}
	common := []string{"--kubeconfig=" + l.Server.KubeconfigPath(), "--leader-elect=false", "--secure-port=0"}
	manager := append([]string{
		"--service-account-private-key-file=" + l.Server.ServiceAccountKeyPath(),
		"--root-ca-file=" + l.Server.CertificatePath(),
		"--allocate-node-cidrs=false",
		"--controllers=*,-bootstrap-signer-controller,-token-cleaner-controller",
	}, common...)
	if err := l.keepRunning("kube-controller-manager", l.clusterBinary("kube-controller-manager"), manager...); err != nil {
		return err
	}
	if err := l.keepRunning("kube-scheduler", l.clusterBinary("kube-scheduler"), common...); err != nil {
		return err
	}
	return l.startCiliumOperator()
}

// prepareNode adds to a node's network what kubelets and Services need.
func (l *Lab) prepareNode(node *network.Node) error {
	if err := node.AddAddress("lo", advertised+"/32"); err != nil {
		return err
	}
	// Addresses of Services are translated on the way out, and so need a way.
	return node.AddRoute(network.Route{Destination: "0.0.0.0/0", Interface: l.options.Network.Paths[0]})
}

func (l *Lab) startNodes(ctx context.Context) error {
	pause, err := l.buildPause(ctx)
	if err != nil {
		return err
	}
	images := append([]string{pause}, l.options.Images...)
	var ready errgroup.Group
	for _, node := range l.Network.Nodes {
		k := &kubeNode{lab: l, node: node}
		l.nodes = append(l.nodes, k)
		ready.Go(func() error { return k.start(ctx, images) })
	}
	return ready.Wait()
}

// ImportImages gives all nodes further images, of which these are the archives.
func (l *Lab) ImportImages(ctx context.Context, archives []string) error {
	var imported errgroup.Group
	for _, node := range l.nodes {
		imported.Go(func() error {
			for _, archive := range archives {
				if err := node.importImage(ctx, archive); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return imported.Wait()
}

// buildPause makes the image of the process that holds a pod's namespaces.
func (l *Lab) buildPause(ctx context.Context) (archive string, err error) {
	program, archive := l.path("pause"), l.path("pause.tar")
	for _, command := range []*exec.Cmd{
		exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", program, "./hack/lab/cmd/pause"),
		exec.CommandContext(ctx, "go", "-C", "hack/image", "run", ".", "--programs", program, "--name", pauseImage, "--output", archive),
	} {
		command.Dir = l.repository
		command.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := command.CombinedOutput(); err != nil {
			return "", fmt.Errorf("making the image %s: %w: %s", pauseImage, err, out)
		}
	}
	return archive, nil
}

func (l *Lab) nodeReady(ctx context.Context, name string) error {
	var node corev1.Node
	if err := l.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return fmt.Errorf("waiting for %s: %w", name, err)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("%s is not ready: %v", name, node.Status.Conditions)
}
