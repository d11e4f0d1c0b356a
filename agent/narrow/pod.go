// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/internal/mptcpnl"
)

// searchEvery is how often all sockets of a pod are gone through, for those whose other ends
// the node translates.
const searchEvery = time.Second

// mostTranslated is how many of these are remembered.
const mostTranslated = 1024

// pod answers for the subflows in a pod's network namespace.
type pod struct {
	diagnostics *mptcpnl.Diagnostics
	// translated are the other ends of subflows to a Service, as the pod knows them, by their
	// own ends. The uplinks know the backends'.
	translated map[netip.AddrPort]netip.AddrPort
	searched   time.Time
}

// openPod is nil where the pod has ended meanwhile.
func openPod(path string) (*pod, error) {
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
	return &pod{diagnostics: diagnostics}, nil
}

// Close lets go of the namespace.
func (p *pod) Close() error { return p.diagnostics.Close() }

// subflows asks the kernel for those of these flows, by the tokens of their connections, and
// tells which of them have ended.
func (p *pod) subflows(now time.Time, flows []datapath.BusyFlow) (byToken map[uint32]*found, ended []datapath.BusyFlow, err error) {
	byToken = map[uint32]*found{}
	for _, flow := range flows {
		s, exists, err := p.subflow(now, flow)
		if err != nil {
			return nil, nil, err
		}
		if !exists || !s.Established {
			ended = append(ended, flow)
			continue
		}
		of := byToken[s.Token]
		if of == nil {
			of = &found{}
			byToken[s.Token] = of
		}
		of.flows = append(of.flows, flow)
		of.subflows = append(of.subflows, subflow{
			ends: ends{flow.Local, flow.Remote}, path: flow.Path,
			acked: s.TCP.AckedBytes, rate: float64(s.TCP.DeliveryRate), rtt: s.TCP.RTT, window: s.TCP.SendWindow,
			queued: s.TCP.Queued, resent: s.TCP.RepeatedBytes, paced: s.TCP.MaxPacingRate <= s.TCP.PacingRate,
		})
	}
	return byToken, ended, p.readBacklogs(byToken)
}

// readBacklogs asks for the connections themselves, and leaves those out of which the kernel
// does not tell how much is under way: Linux does from 6.5 on.
func (p *pod) readBacklogs(byToken map[uint32]*found) error {
	for token, of := range byToken {
		connection, exists, err := p.diagnostics.Connection(token)
		if err != nil {
			return err
		}
		if !exists || !connection.SequencesKnown {
			delete(byToken, token)
			continue
		}
		of.data = backlog{all: connection.Backlog, underWay: connection.UnderWay}
	}
	return nil
}

// subflow is that of a flow. Towards a Service the pod knows another end than the uplinks.
func (p *pod) subflow(now time.Time, flow datapath.BusyFlow) (mptcpnl.Subflow, bool, error) {
	if remote, known := p.translated[flow.Local]; known {
		s, exists, err := p.diagnostics.Subflow(flow.Local, remote)
		if exists || err != nil {
			return s, exists, err
		}
	}
	s, exists, err := p.diagnostics.Subflow(flow.Local, flow.Remote)
	if exists || err != nil || now.Sub(p.searched) < searchEvery {
		return s, exists, err
	}
	if err := p.search(now, flow.Local); err != nil {
		return s, false, err
	}
	if remote, known := p.translated[flow.Local]; known {
		return p.diagnostics.Subflow(flow.Local, remote)
	}
	return s, false, nil
}

// search goes through all subflows that the pod began, for the other end of the one that has
// this end, if it is the only one.
func (p *pod) search(now time.Time, local netip.AddrPort) error {
	p.searched = now
	var remote []netip.AddrPort
	err := p.diagnostics.EachSubflow(func(s *mptcpnl.Subflow) bool {
		if s.Local == local && s.Initiator {
			remote = append(remote, s.Remote)
		}
		return len(remote) < 2
	})
	if len(p.translated) >= mostTranslated || p.translated == nil {
		p.translated = map[netip.AddrPort]netip.AddrPort{}
	}
	if len(remote) == 1 {
		p.translated[local] = remote[0]
	}
	return err
}
