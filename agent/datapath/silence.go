// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf/uplink"
)

// The programs take flows off paths that do not answer, and back, with no word from here
// (bpf/include/uplink/silence.h). This tells which flows avoid which paths meanwhile.

// tick is the programs' time, in about milliseconds.
func tick() (uint32, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		return 0, fmt.Errorf("reading the clock: %w", err)
	}
	return uint32(now.Nano() >> uplink.Tick), nil
}

// silence judges flows at one time. It is for one goroutine.
type silence struct {
	now      uint32
	answered *ebpf.Map // nil where nothing is pinned
	// read are the answers that were looked up: many flows ask for the same.
	read map[uint32]uint32
	err  error // the first
}

func newSilence(answered *ebpf.Map) (*silence, error) {
	now, err := tick()
	return &silence{now: now, answered: answered, read: map[uint32]uint32{}}, err
}

// avoided are the paths that a packet of the flow would avoid now: may_return of the
// programs says when they are taken again.
func (s *silence) avoided(flow *uplink.ToUplinkFlow) uint8 {
	if flow.Avoided == 0 || flow.Ended == uplink.EndedBoth {
		return 0
	}
	since := max(int32(s.now-flow.AvoidedAt), 0) // it may have left after we looked at the clock
	if since >= uplink.AvoidFor/2<<(flow.Tries&7) {
		return 0
	}
	if answer := s.answer(flow); answer != 0 && int32(answer-flow.AvoidedAt) > 0 {
		return 0
	}
	return flow.Avoided
}

// answer is when the flow's peer answered on the flow's path last.
func (s *silence) answer(flow *uplink.ToUplinkFlow) (answer uint32) {
	if s.answered == nil || flow.Path >= uplink.MaxPaths {
		return 0
	}
	index := uint32(flow.Peer)*uplink.MaxPaths + uint32(flow.Path)
	answer, known := s.read[index]
	if known {
		return answer
	}
	if err := s.answered.Lookup(index, &answer); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) && s.err == nil {
		s.err = fmt.Errorf("reading when a peer answered: %w", err)
	}
	s.read[index] = answer
	return answer
}

// openAnswered opens the map by its pin; nil where there is none.
func (d *Datapath) openAnswered() (*ebpf.Map, error) {
	pin := filepath.Join(d.loaded.Directory(), uplink.ToUplinkMapAnswered)
	answered, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("failed to open the pinned map %s: %w", pin, err)
	}
	return answered, nil
}

// avoidance counts, by paths, the flows that avoid them, and the peers to which some do.
type avoidance struct {
	flows [uplink.MaxPaths]int
	peers [uplink.MaxPaths]map[uint16]bool
}

func (a *avoidance) add(flow *uplink.ToUplinkFlow, avoided uint8) {
	for path := range a.flows {
		if avoided>>path&1 == 0 {
			continue
		}
		a.flows[path]++
		if a.peers[path] == nil {
			a.peers[path] = map[uint16]bool{}
		}
		a.peers[path][flow.Peer] = true
	}
}

// clearDepartures forgets how many flows left paths that are gone: others get their numbers.
func clearDepartures(m *ebpf.Map, paths map[uint32]bool) error {
	for number := range paths {
		if err := m.Put(number, uint64(0)); err != nil {
			return fmt.Errorf("forgetting the departures from path %d: %w", number, err)
		}
	}
	return nil
}
