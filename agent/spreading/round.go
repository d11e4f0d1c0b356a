// SPDX-License-Identifier: Apache-2.0

package spreading

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// Run looks at all pods again and again, until the context ends. It does not wait for
// Apply, nor for the API server.
func (s *Spreading) Run(ctx context.Context) error {
	timer := time.NewTimer(s.options.Interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		begin := time.Now()
		if err := s.round(ctx); err != nil && ctx.Err() == nil {
			s.options.Log.Error(err, "failed to see what pods' traffic does; trying again", "after", s.options.Interval.String())
		}
		timer.Reset(max(s.options.Interval-time.Since(begin), s.options.Interval/10))
	}
}

// round looks at each pod once, and has what changed published.
func (s *Spreading) round(ctx context.Context) error {
	s.mu.Lock()
	model := s.model
	s.mu.Unlock()
	if len(model.Endpoints) == 0 {
		return nil
	}
	begin := time.Now()
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("opening rtnetlink: %w", err)
	}
	defer kernel.Close()
	seen := &sight{Spreading: s, atlas: newAtlas(model, kernel, s.options.Dead()), upgradeFails: isUnsupported(s.options.Upgrade())}
	if err := seen.withFlows(func() (err error) {
		seen.used, err = usedFlows(seen.flows)
		return err
	}); err != nil {
		return err
	}
	rest(ctx, begin)
	changed := false
	for i := range model.Endpoints {
		begin := time.Now()
		err = errors.Join(err, seen.withFlows(func() error {
			now, err := seen.endpoint(&model.Endpoints[i])
			changed = changed || now
			return err
		}))
		if rest(ctx, begin); ctx.Err() != nil {
			return nil
		}
	}
	if changed {
		s.options.Notify()
	}
	return err
}

// withFlows opens the flows for one look: between looks, which may be long, they are let go.
func (s *sight) withFlows(look func() error) (err error) {
	if s.flows, err = s.options.Flows(); err != nil {
		return err
	}
	return errors.Join(look(), s.flows.Close())
}

// rest spaces the looks out, for so many times what the last one took.
func rest(ctx context.Context, begin time.Time) {
	select {
	case <-ctx.Done():
	case <-time.After((lookShare - 1) * time.Since(begin)):
	}
}

func isUnsupported(feature *v1alpha1.KernelFeature) bool { return feature != nil && !feature.Supported }

// usedFlow is what matters of flows that were used lately. Many have the same.
type usedFlow struct {
	path string
	peer uint32
}

// usedFlows are by their ends here.
func usedFlows(flows *datapath.FlowTable) (map[netip.Addr]map[usedFlow]bool, error) {
	used := map[netip.Addr]map[usedFlow]bool{}
	err := flows.Each(func(flow *datapath.Flow) {
		if flow.Idle > recent {
			return
		}
		of := used[flow.Local.Addr()]
		if of == nil {
			of = map[usedFlow]bool{}
			used[flow.Local.Addr()] = of
		}
		of[usedFlow{flow.Carrier(), flow.Peer}] = true
	})
	return used, err
}

// sight is what all looks of a round share.
type sight struct {
	*Spreading
	atlas        *atlas
	flows        *datapath.FlowTable
	used         map[netip.Addr]map[usedFlow]bool
	upgradeFails bool
}

// endpoint looks at one, and says whether something else is to be told of it.
func (s *sight) endpoint(endpoint *node.Endpoint) (changed bool, err error) {
	if endpoint.Found == nil || endpoint.Found.Path == "" && !endpoint.HasGuest() {
		return false, nil
	}
	p := s.begin(endpoint)
	if p == nil {
		return false, nil // it is gone
	}
	begin := time.Now()
	l := look{
		endpoint: endpoint, begin: begin, before: p.kept, partly: p.partly, mature: !p.first.IsZero() && begin.Sub(p.first) > afterlife, flows: s.flows, atlas: s.atlas, tracked: s.find,
		keep:     func() bool { return s.room.Take(endpoint.Namespace, string(endpoint.UID)) },
		observed: s.observationOf(endpoint),
	}
	if err = l.run(); errors.Is(err, os.ErrNotExist) {
		err = nil // it has just gone
	} else if err != nil {
		err = fmt.Errorf("looking at the sockets of %s: %w", endpoint.FullName(), err)
	}
	return s.end(p, &l, begin, err == nil), err
}

// begin gives the pod's places in the room back.
func (s *Spreading) begin(endpoint *node.Endpoint) *pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[endpoint.UID]
	if p != nil {
		s.room.Give(p.held, endpoint.Namespace, string(endpoint.UID))
		p.held = 0
	}
	return p
}

// end keeps what a look found. The first one only learns what there is.
func (s *Spreading) end(p *pod, l *look, begin time.Time, complete bool) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods[l.endpoint.UID] != p {
		s.room.Give(len(l.now), l.endpoint.Namespace, string(l.endpoint.UID))
		return false
	}
	changed = complete && !p.at.IsZero() && p.settled.take(judge(&l.observed))
	s.show(p, l, begin)
	p.kept, p.held, p.partly, p.at = l.now, len(l.now), l.full, begin
	if p.first.IsZero() {
		p.first = begin
	}
	return changed
}

// observationOf is what is known of an endpoint without its sockets.
func (s *sight) observationOf(endpoint *node.Endpoint) observation {
	open, shut := openPaths(s.atlas.model, endpoint)
	o := observation{
		open: open, shut: shut, used: map[string]bool{},
		samePath:       endpoint.Subflows.Mode == v1alpha1.SubflowModeNDiffPorts,
		openAfterBytes: uint64(endpoint.Subflows.OpenAfterBytes),
		openAfterTime:  time.Duration(endpoint.Subflows.OpenAfterMillis) * time.Millisecond,
		byKernel:       endpoint.Subflows.Manager == v1alpha1.SubflowManagerKernel,
		upgradeFails:   endpoint.UpgradeSockets && s.upgradeFails,
		// Nor is it the pod's own sockets that tell where a proxy goes on with its connections.
		guest:   endpoint.HasGuest() || endpoint.Proxy != nil,
		crowded: s.options.Crowded != nil && s.options.Crowded(endpoint.Namespace),
	}
	for _, address := range endpoint.Addresses {
		for flow := range s.used[address] {
			o.used[carrier(flow.path, s.atlas.usable(open, s.atlas.byNumber[flow.peer]))] = true
		}
	}
	return o
}
