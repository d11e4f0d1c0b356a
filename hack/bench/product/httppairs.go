// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"braid.dev/braid/hack/bench/rig"
)

const (
	// turnsOfPairs are those of a trial: short ones, so that what else the machine does
	// changes little between neighbours.
	turnsOfPairs = 10
	pairPolicies = "httppairs"
)

// pairedFile is what all pairs ask for.
var pairedFile = webFile{"1k", 1 << 10, 1, requestClients, false}

// webPairs is a cluster with a client and a server for each of some ways to ask. Each pair
// has its policy all the time, so that no turn waits for one.
type webPairs struct {
	*rig.Cluster
	modes []requestMode
	pairs map[string]*web
}

// pairedModes are the ways that are compared.
func pairedModes() (modes []requestMode) {
	for _, mode := range requestModes {
		switch mode.name {
		case "mptcp", "braid", "braid_settings", "braid_transport":
			modes = append(modes, mode)
		}
	}
	return modes
}

func newWebPairs(ctx context.Context) (*webPairs, error) {
	c, err := rig.NewCluster(ctx)
	if err != nil {
		return nil, err
	}
	p := &webPairs{Cluster: c, modes: pairedModes(), pairs: map[string]*web{}}
	if err := p.start(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *webPairs) start(ctx context.Context) error {
	selected := 0
	for i := range p.modes {
		mode := &p.modes[i]
		name := strings.ReplaceAll(mode.name, "_", "-")
		pair := &web{Cluster: p.Cluster, client: "client-" + name, server: "web-" + name}
		if err := pair.start(ctx, map[string]string{pairPolicies: name}); err != nil {
			return err
		}
		p.pairs[mode.name] = pair
		if mode.policy == "" {
			continue
		}
		selected += 2
		if err := p.Apply(ctx, policyOfPair(mode.policy, name)); err != nil {
			return err
		}
	}
	if err := p.Settled(ctx, selected); err != nil {
		return err
	}
	time.Sleep(policyAge)
	return nil
}

// policyOfPair is the policy for one pair alone.
func policyOfPair(policy, name string) string {
	return strings.NewReplacer("{name: spread,", "{name: "+name+",", "podSelector: {}", "podSelector: {matchLabels: {"+pairPolicies+": "+name+"}}").Replace(policy)
}

// measureHTTPPairs has each pair ask for a second in turn, in another order each time, and
// compares what is of one turn.
func measureHTTPPairs(ctx context.Context, m *rig.Measurement, p *webPairs) error {
	for range m.Trials * turnsOfPairs {
		rates := map[string]float64{}
		for mode := range rig.Shuffled(p.modes) {
			rate, err := p.pairs[mode.name].ask(ctx, &mode, pairedFile)
			if err != nil {
				return fmt.Errorf("%s: %w", mode.name, err)
			}
			rates[mode.name] = rate
			m.Add("http_pairs.1k."+mode.name+"_rps", rate)
		}
		for name, rate := range rates {
			if name != "braid" {
				m.Add("http_pairs.1k."+name+"_to_braid", rate/rates["braid"])
			}
		}
	}
	for _, name := range []string{"braid_settings", "braid_transport"} {
		least, most := rig.MedianWithin(m.Values("http_pairs.1k." + name + "_to_braid"))
		rig.Say("the median of %s to braid is within %.3f and %.3f, 95 times of 100", name, least, most)
	}
	return nil
}
