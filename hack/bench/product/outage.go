// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// An outage begins and ends at these times after a transfer's start.
const (
	outageBegins = 1500 * time.Millisecond
	outageEnds   = 2500 * time.Millisecond
)

var outageTransfer = traffic.Options{Duration: 4500 * time.Millisecond, Warmup: time.Second}

// measureOutage takes NICs and agents away in mid-transfer.
func measureOutage(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	for _, f := range failures(l) {
		if err := failover(ctx, m, l, f); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	for range m.Trials {
		quiet, err := l.Transfer(ctx, outageTransfer)
		if err != nil {
			return err
		}
		killed, err := during(ctx, l, func() error { return killAgents(l) }, func() error { return startAgents(ctx, l) })
		if err != nil {
			return fmt.Errorf("restarting the agents: %w", err)
		}
		m.Add("agent_restart.gap_ms", killed.LongestGapMs)
		m.Add("agent_restart.undisturbed_gap_ms", quiet.LongestGapMs)
	}
	return nil
}

// during runs a transfer and, at their times, what begins and what ends.
func during(ctx context.Context, l *rig.Lab, begin, end func() error) (*traffic.Result, error) {
	running, err := l.Route(4).Start(ctx, outageTransfer)
	if err != nil {
		return nil, err
	}
	time.Sleep(outageBegins)
	err = begin()
	time.Sleep(outageEnds - outageBegins)
	err = errors.Join(err, end())
	result, endErr := running.EndIntact()
	return result, errors.Join(err, endErr)
}

// failure is one way for a NIC to fail.
type failure struct {
	what string
	set  func(node *network.Node, path string, up bool) error
	node *network.Node
	path string
}

func (f failure) String() string { return f.path + " of " + f.node.NodeName() + " " + f.what }

// fail lets the NIC fail, or lets it come back.
func (f failure) fail(fails bool) error { return f.set(f.node, f.path, !fails) }

// failures are NICs of the sender's and of the receiver's node, the one that the
// cluster network's route uses and another, without carrier and set down.
func failures(l *rig.Lab) (all []failure) {
	for _, node := range []*network.Node{l.Sender.Node, l.Receiver.Node} {
		for _, path := range []string{"blue", "red"} {
			all = append(all, failure{"loses its carrier", l.Network.SetCarrier, node, path}, failure{"is set down", l.Network.SetNIC, node, path})
		}
	}
	return all
}

func failover(ctx context.Context, m *rig.Measurement, l *rig.Lab, f failure) error {
	rig.Say("%s", f)
	var back int64
	watched := rig.Watch(l.Network, l.Sender.Node)
	result, err := during(ctx, l, func() error { return f.fail(true) }, func() error {
		back = traffic.Now()
		return f.fail(false)
	})
	samples := watched()
	if err != nil {
		return err
	}
	returned := carriesAgain(samples, f.path, back)
	if returned < 0 {
		return errors.New("the NIC did not carry its share again")
	}
	m.Add("failover.gap_ms", result.LongestGapMs)
	m.Add("failback.ms", returned)
	return nil
}

// carriesAgain is how long after a time, in ms, the first window ends in which a NIC
// carried half of its rate; negative if there is none.
func carriesAgain(samples []rig.Sample, path string, after int64) float64 {
	const window = 100 * time.Millisecond
	first := 0
	for _, one := range samples {
		for one.At-samples[first].At > window.Nanoseconds() {
			first++
		}
		begun := samples[first]
		mbit := float64(one.Sent[path]-begun.Sent[path]) * 8e3 / float64(max(1, one.At-begun.At))
		if one.At > after+window.Nanoseconds() && mbit >= rig.LinkMbit/2 {
			return float64(one.At-after) / 1e6
		}
	}
	return -1
}

func killAgents(l *rig.Lab) (failed error) {
	for _, node := range l.Network.Nodes {
		failed = errors.Join(failed, l.Agents[node.NodeName()].Stop(syscall.SIGKILL))
	}
	return failed
}

// startAgents starts them and waits for them, which may be after the transfer.
func startAgents(ctx context.Context, l *rig.Lab) (failed error) {
	for _, node := range l.Network.Nodes {
		failed = errors.Join(failed, l.StartAgent(ctx, node))
	}
	for _, node := range l.Network.Nodes {
		failed = errors.Join(failed, l.WaitForAgent(ctx, node.NodeName()))
	}
	return failed
}
