// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/hack/lab/network"
)

// provider is where the cluster comes from.
type provider interface {
	// up brings the cluster up, with the images on every node, and returns its
	// kubeconfig.
	up(ctx context.Context, images []string) (string, error)
	down(ctx context.Context) error
	// nodes are the names of the nodes.
	nodes() []string
	// onNode runs a command in a node's network namespace.
	onNode(ctx context.Context, node string, command ...string) (string, error)
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
	p.lab, err = lab.Up(ctx, lab.Options{
		Name: "kubelets", Kubelets: true, Images: images,
		Network: network.Spec{Nodes: 3, Paths: paths, LinkMbit: linkMbit},
	})
	if err != nil {
		return "", err
	}
	return p.lab.Server.KubeconfigPath(), nil
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

func (p *labProvider) onNode(ctx context.Context, name string, command ...string) (string, error) {
	for _, node := range p.lab.Network.Nodes {
		if node.NodeName() == name {
			return run(ctx, "nsenter", append([]string{"--net=" + node.Path()}, command...)...)
		}
	}
	return "", fmt.Errorf("there is no node %s", name)
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
	for _, image := range images {
		if err := p.each(ctx, "kind load image-archive --name "+kindName+" "+image); err != nil {
			return "", err
		}
	}
	return kubeconfig, nil
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

// interfaceOf is the name of a node's NIC on a path.
func interfaceOf(path int) string {
	if os.Getenv("PROVIDER") == "kind" {
		return fmt.Sprintf("eth%d", path)
	}
	return paths[path]
}
