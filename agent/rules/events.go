// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"

	"braid.dev/braid/agent/events"
	"braid.dev/braid/agent/node"
)

// eventReceiver receives what rules report, while the programs are loaded.
type eventReceiver struct {
	node.Idle
	inspection *inspection
	log        logr.Logger

	buffer ebpf.MapID
	cancel context.CancelFunc // nil while it does not receive
	done   chan struct{}
}

func (r *eventReceiver) Apply(ctx context.Context, _ *node.Model) (report node.Report) {
	if err := r.receive(ctx); err != nil {
		r.log.Error(err, "failed to receive the events of rules")
	}
	return report
}

// receive begins, or ends, or goes over to the ring buffer of programs that were
// loaded anew. It goes on after the context.
func (r *eventReceiver) receive(ctx context.Context) error {
	buffer, err := r.inspection.chains.Map("events")
	if err != nil {
		return err
	}
	if buffer == nil {
		return r.Close()
	}
	id, err := idOf(buffer)
	if err != nil || r.cancel != nil && r.buffer == id && !r.hasEnded() {
		return errors.Join(err, buffer.Close())
	}
	r.stop()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.buffer, r.cancel, r.done = id, cancel, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		defer buffer.Close()
		if err := events.Receive(ctx, buffer, r.inspection.pins, r.inspection.events, r.log); err != nil {
			r.log.Error(err, "failed to receive the events of rules: they are lost until the next round")
		}
	}(r.done)
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

func (r *eventReceiver) hasEnded() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// stop waits until nothing is received any more.
func (r *eventReceiver) stop() {
	if r.cancel == nil {
		return
	}
	r.cancel()
	<-r.done
	r.cancel = nil
}

func (r *eventReceiver) Remove(context.Context) error { return r.Close() }

func (r *eventReceiver) Close() error {
	r.stop()
	return nil
}
