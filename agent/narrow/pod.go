// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/internal/mptcpnl"
)

// searchEvery is how often all sockets of a pod are gone through, for those whose other ends
// the node translates, and for those that send too little to be told.
const searchEvery = time.Second

// searchPart is the part of the time that this may take of all pods: the kernel goes through the
// node's sockets for each, which takes milliseconds.
const searchPart = 0.05

// budget is when the sockets of any pod may be gone through again.
type budget struct{ again time.Time }

func (b *budget) isSpent(now time.Time) bool { return now.Before(b.again) }

// spend takes in how long that took.
func (b *budget) spend(now time.Time, took time.Duration) {
	b.again = now.Add(time.Duration(float64(took) / searchPart))
}

// mostTranslated is how many of these are remembered.
const mostTranslated = 1024

// pod answers for the subflows in a pod's network namespace.
type pod struct {
	diagnostics *mptcpnl.Diagnostics
	budget      *budget
	// translated are the other ends of subflows to a Service, as the pod knows them, by their
	// own ends. The uplinks know the backends'.
	translated map[netip.AddrPort]netip.AddrPort
	searched   time.Time
	members    map[ends]*member
	// quiet are subflows that may send too little to be told, of connections that are held back,
	// by their tokens.
	quiet  map[uint32][]ends
	sought time.Time // when they were looked for last
}

// member is to which connection a flow belongs, which does not change: the subflows of one may
// have addresses of both versions of IP.
type member struct {
	token uint32 // 0 for none that is known
	asked time.Time
	seen  time.Time
	own   int // the path by which it left while it shared none, or noPath
	// checked is when it was seen last whether its connection, which has no other, is held back.
	checked time.Time
}

// noPath is that of a flow that has shared one since it is known.
const noPath = -1

// openPod is nil where the pod has ended meanwhile.
func openPod(path string, budget *budget) (*pod, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening a pod's network namespace: %w", err)
	}
	defer file.Close()
	diagnostics, err := mptcpnl.DialDiagnostics(int(file.Fd()))
	if err != nil {
		return nil, err
	}
	return &pod{diagnostics: diagnostics, budget: budget, members: map[ends]*member{}, quiet: map[uint32][]ends{}}, nil
}

// Close lets go of the namespace.
func (p *pod) Close() error { return p.diagnostics.Close() }

// connections are those to which flows belong, by their tokens. It tells which flows belong to
// none, and for how many it had to ask.
func (p *pod) connections(now time.Time, flows []datapath.BusyFlow) (byToken map[uint32][]datapath.BusyFlow, others []datapath.BusyFlow, asked int, err error) {
	if asked, err = p.join(now, flows); err != nil {
		return nil, nil, asked, err
	}
	byToken = map[uint32][]datapath.BusyFlow{}
	for _, flow := range flows {
		m := p.members[endsOf(flow)]
		m.seen = now
		if !flow.Shared {
			m.own = int(flow.Path)
		}
		if m.token == 0 {
			others = append(others, flow)
			continue
		}
		byToken[m.token] = append(byToken[m.token], flow)
	}
	maps.DeleteFunc(p.members, func(_ ends, m *member) bool { return now.Sub(m.seen) > forget })
	maps.DeleteFunc(p.quiet, func(token uint32, _ []ends) bool { return byToken[token] == nil })
	return byToken, others, asked, nil
}

func endsOf(flow datapath.BusyFlow) ends { return ends{flow.Local, flow.Remote} }

// join finds out to which connections flows belong of which that is not known.
func (p *pod) join(now time.Time, flows []datapath.BusyFlow) (asked int, err error) {
	lost := map[netip.AddrPort]ends{}
	for _, flow := range flows {
		of := endsOf(flow)
		if m := p.members[of]; m != nil && (m.token != 0 || now.Sub(m.asked) < searchEvery) {
			continue
		}
		asked++
		if err := p.joinOne(now, of); err != nil {
			return asked, err
		}
		if p.members[of].token == 0 {
			lost[of.local] = of
		}
	}
	if len(lost) == 0 || now.Sub(p.searched) < searchEvery || p.budget.isSpent(now) {
		return asked, nil
	}
	if err := p.search(now, lost); err != nil {
		return asked, err
	}
	for local, of := range lost {
		if _, known := p.translated[local]; known {
			asked++
			err = errors.Join(err, p.joinOne(now, of))
		}
	}
	return asked, err
}

func (p *pod) joinOne(now time.Time, of ends) error {
	s, exists, err := p.subflow(of)
	if err != nil {
		return err
	}
	m := &member{asked: now, seen: now, own: noPath}
	if exists && s.Established {
		m.token = s.Token
	}
	p.members[of] = m
	return nil
}

