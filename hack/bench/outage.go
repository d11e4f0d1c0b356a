// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// An outage begins and ends at these times after a transfer's start.
const (
	outageBegins = 1500 * time.Millisecond
	outageEnds   = 2500 * time.Millisecond
	outageLasts  = 4500 * time.Millisecond // the transfer
)

// outages is a lab with the real controller and agents, in which things fail.
type outages struct {
	*lab.Lab
	client, server *network.Pod
}

// measureOutage takes NICs and agents away in mid-transfer.
func measureOutage(ctx context.Context, b *bench) (err error) {
	o, err := newOutages(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Down()) }()
	if err := o.programmed(ctx); err != nil {
		return err
	}
	if err := b.measureFailover(ctx, o); err != nil {
		return err
	}
	return b.measureRestart(ctx, o)
}

func newOutages(ctx context.Context) (*outages, error) {
	return newOutagesOn(ctx, network.Spec{Paths: pathNames[:3], LinkMbit: linkMbit})
}

// demoPods are the client's and the server's, on a node each.
var demoPods = []lab.Pod{demoPod("demo", "client", 1), demoPod("demo", "server", 2)}

func demoPod(namespace, name string, node int) lab.Pod {
	app := name
	serves := strings.HasPrefix(name, "server")
	return lab.Pod{Namespace: namespace, Name: name, Node: node, Labels: map[string]string{"app": app}, Serves: serves}
}

// newOutagesOn brings up a lab of two nodes with those pods and further ones.
func newOutagesOn(ctx context.Context, spec network.Spec, pods ...lab.Pod) (*outages, error) {
	if err := lab.FetchKubernetes(ctx); err != nil {
		return nil, err
	}
	fmt.Println("bringing up a lab with the controller and agents")
	spec.Nodes = 2
	up, err := lab.Up(ctx, lab.Options{Name: "benchlab", Network: spec, Pods: append(slices.Clone(demoPods), pods...)})
	if err != nil {
		return nil, err
	}
	return &outages{Lab: up, client: up.Network.Pod("client"), server: up.Network.Pod("server")}, nil
}

// programmed applies the demo's paths and policy and waits for them.
func (o *outages) programmed(ctx context.Context) error {
	if out, err := o.Kubectl(ctx, "apply", "--filename", "hack/demo/manifests").CombinedOutput(); err != nil {
		return fmt.Errorf("applying the policy: %w: %s", err, out)
	}
	return o.waitForPolicy(ctx)
}

// waitForPolicy waits until the client's and the server's pod have what the demo's
// policy says.
func (o *outages) waitForPolicy(ctx context.Context) error {
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		var policy v1alpha1.MPTCPPolicy
		if err := o.Client.Get(ctx, client.ObjectKey{Namespace: "demo", Name: "spread"}, &policy); err != nil {
			return fmt.Errorf("reading the policy: %w", err)
		}
		if policy.Status.PodsSelected == 2 && policy.Status.PodsProgrammed == 2 && programmedIn(&policy) == policy.Generation {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("the policy was not programmed within a minute")
}

// programmedIn is the generation of which the policy's condition speaks.
func programmedIn(policy *v1alpha1.MPTCPPolicy) int64 {
	condition := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionProgrammed)
	if condition == nil || condition.Status != metav1.ConditionTrue {
		return -1
	}
	return condition.ObservedGeneration
}

// apply changes an object in the lab's API server, or makes it.
func (o *outages) apply(ctx context.Context, manifest string) error {
	command := o.Kubectl(ctx, "apply", "--filename", "-")
	command.Stdin = strings.NewReader(manifest)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("applying a manifest: %w: %s", err, out)
	}
	return nil
}

func (o *outages) transfer(ctx context.Context) (*traffic.Result, error) {
	address := net.JoinHostPort(o.server.IPv4, strconv.Itoa(lab.TrafficPort))
	result, err := traffic.Run(ctx, func(ctx context.Context) (net.Conn, error) {
		return o.client.Dial(ctx, "tcp", address)
	}, traffic.Options{Duration: outageLasts, Warmup: time.Second})
	if err != nil {
		return nil, fmt.Errorf("transfer: %w", err)
	}
	if result.Failed > 0 {
		return nil, fmt.Errorf("a connection broke: %v", result.Errors)
	}
	return result, nil
}

// during runs a transfer and, at their times, what begins and what ends.
func (o *outages) during(ctx context.Context, begin, end func() error) (*traffic.Result, error) {
	failed := make(chan error, 1)
	go func() {
		time.Sleep(outageBegins)
		err := begin()
		time.Sleep(outageEnds - outageBegins)
		failed <- errors.Join(err, end())
	}()
	result, err := o.transfer(ctx)
	return result, errors.Join(err, <-failed)
}

// failure is one way for a NIC to fail.
type failure struct {
	what string
	set  func(node *network.Node, up bool) error
	node *network.Node
	path string
}

