// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

const (
	namespace = "demo"
	policy    = "spread"
)

var paths = []string{"blue", "green", "red"}

// kind is what the demo shows.
type kind struct {
	linkMbit  int
	manifests string
	// ends are what the connection is between.
	ends string
	// enough is the ratio that the links must reach.
	enough float64
	// result is the file with the figures.
	result string
	// suite of Debian whose kernel the ends boot, if they are virtual machines.
	suite string
}

var ofPods = kind{linkMbit: 100, manifests: "hack/demo/manifests", ends: "pods", enough: 2.9, result: "demo.json"}

func options(screen *screen, overlay network.Overlay, kind kind) lab.Options {
	pod := func(app string, node int) lab.Pod {
		return lab.Pod{Namespace: namespace, Name: app, Node: node, Labels: map[string]string{"app": app}, Serves: app == "server"}
	}
	pods := []lab.Pod{pod("client", 1), pod("server", 2), pod("bystander", 3)}
	if kind.suite != "" {
		pods = pods[2:]
	}
	return lab.Options{
		Name:    name,
		Network: network.Spec{Nodes: 3, Paths: paths, LinkMbit: kind.linkMbit, Overlay: overlay},
		Pods:    pods,
		Step:    screen.step,
		Say:     screen.remark,
	}
}

// demo is a run of the demo.
type demo struct {
	*lab.Lab
	kind       kind
	screen     *screen
	send       sender
	place      string // a command line that leads to where the client is
	repository string
	result     result
	untouched  []string
}

func run(ctx context.Context, screen *screen, kind kind, overlay network.Overlay, keep bool) error {
	screen.title("1. A real Kubernetes API, and 2. a lab of three nodes")
	if err := fetch(ctx, kind); err != nil {
		return err
	}
	up, err := lab.Up(ctx, options(screen, overlay, kind))
	if err != nil {
		return err
	}
	d := &demo{Lab: up, kind: kind, screen: screen}
	if err := d.show(ctx); err != nil {
		return errors.Join(err, d.down())
	}
	if keep {
		d.explain()
		return d.Keep()
	}
	if err := d.down(); err != nil {
		return err
	}
	return d.conclude()
}

func fetch(ctx context.Context, kind kind) error {
	if err := lab.FetchKubernetes(ctx); err != nil || kind.suite == "" {
		return err
	}
	return lab.FetchMachines(ctx, kind.suite)
}

// prepare makes the ends of the connection.
func (d *demo) prepare(ctx context.Context) error {
	if d.kind.suite != "" {
		return d.bootMachines(ctx)
	}
	d.send = d.fromPod
	d.place = fmt.Sprintf("nsenter --net=%s %s ", d.Network.Pod("client").Path(), d.relative(d.Binary("traffic")))
	return nil
}

func (d *demo) down() error {
	done := d.screen.step("The lab removed")
	err := d.Down()
	done(err)
	return err
}

