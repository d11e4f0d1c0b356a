// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/rig"
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
// sender's pod, and in which the nodes themselves speak plain MPTCP over both paths.
type hints struct {
	*rig.Lab
	servers rig.Closers
}

func newHints(ctx context.Context) (*hints, error) {
	paths := []string{other, preferred}
	l, err := rig.LabOn(network.Spec{Paths: paths, LinkMbit: hintMbit, PathDelays: rig.Evenly(paths, hintDelay)})(ctx)
	if err != nil {
		return nil, err
	}
	h := &hints{Lab: l}
	if err := errors.Join(h.plainKernel(), h.serve(ctx)); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// Close stops the servers and brings the lab down.
func (h *hints) Close() error { return errors.Join(h.servers.Close(), h.Lab.Close()) }

// plainKernel lets the nodes' own kernels open a second subflow over the second path.
func (h *hints) plainKernel() error {
	for _, node := range h.Network.Nodes {
		if _, err := node.Run("ip", "mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2"); err != nil {
			return err
		}
	}
	receiver := h.Receiver.Node
	_, err := receiver.Run("ip", "mptcp", "endpoint", "add", receiver.Address(1, 4), "dev", preferred, "signal")
	return err
}

// serve answers transfers in the receiver's pod and on its node.
func (h *hints) serve(ctx context.Context) error {
	for _, namespace := range []*network.Namespace{h.Receiver.Namespace, h.Receiver.Node.Namespace} {
		server, err := rig.Serve(ctx, namespace, hintPort)
		if err != nil {
			return err
		}
		h.servers.Own(server)
	}
	return nil
}

// prefer annotates the sender's pod; without paths the annotation goes. It does so by the
// client at hand: kubectl would take longer than what is measured.
func (h *hints) prefer(ctx context.Context, paths string) error {
	var value any
	if paths != "" {
		value = paths
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationPreferredPaths: value}}})
	if err != nil {
		return fmt.Errorf("encoding an annotation: %w", err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: h.Sender.PodName}}
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
	name string
	rig.Route
	// mayStop: that the kernel has it stop for good (docs/kernel-notes.md) is told, and fails
	// nothing.
	mayStop bool
}

func (h *hints) braid() way {
	return way{name: "braid", Route: rig.Route{From: h.Sender.Namespace, To: net.JoinHostPort(h.Receiver.IPv4, hintPort)}}
}

func (h *hints) kernel() way {
	return way{name: "kernel", Route: rig.Route{From: h.Sender.Node.Namespace, To: net.JoinHostPort(h.Receiver.Node.Address(0, 4), hintPort)}}
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
	samples []rig.Sample
	stopped bool // for good, before its end
	at      []int64
}

// observe runs a transfer with steps.
func (h *hints) observe(ctx context.Context, w way, options traffic.Options, steps ...step) (*observed, error) {
	options.Bin = hintBin
	watched := rig.Watch(h.Network, h.Sender.Node)
	running, err := w.Start(ctx, options)
	if err != nil {
		watched()
		return nil, fmt.Errorf("%s: %w", w.name, err)
	}
	begun, seen := time.Now(), &observed{}
	for _, one := range steps {
		time.Sleep(time.Until(begun.Add(one.after)))
		seen.at = append(seen.at, traffic.Now())
		err = errors.Join(err, one.do())
	}
	var endErr error
	seen.Result, endErr = running.EndIntact()
	if w.mayStop && seen.stoppedForGood() {
		seen.stopped, endErr = true, nil
	}
	seen.samples = watched()
	return seen, errors.Join(err, endErr)
}

// stoppedForGood: all that failed is that the end did not come.
func (seen *observed) stoppedForGood() bool {
	if seen.Result == nil || !seen.Multipath || seen.Failed == 0 {
		return false
	}
	return !slices.ContainsFunc(seen.Errors, func(failed string) bool { return !strings.Contains(failed, traffic.Unfinished) })
}

// since is a time so long after the transfer's start.
func (seen *observed) since(start time.Duration) int64 { return seen.StartNs + start.Nanoseconds() }

// share is a path's percentage of what was sent between two times after the start.
func (seen *observed) share(path string, from, to time.Duration) float64 {
	return 100 * rig.ShareOf(seen.samples, path, seen.since(from), seen.since(to))
}