// failures are NICs of the sender's and of the receiver's node, the one that the
// cluster network's route uses and another, without carrier and set down.
func (o *outages) failures() (all []failure) {
	for _, node := range []*network.Node{o.client.Node, o.server.Node} {
		for _, path := range []string{"blue", "red"} {
			all = append(all,
				failure{"loses its carrier", func(n *network.Node, up bool) error { return o.Network.SetCarrier(n, path, up) }, node, path},
				failure{"is set down", func(n *network.Node, up bool) error { return o.Network.SetNIC(n, path, up) }, node, path})
		}
	}
	return all
}

func (b *bench) measureFailover(ctx context.Context, o *outages) error {
	var gaps, returns []float64
	for _, f := range o.failures() {
		var back time.Time
		watch := o.watchReturn(f.path)
		result, err := o.during(ctx, func() error { return f.set(f.node, false) }, func() error {
			back = time.Now()
			return f.set(f.node, true)
		})
		carried := watch()
		if err != nil {
			return fmt.Errorf("%s of %s %s: %w", f.path, f.node.NodeName(), f.what, err)
		}
		gaps = append(gaps, result.LongestGapMs)
		returned := firstAfter(carried, back)
		fmt.Printf("%-4s of %s %-17s: longest gap %.0f ms, carries its share again after %.0f ms\n", f.path, f.node.NodeName(), f.what, result.LongestGapMs, returned)
		if returned < 0 {
			return fmt.Errorf("%s of %s %s: the NIC did not carry its share again", f.path, f.node.NodeName(), f.what)
		}
		returns = append(returns, returned)
	}
	b.add("failover.gap_ms", "ms", gaps)
	b.add("failback.ms", "ms", returns)
	return nil
}

// share is what a NIC has to carry to count as used, in Mbit/s.
const share = linkMbit / 2

// watchReturn notes the ends of all windows in which the sender's NIC carried its
// share. The returned function stops it.
func (o *outages) watchReturn(path string) func() []time.Time {
	const every, window = 20 * time.Millisecond, 5
	stop, stopped := make(chan struct{}), make(chan []time.Time)
	go func() {
		var ends []time.Time
		var times []time.Time
		var sent []uint64
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				stopped <- ends
				return
			case <-ticker.C:
			}
			counters, err := o.client.Node.Counters(path)
			if err != nil {
				continue
			}
			now := time.Now()
			times, sent = append(times, now), append(sent, counters.TxBytes)
			if i := len(times) - 1 - window; i >= 0 {
				if mbit := float64(counters.TxBytes-sent[i]) * 8 / 1e6 / now.Sub(times[i]).Seconds(); mbit >= share {
					ends = append(ends, now)
				}
			}
		}
	}()
	return func() []time.Time {
		close(stop)
		return <-stopped
	}
}

// settle is the length of a window: ends before it still show what was before.
const settle = 100 * time.Millisecond

// firstAfter is how long after begin the first of the times is, in milliseconds;
// negative if none is.
func firstAfter(times []time.Time, begin time.Time) float64 {
	for _, one := range times {
		if one.After(begin.Add(settle)) {
			return float64(one.Sub(begin).Microseconds()) / 1000
		}
	}
	return -1
}

// measureRestart kills both agents in mid-transfer and starts them again, in turns
// with transfers that nothing disturbs.
func (b *bench) measureRestart(ctx context.Context, o *outages) error {
	var gaps, undisturbed []float64
	for trial := range b.trials {
		quiet, err := o.transfer(ctx)
		if err != nil {
			return err
		}
		killed, err := o.during(ctx, o.killAgents, func() error { return o.startAgents(ctx) })
		if err != nil {
			return fmt.Errorf("restarting the agents: %w", err)
		}
		for _, node := range o.Network.Nodes {
			if err := o.WaitForAgent(ctx, node.NodeName()); err != nil {
				return err
			}
		}
		gaps, undisturbed = append(gaps, killed.LongestGapMs), append(undisturbed, quiet.LongestGapMs)
		fmt.Printf("agents killed and started, trial %d: longest gap %.0f ms at %.1f Mbit/s; undisturbed %.0f ms at %.1f Mbit/s\n",
			trial+1, killed.LongestGapMs, killed.Mbit, quiet.LongestGapMs, quiet.Mbit)
	}
	b.add("agent_restart.gap_ms", "ms", gaps)
	b.add("agent_restart.undisturbed_gap_ms", "ms", undisturbed)
	return nil
}

func (o *outages) killAgents() error {
	var failed error
	for _, node := range o.Network.Nodes {
		failed = errors.Join(failed, o.Agents[node.NodeName()].Stop(syscall.SIGKILL))
	}
	return failed
}

func (o *outages) startAgents(ctx context.Context) error {
	var failed error
	for _, node := range o.Network.Nodes {
		failed = errors.Join(failed, o.StartAgent(ctx, node))
	}
	return failed
}
