// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/middlebox"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// boxedWays are the policies' subflows that are compared to plain TCP.
var boxedWays = map[string]string{"default": "{}", "agent": "{manager: Agent}"}

// boxed is one situation: a kind of box on one path or on all.
type boxed struct {
	kind      middlebox.Kind
	where     string
	paths     []string
	direction traffic.Direction
}

func (b boxed) name(way string) string {
	return fmt.Sprintf("middlebox.%s.%s.%s.%s", b.kind.Name, b.where, b.direction, way)
}

// allBoxed has the box on the first path, which is plain TCP's, or on both.
func allBoxed() (all []boxed) {
	for _, kind := range middlebox.Kinds() {
		for _, where := range []string{"one", "all"} {
			paths := rig.Paths[:2]
			if where == "one" {
				paths = rig.Paths[:1]
			}
			for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
				all = append(all, boxed{kind, where, paths, direction})
			}
		}
	}
	return all
}

// measureMiddlebox compares the goodput of one connection through boxes to that of plain
// TCP through the same ones, and counts connections that were lost or had wrong bytes.
func measureMiddlebox(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	for range m.Trials {
		for way := range rig.Shuffled([]string{"default", "agent"}) {
			if err := l.Spread(ctx, boxedWays[way]); err != nil {
				return err
			}
			for _, b := range allBoxed() {
				if !m.Cases.MatchString(b.name(way)) {
					continue
				}
				if err := b.measure(ctx, m, l, way); err != nil {
					return fmt.Errorf("%s: %w", b.name(way), err)
				}
			}
		}
	}
	summarizeBoxed(m)
	return nil
}

// boxedPods have no policy: their MPTCP is the kernel's own.
var boxedPods = []string{"kernel-client", "server-kernel"}

// newBoxed is the lab with the demo's policy, and two further pods without one.
func newBoxed(ctx context.Context) (*rig.Lab, error) {
	return rig.NewLab(ctx, network.Spec{Paths: rig.Paths[:2], LinkMbit: rig.LinkMbit},
		rig.PodOf("demo", boxedPods[0], 1), rig.PodOf("demo", boxedPods[1], 2))
}

// measure runs one trial: plain TCP, MPTCP without Braid, and MPTCP with it.
func (b boxed) measure(ctx context.Context, m *rig.Measurement, l *rig.Lab, way string) error {
	if err := b.prepare(l); err != nil {
		return err
	}
	name, braid := b.name(way), l.Route(4)
	tcp, kernel := braid, l.Route(4)
	tcp.Protocol = network.TCP
	kernel.From = l.Network.Pod(boxedPods[0]).Namespace
	kernel.To = net.JoinHostPort(l.Network.Pod(boxedPods[1]).IPv4, strconv.Itoa(lab.TrafficPort))
	mbit := map[string]float64{}
	routes := map[string]rig.Route{"tcp": tcp, "mptcp": kernel, "braid": braid}
	for compared := range rig.Shuffled([]string{"tcp", "mptcp", "braid"}) {
		result, err := b.transfer(ctx, routes[compared])
		if err != nil {
			return err
		}
		if compared == "tcp" && (result.Failed > 0 || result.Mbit == 0) {
			return fmt.Errorf("the box breaks plain TCP: %s", strings.Join(result.Errors, "; "))
		}
		if result.Failed > 0 {
			rig.Say("%s: %s: %s", name, compared, strings.Join(result.Errors, "; "))
		}
		mbit[compared] = result.Mbit
		m.Add(name+"."+compared, result.Mbit)
		m.Add(name+"."+compared+"_lost", float64(result.Failed))
	}
	m.Add(name+".to_tcp", mbit["braid"]/mbit["tcp"])
	return nil
}

// prepare puts the box into its paths, and has the pods forget what they learned of another.
func (b boxed) prepare(l *rig.Lab) error {
	for _, path := range l.Network.Spec.Paths {
		if err := l.Network.Interpose(path, nil); err != nil {
			return err
		}
	}
	for _, path := range b.paths {
		if err := l.Network.Interpose(path, b.kind.New()); err != nil {
			return err
		}
	}
	for _, name := range append([]string{"client", "server"}, boxedPods...) {
		if err := middlebox.Prepare(l.Network.Pod(name).Namespace, b.kind); err != nil {
			return err
		}
	}
	return nil
}

// transfer runs one connection. One that cannot be opened is a lost one.
func (b boxed) transfer(ctx context.Context, route rig.Route) (*traffic.Result, error) {
	result, err := route.Transfer(ctx, traffic.Options{
		Direction: b.direction, Duration: 3 * time.Second, Warmup: time.Second, Patience: 4 * time.Second,
		Verify: true, Rewrites: b.kind.Rewrites,
	})
	if err != nil && ctx.Err() == nil {
		return &traffic.Result{Failed: 1, Errors: []string{err.Error()}}, nil
	}
	return result, err
}

// summarizeBoxed notes how many connections were lost, with Braid and without, and the
// worst ratio of all medians where MPTCP without Braid lost none.
func summarizeBoxed(m *rig.Measurement) {
	var lost, kernelLost, beyond float64
	var medians []float64
	for _, b := range allBoxed() {
		for way := range boxedWays {
			ratios := m.Values(b.name(way) + ".to_tcp")
			if len(ratios) == 0 {
				continue
			}
			ours, theirs := total(m.Values(b.name(way)+".braid_lost")), total(m.Values(b.name(way)+".mptcp_lost"))
			lost, kernelLost = lost+ours, kernelLost+theirs
			if theirs == 0 {
				beyond += ours
				medians = append(medians, rig.Median(ratios))
			}
		}
	}
	if len(medians) > 0 {
		m.Add("middlebox.worst_to_tcp", slices.Min(medians))
		m.Add("middlebox.lost", lost)
		m.Add("middlebox.mptcp_lost", kernelLost)
		m.Add("middlebox.lost_by_braid", beyond)
	}
}

func total(values []float64) (sum float64) {
	for _, value := range values {
		sum += value
	}
	return sum
}
