// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/mptcpnl"
)

// stack is the network stack of one endpoint.
type stack struct {
	Endpoint
	diagnostics *mptcpnl.Diagnostics
	client      *mptcpnl.Client
	backlogs    map[uint32][]uint64 // the latest of each connection, by its token
	requests    map[Ends]Request    // of peers
	streams     map[uint32]*stream  // the thin ones, by their connection's token
	failing     bool
	next        time.Time // when it is decided again
}

// Of an endpoint so many connections and subflows are looked at, and for no more than
// one part in decidePause of the time: others wait meanwhile.
const (
	mostConnections = 8192
	mostSubflows    = 4 * mostConnections
	decidePause     = 10
)

func (s *stack) close() error { return errors.Join(s.diagnostics.Close(), s.client.Close()) }

// decide looks at all connections once.
func (s *stack) decide(matching Matching) error {
	begin := time.Now()
	if begin.Before(s.next) {
		return nil
	}
	defer func() { s.next = time.Now().Add(decidePause*time.Since(begin) - interval) }()
	subflows, err := s.connections()
	if err != nil {
		return err
	}
	connections, err := s.diagnostics.Connections(mostConnections)
	if err != nil {
		return fmt.Errorf("listing the connections of endpoint %d: %w", s.Number, err)
	}
	backlogs := map[uint32][]uint64{}
	var failed error
	for _, connection := range connections {
		ours := subflows[connection.Token]
		if len(ours) < 2 {
			continue
		}
		byRule, request := s.governs(ours, matching), s.requestOf(ours)
		if !byRule && request == (Request{}) {
			continue
		}
		latest := append(s.backlogs[connection.Token], connection.Backlog)
		latest = latest[max(0, len(latest)-memory):]
		backlogs[connection.Token] = latest
		failed = errors.Join(failed, s.carryOut(&connection, byRule, request, slices.Max(latest), ours))
	}
	s.backlogs = backlogs
	maps.DeleteFunc(s.streams, func(token uint32, _ *stream) bool { return backlogs[token] == nil })
	return failed
}

// carryOut does what is asked for a connection. The pod's own rule goes before its peer.
func (s *stack) carryOut(connection *mptcpnl.Connection, byRule bool, request Request, backlog uint64, subflows []mptcpnl.Subflow) error {
	if byRule {
		return s.schedule(backlog, subflows)
	}
	if kept, err := s.keepThin(connection, backlog, request.DelayThreshold, subflows); kept {
		return err
	}
	if request.EarliestCompletionFirst {
		return s.schedule(backlog, subflows)
	}
	return s.useAll(subflows)
}

// connections are the established subflows, by the token of their connection.
func (s *stack) connections() (map[uint32][]mptcpnl.Subflow, error) {
	all, err := s.diagnostics.Subflows(mostSubflows)
	if err != nil {
		return nil, fmt.Errorf("listing the subflows of endpoint %d: %w", s.Number, err)
	}
	byToken := map[uint32][]mptcpnl.Subflow{}
	for _, subflow := range all {
		if subflow.Established && subflow.TCP.RTT > 0 {
			byToken[subflow.Token] = append(byToken[subflow.Token], subflow)
		}
	}
	return byToken, nil
}

// governs is true for a connection one of whose subflows a rule matches.
func (s *stack) governs(subflows []mptcpnl.Subflow, matching Matching) bool {
	return s.Rules != 0 && slices.ContainsFunc(subflows, func(subflow mptcpnl.Subflow) bool {
		return matching(s.Number, subflow.Local, subflow.Remote)&s.Rules != 0
	})
}

func (s *stack) schedule(backlog uint64, subflows []mptcpnl.Subflow) error {
	measured := make([]subflow, len(subflows))
	for i := range subflows {
		measured[i] = measure(&subflows[i])
	}
	var failed error
	for i, rests := range earliestCompletionFirst(backlog, measured) {
		if rests != subflows[i].BackupWanted {
			failed = errors.Join(failed, s.setBackup(&subflows[i], rests))
		}
	}
	return failed
}

// measure reads what TCP knows. A subflow in slow start has the rate at which it
// met its limit before, if it ever did.
func measure(s *mptcpnl.Subflow) subflow {
	rate := math.Inf(1)
	if window := max(s.TCP.CongestionWindow, s.TCP.SlowStartThreshold); s.TCP.SlowStartThreshold > 0 {
		rate = float64(max(window, 1)) / s.TCP.RTT.Seconds()
	}
	delay := s.TCP.RTT / 2
	if s.TCP.LeastRTT > 0 {
		delay = s.TCP.LeastRTT / 2
	}
	return subflow{delay: delay, rate: rate, resting: s.BackupWanted}
}

// setBackup ignores subflows and connections that have ended meanwhile.
func (s *stack) setBackup(subflow *mptcpnl.Subflow, backup bool) error {
	err := s.client.SetBackup(subflow.Token, subflow.Local, subflow.Remote, backup)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// release uses all subflows again. Where a policy asks for the kernel's path
// manager there are none that rest.
func (s *stack) release() error {
	subflows, err := s.connections()
	if err != nil {
		return err
	}
	var failed error
	for token := range s.backlogs {
		failed = errors.Join(failed, s.useAll(subflows[token]))
	}
	return failed
}
