// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

// provider is where the cluster comes from.
type provider interface {
	// up brings the cluster up, with the images on every node, and returns its
	// kubeconfig.
	up(ctx context.Context, images []string) (string, error)
	// load gives every node further images.
	load(ctx context.Context, images []string) error
	down(ctx context.Context) error
	// nodes are the names of the nodes.
	nodes() []string
	// onNode runs a command in a node's network namespace.
	onNode(ctx context.Context, node string, command ...string) (string, error)
	// insideNode runs one that sees the node's files too.
	insideNode(ctx context.Context, node string, command ...string) (string, error)
	// reboot takes a node down with all that runs on it, and brings it up again.
	reboot(ctx context.Context, node string) error
	// unplug takes a node's NIC on a path away, plug gives it a new one.
	unplug(ctx context.Context, node string, path int) error
	plug(ctx context.Context, node string, path int) error
	// killContainer kills what runs in a container, which kubelet calls by this name.
	killContainer(ctx context.Context, node, id string) error
	// shell is what a shell runs before a command to have it run on the node of that name.
	shell(node string) string
	// insideShell is the same for one that sees the node's files too.
	insideShell(t *testing.T, node string) string
	// killServer kills the API server, and lets it come back after a while.
	killServer(ctx context.Context, away time.Duration) error
	// lastWords are the ends of the logs of the cluster's processes.
	lastWords() []string
}

func newProvider(name string) (provider, error) {
	switch name {
	case "", "lab":
		return &labProvider{}, nil
	case "kind":
		return &kindProvider{}, nil
	}
	return nil, fmt.Errorf("PROVIDER=%s: must be lab or kind", name)
}

// labProvider is a cluster of this machine's network namespaces.
type labProvider struct{ lab *lab.Lab }

const linkMbit = 100

func (p *labProvider) up(ctx context.Context, images []string) (_ string, err error) {
	if err := lab.FetchKubernetes(ctx); err != nil {
		return "", err
	}
	clusterNetwork, err := lab.ClusterNetworkNamed(os.Getenv("NETWORK"))
	if err != nil {
		return "", err
	}
	p.lab, err = lab.Up(ctx, lab.Options{
		Name: "kubelets", Kubelets: true, ClusterNetwork: clusterNetwork, Images: images,
		Network: network.Spec{Nodes: 3, Paths: paths, LinkMbit: linkMbit},
	})
	if err != nil {
		return "", err
	}
	return p.lab.Server.KubeconfigPath(), nil
}

func (p *labProvider) load(ctx context.Context, images []string) error {
	return p.lab.ImportImages(ctx, images)
}

func (p *labProvider) down(context.Context) error {
	if p.lab == nil {
		return nil
	}
	return p.lab.Down()
}

func (p *labProvider) nodes() (names []string) {
	for _, node := range p.lab.Network.Nodes {
		names = append(names, node.NodeName())
	}
	return names
}

func (p *labProvider) node(name string) (*network.Node, error) {
	for _, node := range p.lab.Network.Nodes {
		if node.NodeName() == name {
			return node, nil
		}
	}
	return nil, fmt.Errorf("there is no node %s", name)
}

func (p *labProvider) onNode(ctx context.Context, name string, command ...string) (string, error) {
	node, err := p.node(name)
	if err != nil {
		return "", err
	}
	return run(ctx, "nsenter", append([]string{"--net=" + node.Path()}, command...)...)
}

func (p *labProvider) unplug(_ context.Context, name string, path int) error {
	node, err := p.node(name)
	if err != nil {
		return err
	}
	return node.Unplug(paths[path])
}

func (p *labProvider) plug(_ context.Context, name string, path int) error {
	node, err := p.node(name)
	if err != nil {
		return err
	}
	return node.Plug(paths[path])
}

func (p *labProvider) killContainer(ctx context.Context, node, id string) error {
	return p.lab.KillContainer(ctx, node, id)
}

func (p *labProvider) insideNode(ctx context.Context, name string, command ...string) (string, error) {
	inside, err := p.lab.InsideNode(name, command...)
	if err != nil {
		return "", err
	}
	return run(ctx, inside[0], inside[1:]...)
}

func (p *labProvider) shell(node string) string {
	return "nsenter --net=" + filepath.Join(network.Directory, p.lab.Name+"-"+node)
}

