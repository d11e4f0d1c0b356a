// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// The experiments of seed 004, section IV: two paths with round trips of 40 ms.
const (
	hintMbit  = 20
	hintDelay = 20 * time.Millisecond // one way
	preferred = "green"
	other     = "blue"
	hintPort  = "5002"
	hintBin   = 5 * time.Millisecond
)

// hints is a lab with the real controller and agents, in which a tenant annotates the
// client's pod, and in which the nodes themselves speak plain MPTCP over both paths.
type hints struct {
	*outages
	stop func() error
}

func newHints(ctx context.Context) (*hints, error) {
	paths := []string{other, preferred}
	o, err := newOutagesOn(ctx, network.Spec{
		Paths: paths, LinkMbit: hintMbit, PathDelays: map[string]time.Duration{other: hintDelay, preferred: hintDelay},
	})
	if err != nil {
		return nil, err
	}
	h := &hints{outages: o, stop: func() error { return nil }}
	if err := h.prepare(ctx); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *hints) prepare(ctx context.Context) error {
	if err := h.apply(ctx, hintManifest); err != nil {
		return err
	}
	if err := h.waitForPolicy(ctx); err != nil {
		return err
	}
	return errors.Join(h.plainKernel(), h.serve(ctx))
}

const hintManifest = `
apiVersion: braid.dev/v1alpha1
kind: MPTCPPath
metadata: {name: blue}
spec: {interfaces: [blue]}
---
apiVersion: braid.dev/v1alpha1
kind: MPTCPPath
metadata: {name: green}
spec: {interfaces: [green]}
---
apiVersion: braid.dev/v1alpha1
kind: MPTCPPolicy
metadata: {name: spread, namespace: demo}
spec:
  podSelector:
    matchExpressions: [{key: app, operator: In, values: [client, server]}]
`

// plainKernel lets the nodes' own kernels open a second subflow over the second path.
func (h *hints) plainKernel() error {
	for i, node := range h.Network.Nodes {
		commands := [][]string{{"mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2"}}
		if i == 1 {
			commands = append(commands, []string{"mptcp", "endpoint", "add", node.Address(1, 4), "dev", preferred, "signal"})
		}
		for _, command := range commands {
			if _, err := node.Run("ip", command...); err != nil {
				return err
			}
		}
	}
	return nil
}

// serve answers transfers in the server's pod and on its node.
func (h *hints) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 2)
	began := 0
	h.stop = func() (err error) {
		cancel()
		for range began {
			err = errors.Join(err, <-served)
		}
		return err
	}
	for _, namespace := range []*network.Namespace{h.server.Namespace, h.server.Node.Namespace} {
		listener, err := namespace.Listen(ctx, "tcp", ":"+hintPort)
		if err != nil {
			return err
		}
		began++
		go func() { served <- traffic.Serve(ctx, listener) }()
	}
	return nil
}

func (h *hints) close() error { return errors.Join(h.stop(), h.Down()) }

// prefer annotates the client's pod; without paths the annotation goes.
func (h *hints) prefer(ctx context.Context, paths string) error {
	var value any
	if paths != "" {
		value = paths
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationPreferredPaths: value}}})
	if err != nil {
		return fmt.Errorf("encoding an annotation: %w", err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: h.client.PodName}}
	if err := h.Client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("annotating the pod: %w", err)
	}
	return nil
}

// settled annotates, and waits until it has its effect.
func (h *hints) settled(ctx context.Context, paths string) error {
	err := h.prefer(ctx, paths)
	time.Sleep(time.Second)
	return err
}

// way is who sends: the pods under Braid, or the nodes with the kernel alone.
type way struct {
	name     string
	from     *network.Namespace
	to       string
	subflows int
}

func (h *hints) braid() way {
	return way{"braid", h.client.Namespace, net.JoinHostPort(h.server.IPv4, hintPort), 2}
}

func (h *hints) kernel() way {
	return way{"kernel", h.client.Node.Namespace, net.JoinHostPort(h.server.Node.Address(0, 4), hintPort), 2}
}

// step is something that happens during a transfer, so long after its start.
type step struct {
	after time.Duration
	do    func() error
}

// observed is a transfer, what the sender's NICs sent during it, and when its steps
// began.
type observed struct {
	*traffic.Result
	samples []sample
	at      []int64
}

// observe runs a transfer with steps.
func (h *hints) observe(ctx context.Context, w way, options traffic.Options, steps ...step) (*observed, error) {
	seen := &observed{}
	stop := watch(h.Network, h.client.Node)
	failed, began := make(chan error, 1), make(chan time.Time, 1)
	go func() {
		begin := <-began
		var err error
		for _, one := range steps {
			time.Sleep(time.Until(begin.Add(one.after)))
			seen.at = append(seen.at, traffic.Now())
			err = errors.Join(err, one.do())
		}
		failed <- err
	}()
	options.Bin = hintBin
	var err error
	seen.Result, err = traffic.Run(ctx, func(ctx context.Context) (net.Conn, error) {
		connection, err := w.from.Dial(ctx, "tcp", w.to)
		began <- time.Now()
		return connection, err
	}, options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.name, err)
	}
	err = <-failed
	seen.samples = stop()
	if err == nil {
		err = intact(seen.Result)
	}
	return seen, err
}

// since is a time so long after the transfer's start.
func (seen *observed) since(start time.Duration) int64 { return seen.StartNs + start.Nanoseconds() }

// share is a path's part of what was sent between two times after the start.
func (seen *observed) share(path string, from, to time.Duration) float64 {
	return shareOf(seen.samples, path, seen.since(from), seen.since(to))
}

