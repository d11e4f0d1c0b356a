// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	// keptConnections are opened at once and kept, as a pool's are. On each so many bytes are asked for at a time.
	keptConnections, keptBytes = 12, 1 << 10
	keptPause                  = 20 * time.Millisecond
	// In keptFirst of a lab's first connections nobody knows yet that a path is longer, and in keptSettled that should be known.
	keptFirst, keptSettled, keptLasts = time.Second, 5 * time.Second, 10 * time.Second
	keptDelay                         = 5 * time.Millisecond // one way, on one path of three
	// So many connections of others fill one path of three, keptBusyFor before anything is measured.
	keptOthers, keptBusyFor = 2, 25 * time.Second
	keptOthersPort          = "7070"
)

// keptWays are plain TCP and MPTCP of pods that no policy selects, and the default.
var keptWays = []keptWay{
	{"tcp", network.TCP, "other", "server-other"},
	{"mptcp", network.MPTCP, "other", "server-other"},
	{"braid", network.MPTCP, "client", "server"},
}

// keptWay is a pair of pods, and what its sockets speak.
type keptWay struct {
	name           string
	protocol       network.Protocol
	client, server string
}

func newKeptLab(ctx context.Context) (*rig.Lab, error) {
	return keptLabOn(ctx, network.Spec{
		Paths: rig.Paths[:3], LinkMbit: rig.LinkMbit, PathDelays: map[string]time.Duration{rig.Paths[2]: keptDelay},
	})
}

func newKeptBusyLab(ctx context.Context) (*rig.Lab, error) {
	return keptLabOn(ctx, network.Spec{Paths: rig.Paths[:3], LinkMbit: rig.LinkMbit})
}

func keptLabOn(ctx context.Context, links network.Spec) (*rig.Lab, error) {
	return rig.NewLab(ctx, links, rig.PodOf("demo", "other", 1), rig.PodOf("demo", "server-other", 2))
}

// measureKept times small requests on connections that are kept, of which some begin on a path that is much
// longer than the others.
func measureKept(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	if err := l.Spread(ctx, "{}"); err != nil {
		return err
	}
	return compareKept(ctx, m, l, "kept")
}

// measureKeptBusy times them where the nodes' own traffic, which Braid leaves alone, fills a path.
func measureKeptBusy(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	if err := l.Spread(ctx, "{}"); err != nil {
		return err
	}
	from, to := l.Network.Nodes[0], l.Network.Nodes[1]
	return rig.Use(ctx, func(ctx context.Context) (*rig.Server, error) {
		return rig.Serve(ctx, to.Namespace, keptOthersPort)
	}, func(*rig.Server) (err error) {
		others := rig.Route{From: from.Namespace, To: net.JoinHostPort(to.Address(2, 4), keptOthersPort), Protocol: network.TCP}
		running, err := others.Start(ctx, traffic.Options{Connections: keptOthers, Duration: time.Hour})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, running.Stop()) }()
		time.Sleep(keptBusyFor)
		return compareKept(ctx, m, l, "kept_busy")
	})
}

func compareKept(ctx context.Context, m *rig.Measurement, l *rig.Lab, figure string) error {
	for range m.Trials {
		worst := map[string][2]float64{}
		for way := range rig.Shuffled(keptWays) {
			took, err := worstKept(ctx, l, way)
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			worst[way.name] = took
		}
		for i, phase := range []string{"first", "then"} {
			for _, way := range keptWays {
				m.Add(fmt.Sprintf("%s.%s.%s_ms", figure, phase, way.name), worst[way.name][i])
			}
			for _, way := range keptWays[1:] {
				m.Add(fmt.Sprintf("%s.%s.%s_to_tcp", figure, phase, way.name), worst[way.name][i]/worst["tcp"][i])
			}
		}
	}
	return nil
}

// worstKept is how long the usual answer takes on the connection where it takes longest, first and then, in ms.
func worstKept(ctx context.Context, l *rig.Lab, way keptWay) (worst [2]float64, err error) {
	err = rig.Use(ctx, func(ctx context.Context) (*rig.Flows, error) {
		return rig.NewFlows(ctx, l.Network.Pod(way.client), l.Network.Pod(way.server))
	}, func(flows *rig.Flows) error {
		flows.Protocol = way.protocol
		usual := make([][2]float64, keptConnections)
		running, ctx := errgroup.WithContext(ctx)
		for i := range usual {
			running.Go(func() (err error) {
				usual[i], err = keptOne(ctx, flows)
				return err
			})
		}
		if err := running.Wait(); err != nil {
			return err
		}
		for _, one := range usual {
			for phase := range worst {
				worst[phase] = max(worst[phase], one[phase])
			}
		}
		return nil
	})
	return worst, err
}

func keptOne(ctx context.Context, flows *rig.Flows) (usual [2]float64, err error) {
	kept, err := flows.Keep(ctx)
	if err != nil {
		return usual, err
	}
	defer kept.Close()
	var took [2][]float64
	for began := time.Now(); time.Since(began) < keptLasts; time.Sleep(keptPause) {
		one, err := kept.Ask(keptBytes)
		if err != nil {
			return usual, err
		}
		switch since := time.Since(began); {
		case since < keptFirst:
			took[0] = append(took[0], one.Seconds()*1000)
		case since >= keptSettled:
			took[1] = append(took[1], one.Seconds()*1000)
		}
	}
	for phase, times := range took {
		if len(times) == 0 {
			return usual, fmt.Errorf("nothing was answered in one of the phases of %s", keptLasts)
		}
		usual[phase] = rig.Median(times)
	}
	return usual, nil
}