// withQuiet adds the flows of a connection's subflows that send little and were found.
func (p *pod) withQuiet(now time.Time, token uint32, flows []datapath.BusyFlow, paths Datapath) (all []datapath.BusyFlow, failed error) {
	all = flows
	for _, of := range p.quiet[token] {
		if slices.ContainsFunc(flows, func(flow datapath.BusyFlow) bool { return endsOf(flow) == of }) {
			continue
		}
		path, known, err := paths.PathOf(of.local, of.remote)
		failed = errors.Join(failed, err)
		if known {
			p.members[of] = &member{token: token, asked: now, seen: now, own: int(path)}
			all = append(all, datapath.BusyFlow{Local: of.local, Remote: of.remote, Path: path})
		}
	}
	return all, failed
}

// isDue tells, once in a while, that it is to be seen whether the connection of a flow has subflows
// that send little.
func (p *pod) isDue(now time.Time, flow datapath.BusyFlow) bool {
	m := p.members[endsOf(flow)]
	if now.Sub(m.checked) < searchEvery {
		return false
	}
	m.checked = now
	return true
}

// findQuiet finds the subflows of a connection that are none of these flows. A good path may have next
// to nothing to send while what the other ones carry fills the window.
func (p *pod) findQuiet(now time.Time, token uint32, flows []datapath.BusyFlow) error {
	if now.Sub(p.sought) < searchEvery || p.budget.isSpent(now) {
		return nil
	}
	var quiet []ends
	err := p.eachSubflow(now, func(s *mptcpnl.Subflow) {
		if s.Token == token && s.Established {
			quiet = append(quiet, p.asUplinksKnow(ends{s.Local, s.Remote}, flows))
		}
	})
	p.sought, p.quiet[token] = now, quiet
	return err
}

// eachSubflow visits all subflows of the pod.
func (p *pod) eachSubflow(now time.Time, visit func(*mptcpnl.Subflow)) error {
	began := time.Now()
	err := p.diagnostics.EachSubflow(func(s *mptcpnl.Subflow) bool {
		visit(s)
		return true
	})
	p.budget.spend(now, time.Since(began))
	return err
}

// asUplinksKnow are the ends of a subflow with the backend of a Service, where another subflow of its
// connection has it.
func (p *pod) asUplinksKnow(of ends, flows []datapath.BusyFlow) ends {
	for _, flow := range flows {
		if remote, known := p.translated[flow.Local]; known && remote == of.remote {
			p.translated[of.local] = remote
			return ends{of.local, flow.Remote}
		}
	}
	return of
}

// connection asks the kernel for the subflows of one that these flows are, and tells which of
// them have ended. It is nil where the kernel does not tell how much is under way: Linux does
// from 6.5 on.
func (p *pod) connection(token uint32, flows []datapath.BusyFlow) (of *found, ended []datapath.BusyFlow, err error) {
	of = &found{}
	for _, flow := range flows {
		s, exists, err := p.subflow(endsOf(flow))
		if err != nil {
			return nil, nil, err
		}
		if !exists || !s.Established || s.Token != token {
			delete(p.members, endsOf(flow))
			ended = append(ended, flow)
			continue
		}
		of.flows = append(of.flows, flow)
		of.own = append(of.own, p.members[endsOf(flow)].own)
		of.subflows = append(of.subflows, subflow{
			ends: endsOf(flow), path: flow.Path,
			acked: s.TCP.AckedBytes, rate: float64(s.TCP.DeliveryRate), rtt: s.TCP.RTT, least: s.TCP.LeastRTT, window: s.TCP.SendWindow,
			queued: s.TCP.Queued, resent: s.TCP.RepeatedBytes, paced: s.TCP.MaxPacingRate <= s.TCP.PacingRate,
			backup: s.BackupWanted || s.BackupAsked,
		})
	}
	connection, exists, err := p.diagnostics.Connection(token)
	if err != nil || !exists || !connection.SequencesKnown {
		return nil, ended, err
	}
	of.data = backlog{
		all: connection.Backlog, underWay: connection.UnderWay,
		used: connection.SendBufferUsed, buffer: connection.SendBuffer,
	}
	of.others = max(0, int(connection.Subflows)+1-len(of.flows))
	return of, ended, nil
}

// subflow is that of a flow. Towards a Service the pod knows another end than the uplinks.
func (p *pod) subflow(of ends) (mptcpnl.Subflow, bool, error) {
	if remote, known := p.translated[of.local]; known {
		s, exists, err := p.diagnostics.Subflow(of.local, remote)
		if exists || err != nil {
			return s, exists, err
		}
	}
	return p.diagnostics.Subflow(of.local, of.remote)
}

// search goes through all subflows that the pod began, for the other ends of those that have one
// of these ends, if they are the only ones.
func (p *pod) search(now time.Time, lost map[netip.AddrPort]ends) error {
	p.searched = now
	found := map[netip.AddrPort][]netip.AddrPort{}
	err := p.eachSubflow(now, func(s *mptcpnl.Subflow) {
		if _, wanted := lost[s.Local]; wanted && s.Initiator {
			found[s.Local] = append(found[s.Local], s.Remote)
		}
	})
	if len(p.translated)+len(found) > mostTranslated || p.translated == nil {
		p.translated = map[netip.AddrPort]netip.AddrPort{}
	}
	for local, remotes := range found {
		if len(remotes) == 1 {
			p.translated[local] = remotes[0]
		}
	}
	return err
}
