// SPDX-License-Identifier: Apache-2.0

// Command cluster brings up a Kubernetes cluster on this machine, with real
// kubelets on nodes that have three NICs each, and leaves it up.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

const name = "cluster"

func main() {
	lab.RunRole()
	down := flag.Bool("down", false, "remove the cluster")
	images := flag.String("images", "", "archives of images to import on every node, with commas between them")
	clusterNetwork := flag.String("network", "", "native, flannel, flannel-host-gw, calico, calico-cross-subnet, calico-native, calico-bgp, cilium, cilium-native, cilium-replacement or cilium-native-replacement")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *down, *clusterNetwork, strings.FieldsFunc(*images, func(r rune) bool { return r == ',' })); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func say(what string) { fmt.Println(what) }

func run(ctx context.Context, down bool, clusterNetwork string, images []string) error {
	if down {
		return lab.Down(ctx, name, say)
	}
	chosen, err := lab.ClusterNetworkNamed(clusterNetwork)
	if err != nil {
		return err
	}
	if err := lab.FetchKubernetes(ctx); err != nil {
		return err
	}
	up, err := lab.Up(ctx, lab.Options{
		Name: name, Kubelets: true, ClusterNetwork: chosen, Images: images, Say: say,
		Network: network.Spec{Nodes: 3, Paths: []string{"blue", "green", "red"}, LinkMbit: 100},
		Step: func(what string) func(error) {
			return func(err error) { say(what + ": " + outcome(err)) }
		},
	})
	if err != nil {
		return err
	}
	kubectl, err := lab.Kubectl()
	if err != nil {
		return errors.Join(err, up.Down())
	}
	fmt.Printf("export KUBECONFIG=%s\n%s get nodes\n", up.Server.KubeconfigPath(), kubectl)
	return up.Keep()
}

func outcome(err error) string {
	if err != nil {
		return err.Error()
	}
	return "ready"
}