// measureHint repeats the experiments A, C and D, and those of figures 8 and 9.
func measureHint(ctx context.Context, m *rig.Measurement, h *hints) error {
	for _, measure := range []func(context.Context, *rig.Measurement, *hints) error{hintOverhead, hintMoves, hintStays, hintDelays} {
		if err := measure(ctx, m, h); err != nil {
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
func hintOverhead(ctx context.Context, m *rig.Measurement, h *hints) error {
	if err := h.settled(ctx, other+","+preferred); err != nil {
		return err
	}
	for range m.Trials {
		mbit := map[string]float64{}
		for _, w := range []way{h.kernel(), h.braid()} {
			seen, err := h.observe(ctx, w, traffic.Options{Duration: 6 * time.Second, Warmup: 2 * time.Second})
			if err != nil {
				return err
			}
			if seen.Subflows != 2 {
				return fmt.Errorf("%s: %d subflows", w.name, seen.Subflows)
			}
			mbit[w.name] = seen.Mbit
		}
		rig.Say("%.2f Mbit/s with the kernel alone, %.2f with a hint for both paths", mbit["kernel"], mbit["braid"])
		m.Add("hint.overhead_pct", 100*(mbit["kernel"]-mbit["braid"])/mbit["kernel"])
	}
	return nil
}

// hintMoves is figure 9: connections that began without the hint and are moved, on the
// path where they began and on the other.
func hintMoves(ctx context.Context, m *rig.Measurement, h *hints) error {
	const given, taken, lasts = 2 * time.Second, 5 * time.Second, 8 * time.Second
	for trial := range 2 * m.Trials {
		wanted, unwanted := preferred, other
		if trial%2 == 1 {
			wanted, unwanted = other, preferred
		}
		seen, err := h.observe(ctx, h.braid(), traffic.Options{Duration: lasts},
			step{given, func() error { return h.prefer(ctx, wanted) }},
			step{taken, func() error { return h.prefer(ctx, "") }})
		if err != nil {
			return err
		}
		there := rig.MovedAt(seen.samples, wanted, seen.at[0], seen.at[1])
		back := rig.UsedAt(seen.samples, unwanted, 0.3, seen.at[1], seen.since(lasts))
		if there < 0 || back < 0 {
			return fmt.Errorf("the connection did not move: %.0f ms there, %.0f ms back", there, back)
		}
		m.Add("hint.move_ms", there)
		m.Add("hint.remove_ms", back)
		m.Add("hint.on_preferred_pct.moved", seen.share(wanted, given+time.Second, taken))
	}
	return nil
}

// hintStays is figure 8: connections that begin with the hint.
func hintStays(ctx context.Context, m *rig.Measurement, h *hints) error {
	for range m.Trials {
		if err := h.settled(ctx, preferred); err != nil {
			return err
		}
		seen, err := h.observe(ctx, h.braid(), traffic.Options{Duration: 3 * time.Second})
		if err != nil {
			return err
		}
		m.Add("hint.on_preferred_pct.from_beginning", seen.share(preferred, 0, 3*time.Second))
	}
	return nil
}

// hintDelays is C and D: the preferred path's round trip becomes 60 ms, then 200 ms,
// against 40 ms.
func hintDelays(ctx context.Context, m *rig.Measurement, h *hints) error {
	const changes, lasts = 3 * time.Second, 8 * time.Second
	observe := func(delay time.Duration) (*observed, error) {
		set := func() error { return h.Network.SetDelay(preferred, delay) }
		return h.observe(ctx, h.braid(), traffic.Options{Duration: lasts}, step{changes, set})
	}
	for range m.Trials {
		if err := h.settled(ctx, preferred); err != nil {
			return err
		}
		long, err := observe(30 * time.Millisecond)
		if err != nil {
			return err
		}
		tooLong, err := observe(100 * time.Millisecond)
		if err != nil {
			return err
		}
		m.Add("hint.rtt60.on_preferred_pct", long.share(preferred, changes+time.Second, lasts))
		m.Add("hint.rtt200.on_other_pct", tooLong.share(other, changes+2*time.Second, lasts))
		m.Add("hint.rtt200.given_up_ms", rig.UsedAt(tooLong.samples, other, 0.3, tooLong.at[0], tooLong.since(lasts)))
		if err := errors.Join(h.Network.SetDelay(preferred, hintDelay), h.settled(ctx, "")); err != nil {
			return err
		}
	}
	return nil
}
