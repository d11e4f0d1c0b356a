// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"time"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
)

// unevenLink is how one of three links is worse than the others, as nobody has said.
type unevenLink struct {
	name  string // of its figures
	links network.Spec
	lost  float64 // of the frames at each end
	sizes []webFile
}

var (
	small      = requested[0]
	smallAlone = webFile{small.name, small.bytes, small.seconds, 1, false}

	slowLink = unevenLink{
		name: "http_slow", links: network.Spec{LinkMbit: rig.LinkMbit, PathMbit: map[string]int{rig.Paths[2]: 2}}, sizes: requested[1:3],
	}
	farLink = unevenLink{
		name: "http_far", links: network.Spec{LinkMbit: rig.LinkMbit, PathDelays: map[string]time.Duration{rig.Paths[2]: time.Millisecond / 2}},
		sizes: []webFile{smallAlone, small, requested[1]},
	}
	lossyLink = unevenLink{
		name: "http_lossy", links: network.Spec{LinkMbit: rig.LinkMbit}, lost: 0.01, sizes: []webFile{small, requested[1], requested[2]},
	}
)

// unevenWeb is a web of which one link is worse.
type unevenWeb struct {
	*web
	link unevenLink
}

func (u unevenLink) build(ctx context.Context) (*unevenWeb, error) {
	w, err := newWebOn(ctx, u.links)
	if err != nil {
		return nil, err
	}
	w.uneven = true
	if u.lost == 0 {
		return &unevenWeb{w, u}, nil
	}
	for _, node := range w.Network.Nodes {
		if err := w.Network.Lose(node, rig.Paths[2], u.lost); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	return &unevenWeb{w, u}, nil
}

// measureUneven counts requests from when the pods' policy has changed on, when nobody knows which link is
// worse, and again right after that.
func measureUneven(ctx context.Context, m *rig.Measurement, w *unevenWeb) error {
	for range m.Trials {
		for _, size := range w.link.sizes {
			if err := w.measureTwice(ctx, m, size); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *unevenWeb) measureTwice(ctx context.Context, m *rig.Measurement, size webFile) error {
	rates := [2]map[string]float64{{}, {}}
	of := w.link.name + "." + size.figure() + "."
	prefixes := [2]string{of + "first.", of}
	for mode := range rig.Shuffled(requestModes) {
		if mode.bond != "" || !m.Cases.MatchString(of+mode.name) {
			continue
		}
		if err := w.setPolicy(ctx, mode.policy); err != nil {
			return err
		}
		for i, prefix := range prefixes {
			got, err := w.ask(ctx, &mode, size)
			if err != nil {
				return fmt.Errorf("%s%s: %w", prefix, mode.name, err)
			}
			note(m, prefix, &mode, got)
			rates[i][mode.name] = got.rate
		}
	}
	for i, prefix := range prefixes {
		compare(m, prefix, rates[i])
	}
	return nil
}
