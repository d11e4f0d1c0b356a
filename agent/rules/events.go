// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/events"
)

// follower receives what rules report, while the programs are loaded.
type follower struct {
	buffer ebpf.MapID
	cancel context.CancelFunc // nil while it does not follow
	done   chan struct{}
}

// follow begins, or ends, or goes over to the ring buffer of programs that were
// loaded anew.
func (f *follower) follow(ctx context.Context, r *rules) error {
	buffer, err := r.chains.Map("events")
	if err != nil {
		return err
	}
	if buffer == nil {
		f.stop()
		return nil
	}
	id, err := idOf(buffer)
	if err != nil || f.cancel != nil && f.buffer == id && !f.hasEnded() {
		return errors.Join(err, buffer.Close())
	}
	f.stop()
	ctx, cancel := context.WithCancel(ctx)
	f.buffer, f.cancel, f.done = id, cancel, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		defer buffer.Close()
		if err := events.Receive(ctx, buffer, r.shown, r.events, r.log.WithName("events")); err != nil {
			r.log.Error(err, "events are lost until the next look")
		}
	}(f.done)
	return nil
}

func idOf(m *ebpf.Map) (ebpf.MapID, error) {
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("asking for the number of %s: %w", m, err)
	}
	id, _ := info.ID()
	return id, nil
}

func (f *follower) hasEnded() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// stop waits until nothing is received any more.
func (f *follower) stop() {
	if f.cancel == nil {
		return
	}
	f.cancel()
	<-f.done
	f.cancel = nil
}
