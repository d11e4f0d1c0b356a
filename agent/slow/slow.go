// SPDX-License-Identifier: Apache-2.0

// Package slow has new connections begin on other paths than those by which they last much longer: a
// link somewhere is slower, or longer, than its NICs tell, and a short connection has no further subflow that
// would make good for it.
//
// The first subflows of the connections of one pod to one peer take turns on the paths. So nothing but
// the path makes those that began on one of them last longer, on the average, than others: neither what is sent
// nor what the applications do. The programs of the uplinks note how long each lasted.
package slow

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/logonce"
)

const (
	// interval is how often is looked how long connections lasted.
	interval = 250 * time.Millisecond
	// part is what of the time that may take, where there are many pairs, and longestPause how long it is
	// left out for that: who was kept from the processor meanwhile did not take the time.
	part, longestPause = 0.01, time.Second
)

// Datapath knows how long connections lasted.
type Datapath interface {
	Lasting(visit func(*datapath.Lasting)) error
	SetSlow(endpoint, peer uint32, path uint8, lasts time.Duration) error
}

// Slow is the node.Part that knows which paths are slow.
type Slow struct {
	datapath Datapath
	log      logr.Logger
	failed   logonce.Error // the last error

	mutex  sync.Mutex
	pairs  map[key]*pair
	last   time.Time // the last look; zero before the first
	names  names
	wanted bool
	change chan struct{}
}

// key has the numbers of an endpoint and a peer.
type key struct{ endpoint, peer uint32 }

// names are those of numbers.
type names struct {
	endpoints, peers map[uint32]string
	paths            map[uint8]string
}

// New looks at nothing yet.
func New(of Datapath, log logr.Logger) *Slow {
	return &Slow{datapath: of, log: log, pairs: map[key]*pair{}, change: make(chan struct{}, 1)}
}

// Apply has connections be looked at while there are several paths.
func (s *Slow) Apply(_ context.Context, model *node.Model) node.Report {
	known := names{map[uint32]string{}, map[uint32]string{}, map[uint8]string{}}
	for i := range model.Endpoints {
		known.endpoints[model.Endpoints[i].Number] = model.Endpoints[i].FullName()
	}
	for i := range model.Peers {
		known.peers[model.Peers[i].Number] = model.Peers[i].Name
	}
	for _, path := range model.NICs() {
		known.paths[path.Number] = path.Name
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.names, s.wanted = known, len(known.paths) > 1 && len(known.endpoints) > 0
	select {
	case s.change <- struct{}{}:
	default:
	}
	return s.report(model)
}

// report has the endpoints' status say on which paths their connections do not begin.
func (s *Slow) report(model *node.Model) (report node.Report) {
	found := s.slowPaths()
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		for _, path := range slices.Sorted(maps.Keys(found[endpoint.Number])) {
			text := fmt.Sprintf("new connections to %s do not begin on path %s, where they last much longer: see docs/subflows.md", some(found[endpoint.Number][path]), path)
			report.Describe(endpoint.UID, func(status *v1alpha1.EndpointStatus) { node.AddMessage(status, text) })
		}
	}
	return report
}

// slowPaths are the peers to which paths are slow, by the numbers of endpoints and the paths' names.
func (s *Slow) slowPaths() map[uint32]map[string][]string {
	found := map[uint32]map[string][]string{}
	for of, pair := range s.pairs {
		for number := range pair.paths {
			name := s.names.paths[uint8(number)]
			if !pair.paths[number].isKnownSlow() || name == "" {
				continue
			}
			if found[of.endpoint] == nil {
				found[of.endpoint] = map[string][]string{}
			}
			found[of.endpoint][name] = append(found[of.endpoint][name], s.peer(of.peer))
		}
	}
	return found
}

// peer is the name of another node, or of all that is none.
func (s *Slow) peer(number uint32) string {
	if name := s.names.peers[number]; name != "" {
		return name
	}
	return "destinations outside of the cluster"
}

// some names two of several.
func some(peers []string) string {
	slices.Sort(peers)
	peers = slices.Compact(peers)
	if len(peers) > 2 {
		return fmt.Sprintf("%s, %s and %d more", peers[0], peers[1], len(peers)-2)
	}
	return strings.Join(peers, " and ")
}

// Remove has nothing to undo: what it said is in what others remove.
func (s *Slow) Remove(context.Context) error { return nil }

// Close leaves it to the programs to try now and then whether paths are still slow.
func (s *Slow) Close() error { return nil }

func (s *Slow) isWanted() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.wanted
}

// Run looks at how long connections lasted until the context ends.
func (s *Slow) Run(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var next time.Time
	for {
		tick := ticker.C
		if !s.isWanted() {
			tick = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.change:
		case <-tick:
			now := time.Now()
			if now.Before(next) {
				continue
			}
			s.failed.Log(s.log, s.look(now), "failed to look by which paths connections last much longer")
			next = now.Add(min(time.Duration(float64(time.Since(now))/part), longestPause))
		}
	}
}

func (s *Slow) look(now time.Time) error {
	found, pairs := map[key][]verdict{}, map[key]*pair{}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	err := s.datapath.Lasting(func(seen *datapath.Lasting) {
		of := key{seen.Endpoint, seen.Peer}
		switch pairs[of] = s.pairs[of]; {
		case s.last.IsZero():
			pairs[of] = adopt(now, seen)
			return
		case pairs[of] == nil || pairs[of].isAnother(seen): // all of it has begun since the last look
			pairs[of] = adopt(s.last, &datapath.Lasting{})
		}
		if verdicts := pairs[of].look(now, seen); len(verdicts) > 0 {
			found[of] = verdicts
		}
	})
	if err != nil {
		return err
	}
	s.pairs, s.last = pairs, now
	for of, verdicts := range found {
		err = errors.Join(err, s.tell(of, verdicts))
	}
	return err
}

func (s *Slow) tell(of key, verdicts []verdict) (failed error) {
	for _, verdict := range verdicts {
		failed = errors.Join(failed, s.datapath.SetSlow(of.endpoint, of.peer, verdict.path, verdict.lasts))
		log := s.log.WithValues("endpoint", s.names.endpoints[of.endpoint], "peer", s.peer(of.peer), "path", s.names.paths[verdict.path])
		switch {
		case verdict.trial:
			log.V(1).Info("connections last much longer on the path: it is tried whether more end without it", "times", verdict.times, "for", verdict.lasts.String())
		case verdict.lasts == 0:
			log.Info("connections begin on the path again: they last no longer there")
		case verdict.times == 0:
			log.Info("connections last as long on other paths by now: the path is tried again")
		default:
			log.Info("connections last much longer on the path: new ones begin on others", "times", verdict.times, "for", verdict.lasts.String())
		}
	}
	return failed
}