// show does what there is to see, from the first transfer on.
func (d *demo) show(ctx context.Context) (err error) {
	if d.repository, err = lab.Repository(); err != nil {
		return err
	}
	if err := errors.Join(d.result.describe(d.Server.Config(), d.kind), d.prepare(ctx)); err != nil {
		return err
	}
	if d.untouched, err = d.Footprint(); err != nil {
		return err
	}
	parts := []func(context.Context) error{d.singlePath, d.applyPolicy, d.spread, d.selfTest, d.deletePolicy, d.backToSingle}
	for _, part := range parts {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return d.result.write(filepath.Join(d.repository, "_out", d.kind.result))
}

func (d *demo) singlePath(ctx context.Context) error {
	d.screen.title("3. One TCP connection between two " + d.kind.ends + " on two nodes")
	measured, err := d.transfer(ctx)
	if err != nil {
		return err
	}
	d.result.SinglePathMbit = measured.mbit
	d.screen.say(measured.describe())
	return nil
}

func (d *demo) applyPolicy(ctx context.Context) error {
	d.screen.title("4. Three paths and one policy")
	if err := d.kubectl(ctx, "apply", "--filename", d.kind.manifests); err != nil {
		return err
	}
	applied := time.Now()
	if err := d.waitFor(ctx, d.programmed); err != nil {
		return err
	}
	took := time.Since(applied)
	if err := d.kubectl(ctx, "get", "mpol,mpath,mnode,mplan", "--all-namespaces"); err != nil {
		return err
	}
	d.screen.say("Programmed on every node %.1f s after it was applied.", took.Seconds())
	return nil
}

func (d *demo) spread(ctx context.Context) error {
	d.screen.title("5. The same transfer again")
	measured, err := d.transfer(ctx)
	if err != nil {
		return err
	}
	if measured.subflows != len(paths) {
		return fmt.Errorf("the connection had %d subflows instead of %d", measured.subflows, len(paths))
	}
	d.result.SpreadMbit, d.result.PerPathMbit = measured.mbit, measured.perPath
	d.result.Ratio = round(measured.mbit/d.result.SinglePathMbit, 3)
	d.screen.say("%s: %.2f times as much.", measured.describe(), d.result.Ratio)
	return nil
}

func (d *demo) deletePolicy(ctx context.Context) error {
	d.screen.title("7. The policy deleted")
	if err := d.kubectl(ctx, "delete", "mpol", policy, "--namespace", namespace); err != nil {
		return err
	}
	if err := d.waitFor(ctx, d.nothingLeft); err != nil {
		return err
	}
	d.screen.say("No program, map, route, rule or MPTCP endpoint of Braid is left on nodes and pods.")
	return nil
}

func (d *demo) backToSingle(ctx context.Context) error {
	measured, err := d.transfer(ctx)
	if err != nil {
		return err
	}
	d.result.BackToSingleMbit = measured.mbit
	d.screen.say(measured.describe())
	return nil
}

// kubectl shows the command, runs it in the repository and shows what it prints.
func (d *demo) kubectl(ctx context.Context, arguments ...string) error {
	d.screen.command("kubectl " + strings.Join(arguments, " "))
	command := d.Kubectl(ctx, arguments...)
	command.Dir = d.repository
	out, err := command.CombinedOutput()
	d.screen.output(string(out))
	if err != nil {
		return fmt.Errorf("kubectl %s: %w", arguments[0], err)
	}
	return nil
}

// waitFor waits for what should take a second or two.
func (d *demo) waitFor(ctx context.Context, what func(context.Context) error) error {
	const patience = 20 * time.Second
	deadline := time.Now().Add(patience)
	for {
		err := what(ctx)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %v: %w", patience, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (d *demo) programmed(ctx context.Context) error {
	var applied v1alpha1.MPTCPPolicy
	if err := d.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: policy}, &applied); err != nil {
		return fmt.Errorf("reading the policy: %w", err)
	}
	condition := meta.FindStatusCondition(applied.Status.Conditions, v1alpha1.ConditionProgrammed)
	if condition == nil || condition.Status != "True" || condition.ObservedGeneration != applied.Generation {
		return fmt.Errorf("the policy is not programmed: %+v", applied.Status)
	}
	return nil
}

func (d *demo) nothingLeft(context.Context) error {
	now, err := d.Footprint()
	if err != nil {
		return err
	}
	if left, missing := lab.Difference(d.untouched, now); len(left)+len(missing) > 0 {
		return fmt.Errorf("the deleted policy left %q behind and took %q away", left, missing)
	}
	return nil
}

func (d *demo) conclude() error {
	r := d.result
	d.screen.say("")
	d.screen.say("One connection: %.1f Mbit/s on one NIC, %.1f Mbit/s on %d NICs (%.2f times), %.1f Mbit/s after the policy was deleted. See _out/%s.",
		r.SinglePathMbit, r.SpreadMbit, r.Links, r.Ratio, r.BackToSingleMbit, d.kind.result)
	if r.Ratio < d.kind.enough {
		return fmt.Errorf("the ratio %.2f is below %.1f: is the machine busy with something else?", r.Ratio, d.kind.enough)
	}
	return nil
}

func (d *demo) explain() {
	kubectl, err := lab.Kubectl()
	if err != nil {
		kubectl = "kubectl"
	}
	client, server := d.Network.Pod("client"), d.Network.Pod("server")
	address := net.JoinHostPort(server.IPv4, strconv.Itoa(lab.TrafficPort))
	d.screen.title("The lab stays up")
	d.screen.output(fmt.Sprintf(`Ask the API server:
  export KUBECONFIG=%s
  alias kubectl=%s
  kubectl apply --filename %s
  kubectl get mpol,mpath,mnode,mplan --all-namespaces
Ask the plugin (its top, trace and sysdump need agents that are pods):
  go run ./cmd/kubectl-braid status --no-workloads
  go run ./cmd/kubectl-braid paths
  go run ./cmd/kubectl-braid explain client --namespace %s
Ask the client's agent for living subflows, in the place of top:
  nsenter --net=%s %s subflows --state-path %s --pin-path %s
Enter a pod or a node:
  nsenter --net=%s
  nsenter --net=%s
Run a transfer:
  nsenter --net=%s %s run %s
Read what controller and agents say:
  ls %s
Remove it all:
  make demo ARGS=--down
`, d.Server.KubeconfigPath(), kubectl, d.kind.manifests, namespace,
		client.Node.Path(), d.relative(d.Binary("braid-agent")), d.StatePath(client.Node.NodeName()), d.PinPath(client.Node.NodeName()),
		client.Path(), client.Node.Path(),
		client.Path(), d.relative(d.Binary("traffic")), address, d.LogDirectory()))
}

// relative shortens a path for people who stand in the repository.
func (d *demo) relative(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	short, err := filepath.Rel(here, path)
	if err != nil || strings.HasPrefix(short, "..") {
		return path
	}
	return short
}