// measureHint repeats the experiments A, C and D, and those of figures 8 and 9.
func measureHint(ctx context.Context, b *bench) (err error) {
	h, err := newHints(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	for _, measure := range []func(context.Context, *hints) error{b.hintOverhead, b.hintMoves, b.hintDelays} {
		if err := measure(ctx, h); err != nil {
			return err
		}
		if err := h.settled(ctx, ""); err != nil {
			return err
		}
	}
	return nil
}

// hintOverhead is A: goodput over equal paths with a hint for both, to that of the
// kernel alone over the same paths.
func (b *bench) hintOverhead(ctx context.Context, h *hints) error {
	if err := h.settled(ctx, other+","+preferred); err != nil {
		return err
	}
	var overhead []float64
	for trial := range b.trials {
		mbit := map[string]float64{}
		for _, w := range []way{h.kernel(), h.braid()} {
			seen, err := h.observe(ctx, w, traffic.Options{Duration: 6 * time.Second, Warmup: 2 * time.Second})
			if err != nil {
				return err
			}
			if seen.Subflows != w.subflows {
				return fmt.Errorf("%s: %d subflows", w.name, seen.Subflows)
			}
			mbit[w.name] = seen.Mbit
		}
		overhead = append(overhead, 100*(mbit["kernel"]-mbit["braid"])/mbit["kernel"])
		fmt.Printf("hint A trial %d: %.2f Mbit/s with the kernel alone, %.2f with a hint for both paths: overhead %.2f %%\n",
			trial+1, mbit["kernel"], mbit["braid"], overhead[trial])
	}
	b.add("hint.overhead_pct", "%", overhead)
	return nil
}

// hintMoves is figures 8 and 9: a connection that begins with the hint, and ones that
// began without it and are moved, on the path where they began and on the other.
func (b *bench) hintMoves(ctx context.Context, h *hints) error {
	const given, taken, lasts = 2 * time.Second, 5 * time.Second, 8 * time.Second
	var began, moved, move, back []float64
	for trial := range 2 * b.trials {
		wanted := []string{preferred, other}[trial%2]
		seen, err := h.observe(ctx, h.braid(), traffic.Options{Duration: lasts},
			step{given, func() error { return h.prefer(ctx, wanted) }},
			step{taken, func() error { return h.prefer(ctx, "") }})
		if err != nil {
			return err
		}
		move = append(move, movedAt(seen.samples, wanted, seen.at[0], seen.at[1]))
		moved = append(moved, 100*seen.share(wanted, given+time.Second, taken))
		unwanted := []string{other, preferred}[trial%2]
		back = append(back, usedAt(seen.samples, unwanted, 0.3, seen.at[1], seen.since(lasts)))
		fmt.Printf("hint moves trial %d: %s had %.1f %%, the hint moves it within %.0f ms, then it has %.2f %%; without it the other is used after %.0f ms\n",
			trial+1, wanted, 100*seen.share(wanted, time.Second, given), move[trial], moved[trial], back[trial])
		if move[trial] < 0 || back[trial] < 0 {
			return fmt.Errorf("the connection did not move: %.0f ms there, %.0f ms back", move[trial], back[trial])
		}
	}
	for range b.trials {
		if err := h.settled(ctx, preferred); err != nil {
			return err
		}
		seen, err := h.observe(ctx, h.braid(), traffic.Options{Duration: 3 * time.Second})
		if err != nil {
			return err
		}
		began = append(began, 100*seen.share(preferred, 0, 3*time.Second))
	}
	fmt.Printf("hint figure 8: %.2f %% on the preferred path\n", began)
	b.add("hint.move_ms", "ms", move)
	b.add("hint.remove_ms", "ms", back)
	b.add("hint.on_preferred_pct.moved", "% of the bytes", moved)
	b.add("hint.on_preferred_pct.from_beginning", "% of the bytes", began)
	return nil
}

// hintDelays is C and D: the preferred path's round trip becomes 60 ms, then 200 ms,
// against 40 ms.
func (b *bench) hintDelays(ctx context.Context, h *hints) error {
	if err := h.settled(ctx, preferred); err != nil {
		return err
	}
	const changes, lasts = 3 * time.Second, 8 * time.Second
	var kept, given, left []float64
	for trial := range b.trials {
		delay := func(one time.Duration) func() error {
			return func() error { return h.Network.SetDelay(preferred, one) }
		}
		long, err := h.observe(ctx, h.braid(), traffic.Options{Duration: lasts}, step{changes, delay(30 * time.Millisecond)})
		if err != nil {
			return err
		}
		tooLong, err := h.observe(ctx, h.braid(), traffic.Options{Duration: lasts}, step{changes, delay(100 * time.Millisecond)})
		if err != nil {
			return err
		}
		kept = append(kept, 100*long.share(preferred, changes+time.Second, lasts))
		given = append(given, 100*tooLong.share(other, changes+2*time.Second, lasts))
		left = append(left, usedAt(tooLong.samples, other, 0.3, tooLong.at[0], tooLong.since(lasts)))
		fmt.Printf("hint C and D trial %d: %.1f %% on the preferred path at 60 ms; at 200 ms the other is used after %.0f ms and has %.1f %%\n",
			trial+1, kept[trial], left[trial], given[trial])
		if err := errors.Join(h.Network.SetDelay(preferred, hintDelay), h.settled(ctx, "")); err != nil {
			return err
		}
		if err := h.settled(ctx, preferred); err != nil {
			return err
		}
	}
	b.add("hint.rtt60.on_preferred_pct", "% of the bytes", kept)
	b.add("hint.rtt200.on_other_pct", "% of the bytes", given)
	b.add("hint.rtt200.given_up_ms", "ms", left)
	return nil
}
