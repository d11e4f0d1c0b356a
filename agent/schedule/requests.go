// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"braid.dev/braid/internal/mptcpnl"
)

// Request is what the peer of a connection asks for on one of its subflows, and its pod accepts.
type Request struct {
	Ends
	// EarliestCompletionFirst is true where that is the strategy.
	EarliestCompletionFirst bool
	// DelayThreshold is the round-trip time above which a thin stream moves; 0 for none.
	DelayThreshold time.Duration
}

// SetRequests has connections of the endpoint at this path scheduled as their peers ask, and
// all others of which that was so before be as they were. Of those that ended it need not
// have known: an earlier agent may have.
func (s *Scheduler) SetRequests(path string, requests []Request, ended []Ends) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endpoints[path] == nil && len(requests)+len(ended) == 0 {
		return nil
	}
	if s.endpoints[path] == nil {
		if err := s.add(Endpoint{Path: path}); err != nil {
			return err
		}
	}
	stack := s.endpoints[path]
	if stack == nil { // the pod ended
		return nil
	}
	stack.requests = map[Ends]Request{}
	for _, request := range requests {
		stack.requests[request.Ends] = request
	}
	failed := stack.end(ended)
	if !stack.isWanted() {
		failed = errors.Join(failed, stack.release(), stack.close())
		delete(s.endpoints, path)
	}
	s.wake()
	return failed
}

// isWanted: rules or peers ask for something.
func (s *stack) isWanted() bool { return s.Rules != 0 || len(s.requests) > 0 }

// end uses all subflows again of connections for which nobody asks any more.
func (s *stack) end(ended []Ends) error {
	if len(ended) == 0 {
		return nil
	}
	over := map[Ends]bool{}
	for _, ends := range ended {
		over[ends] = true
	}
	subflows, err := s.connections()
	if err != nil {
		return err
	}
	var failed error
	for _, ours := range subflows {
		asked := slices.ContainsFunc(ours, func(subflow mptcpnl.Subflow) bool { return over[endsOf(&subflow)] })
		if asked && s.requestOf(ours) == (Request{}) {
			failed = errors.Join(failed, s.useAll(ours))
		}
	}
	return failed
}

func endsOf(subflow *mptcpnl.Subflow) Ends { return Ends{subflow.Local, subflow.Remote} }

// requestOf is what is asked for on a connection's subflows together.
func (s *stack) requestOf(subflows []mptcpnl.Subflow) (all Request) {
	if len(s.requests) == 0 {
		return all
	}
	for i := range subflows {
		request := s.requests[endsOf(&subflows[i])]
		all.EarliestCompletionFirst = all.EarliestCompletionFirst || request.EarliestCompletionFirst
		if request.DelayThreshold > 0 && (all.DelayThreshold == 0 || request.DelayThreshold < all.DelayThreshold) {
			all.DelayThreshold = request.DelayThreshold
		}
	}
	return all
}

// keepThin has a thin stream use one subflow. It returns false where the stream is not thin,
// or nobody knows: kernels before 6.5 do not tell what waits.
func (s *stack) keepThin(connection *mptcpnl.Connection, backlog uint64, threshold time.Duration, subflows []mptcpnl.Subflow) (kept bool, err error) {
	if threshold == 0 || !connection.SequencesKnown || backlog > thinBacklog {
		delete(s.streams, connection.Token)
		return false, nil
	}
	candidates := make([]candidate, len(subflows))
	for i := range subflows {
		of := &subflows[i]
		candidates[i] = candidate{Ends: endsOf(of), rtt: of.TCP.RTT, acked: of.TCP.AckedBytes, first: of.First, asked: of.BackupAsked}
	}
	if s.streams[connection.Token] == nil {
		s.streams[connection.Token] = &stream{}
	}
	used := s.streams[connection.Token].choose(time.Now(), threshold, candidates)
	for i := range subflows {
		// Of two backups the kernel would take the first: one that the peer asked for stays.
		if rests := i != used && !subflows[i].BackupAsked; rests != subflows[i].BackupWanted {
			err = errors.Join(err, s.setBackup(&subflows[i], rests))
		}
	}
	return true, err
}

// useAll ends that any of these subflows rests.
func (s *stack) useAll(subflows []mptcpnl.Subflow) (failed error) {
	for i := range subflows {
		if subflows[i].BackupWanted {
			failed = errors.Join(failed, s.setBackup(&subflows[i], false))
		}
	}
	if failed != nil {
		return fmt.Errorf("using all subflows of a connection again: %w", failed)
	}
	return nil
}
