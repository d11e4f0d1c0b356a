// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"time"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// A NIC fails so long after its connection is spread and both agents are dead. The flows
// try it once more before it works again.
const (
	unwatchedFor  = 500 * time.Millisecond
	unwatchedDown = 3 * time.Second
	unwatchedEnds = 7 * time.Second
)

// measureNoAgent lets NICs fail under a connection while no agent runs. The NIC is not that
// of the cluster network's route, which needs an agent's detour.
func measureNoAgent(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	blocks := func(node *network.Node, path string, up bool) error { return l.Network.Block(node, path, !up) }
	for range m.Trials {
		timer, err := l.Route(4).Timer(ctx, traffic.Options{Duration: 3 * time.Second})
		if err != nil {
			return err
		}
		m.Add("failover.no_agent.timer_ms", timer)
		for _, node := range []*network.Node{l.Sender.Node, l.Receiver.Node} {
			for name, f := range map[string]failure{
				"silent":  {"loses everything", blocks, node, "red"},
				"carrier": {"loses its carrier", l.Network.SetCarrier, node, "red"},
			} {
				rig.Say("%s", f)
				gap, err := unwatched(ctx, l, f)
				if err != nil {
					return fmt.Errorf("%s: %w", f, err)
				}
				m.Add("failover.no_agent_ms", gap)
				m.Add("failover.no_agent."+name+"_ms", gap)
				m.Add("failover.no_agent.beyond_timer_ms", gap-timer)
			}
		}
	}
	return nil
}

// unwatched is the longest time without bytes from when a NIC fails, in ms.
func unwatched(ctx context.Context, l *rig.Lab, f failure) (gap float64, err error) {
	running, err := l.Route(4).Start(ctx, traffic.Options{Duration: unwatchedEnds, Bin: 5 * time.Millisecond})
	if err != nil {
		return 0, err
	}
	err = errors.Join(running.WaitForSubflows(ctx, len(l.Network.Spec.Paths)), killAgents(l))
	time.Sleep(unwatchedFor)
	failed := traffic.Now()
	err = errors.Join(err, f.fail(true))
	time.Sleep(unwatchedDown)
	back := traffic.Now()
	err = errors.Join(err, f.fail(false))
	result, endErr := running.EndIntact()
	if err = errors.Join(err, endErr, startAgents(ctx, l)); err != nil {
		return 0, err
	}
	return rig.LongestGap(result, failed, back).Length(), nil
}