func (p *labProvider) insideShell(t *testing.T, node string) string {
	t.Helper()
	inside, err := p.lab.InsideNode(node)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(inside, " ")
}

func (p *labProvider) lastWords() []string { return p.lab.LastWords() }

func (p *labProvider) reboot(ctx context.Context, node string) error { return p.lab.Reboot(ctx, node) }

func (p *labProvider) killServer(ctx context.Context, away time.Duration) error {
	if err := p.lab.Server.StopServer(); err != nil {
		return err
	}
	time.Sleep(away)
	return p.lab.Server.StartServer(ctx)
}

// kindProvider is a cluster of kind, whose nodes get two further networks of
// Docker. It needs docker, kind and a registry for kind's node image.
type kindProvider struct{}

const kindName = "braid-e2e"

func (p *kindProvider) up(ctx context.Context, images []string) (string, error) {
	kubeconfig := filepath.Join(repository, "_out", "kind.kubeconfig")
	err := p.each(ctx,
		"kind create cluster --name "+kindName+" --config e2e/cluster/kind.yaml --kubeconfig "+kubeconfig,
		"docker network create braid-green", "docker network create braid-red")
	if err != nil {
		return "", err
	}
	for _, node := range p.nodes() {
		// The networks' interfaces come in this order: eth0 is kind's own.
		if err := p.each(ctx, "docker network connect braid-green "+node, "docker network connect braid-red "+node); err != nil {
			return "", err
		}
		for i, path := range paths {
			rename := fmt.Sprintf("ip link property add dev eth%d altname %s", i, path)
			if _, err := p.onNode(ctx, node, strings.Fields(rename)...); err != nil {
				return "", err
			}
		}
	}
	return kubeconfig, p.load(ctx, images)
}

func (p *kindProvider) load(ctx context.Context, images []string) error {
	for _, image := range images {
		if err := p.each(ctx, "kind load image-archive --name "+kindName+" "+image); err != nil {
			return err
		}
	}
	return nil
}

func (p *kindProvider) down(ctx context.Context) error {
	return p.each(ctx, "kind delete cluster --name "+kindName, "docker network rm braid-green braid-red")
}

func (p *kindProvider) each(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		fields := strings.Fields(line)
		if _, err := run(ctx, fields[0], fields[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func (p *kindProvider) nodes() (names []string) {
	for i := range 3 {
		name := kindName + "-worker"
		if i > 0 {
			name += fmt.Sprint(i + 1)
		}
		names = append(names, name)
	}
	return names
}

func (p *kindProvider) onNode(ctx context.Context, node string, command ...string) (string, error) {
	return run(ctx, "docker", append([]string{"exec", node}, command...)...)
}

func (p *kindProvider) insideNode(ctx context.Context, node string, command ...string) (string, error) {
	return p.onNode(ctx, node, command...)
}

func (p *kindProvider) shell(node string) string { return "docker exec " + node }

func (p *kindProvider) insideShell(_ *testing.T, node string) string { return p.shell(node) }

// reboot plugs the further networks in by itself: Docker remembers them.
func (p *kindProvider) reboot(ctx context.Context, node string) error {
	return p.each(ctx, "docker restart "+node)
}

func (p *kindProvider) unplug(ctx context.Context, node string, path int) error {
	return p.each(ctx, "docker network disconnect braid-"+paths[path]+" "+node)
}

func (p *kindProvider) plug(ctx context.Context, node string, path int) error {
	return p.each(ctx, "docker network connect braid-"+paths[path]+" "+node)
}

func (p *kindProvider) killContainer(ctx context.Context, node, id string) error {
	_, err := p.onNode(ctx, node, "ctr", "--namespace", "k8s.io", "task", "kill", "--signal", "SIGKILL", id)
	return err
}

// killServer: kubelet starts it again.
func (p *kindProvider) killServer(ctx context.Context, away time.Duration) error {
	_, err := p.onNode(ctx, kindName+"-control-plane", "pkill", "-KILL", "kube-apiserver")
	time.Sleep(away)
	return err
}

func (p *kindProvider) lastWords() []string { return nil }

// interfaceOf is the name of a node's NIC on a path.
func interfaceOf(path int) string {
	if os.Getenv("PROVIDER") == "kind" {
		return fmt.Sprintf("eth%d", path)
	}
	return paths[path]
}
