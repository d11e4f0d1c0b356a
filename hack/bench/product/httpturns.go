// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/hack/bench/rig"
)

const (
	// turnsOfTrial are short ones, so that what else the machine does changes little between
	// neighbours.
	turnsOfTrial = 10
	// turnAge is how long a policy is changed before a turn: sockets of before have ended, and
	// the agents have looked at all once more, those in TIME_WAIT too, which they do within a
	// second of a change.
	turnAge = 1500 * time.Millisecond
	// turnOf is what the others are compared to.
	turnOf = "braid"
)

// turnFile is what is asked for in each turn.
var turnFile = webFile{"1k", 1 << 10, 1, requestClients, false}

// webTurns is one client and one server, whose policy changes its transport alone: pairs of pods
// differ by themselves.
type webTurns struct{ *web }

func newWebTurns(ctx context.Context) (*webTurns, error) {
	w, err := newWeb(ctx)
	if err != nil {
		return nil, err
	}
	t := &webTurns{w}
	if err := t.set(ctx, turnModes[0].policy); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	time.Sleep(rig.PolicyAge) // both pods are new to it
	return t, nil
}

// turnModes are compared. The second of two that are alike says what the others' differences
// are worth.
var turnModes = []requestMode{
	turn(turnOf, ""), turn(turnOf+"_again", ""),
	turn("braid_settings", settingsOfAll), turn("braid_transport", transportOfAll),
}

func turn(name, transport string) requestMode {
	mode := requestMode{name: name, mptcp: true, policy: selectAll + transport}
	for i := range requestModes {
		if requestModes[i].name == turnOf {
			mode.openAfter = requestModes[i].openAfter
		}
	}
	return mode
}

// set changes the policy, and waits until it holds.
func (t *webTurns) set(ctx context.Context, policy string) error {
	if err := t.Apply(ctx, policy); err != nil {
		return err
	}
	if err := t.PolicyHolds(ctx, client.ObjectKey{Namespace: "default", Name: "spread"}, 2); err != nil {
		return err
	}
	time.Sleep(turnAge)
	return nil
}

// measureHTTPTurns has the same pods ask for a second with each policy in turn, in another order
// each time, and compares what is of one turn.
func measureHTTPTurns(ctx context.Context, m *rig.Measurement, t *webTurns) error {
	for range m.Trials * turnsOfTrial {
		rates := map[string]float64{}
		for mode := range rig.Shuffled(turnModes) {
			if err := t.set(ctx, mode.policy); err != nil {
				return fmt.Errorf("%s: %w", mode.name, err)
			}
			got, err := t.ask(ctx, &mode, turnFile)
			if err != nil {
				return fmt.Errorf("%s: %w", mode.name, err)
			}
			rates[mode.name] = got.rate
			m.Add("http_turns.1k."+mode.name+"_rps", got.rate)
		}
		for name, rate := range rates {
			if name != turnOf {
				m.Add("http_turns.1k."+name+"_to_braid", rate/rates[turnOf])
			}
		}
	}
	for _, mode := range turnModes[1:] {
		least, most := rig.MedianWithin(m.Values("http_turns.1k." + mode.name + "_to_braid"))
		rig.Say("the median of %s to braid is within %.3f and %.3f, 95 times of 100", mode.name, least, most)
	}
	return nil
}
