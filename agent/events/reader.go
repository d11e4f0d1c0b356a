// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/go-logr/logr"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/internal/agentapi"
)

// Names tells what the numbers in the programs' maps stand for. It must be safe
// for concurrent use, and return what can be told of a number that it does not
// know.
type Names interface {
	// Endpoint is namespace/name of a pod.
	Endpoint(id uint32) string
	// Path is the name of the path in a slot; empty for none.
	Path(slot uint8) string
	// Rule is the policy and the name of a rule of the endpoint.
	Rule(endpoint uint32, rule uint8) (policy, name string)
}

// record is an event as the programs write it.
type record = endpoint.FromEndpointEvent

// Values of record.Type.
var types = map[uint32]agentapi.EventType{
	endpoint.EventConnection: agentapi.EventConnection,
	endpoint.EventSubflow:    agentapi.EventSubflow,
	endpoint.EventSubflowEnd: agentapi.EventSubflowEnd,
}

// Receive adds what comes through the ring buffer to the log until the context
// ends. Events of kinds that it does not know are left out. There must be one
// receiver of a ring buffer alone.
func Receive(ctx context.Context, buffer *ebpf.Map, names Names, log *Log, logger logr.Logger) error {
	reader, err := ringbuf.NewReader(buffer)
	if err != nil {
		return fmt.Errorf("receiving events: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = reader.Close() })
	defer stop()
	var raw ringbuf.Record
	for {
		err := reader.ReadInto(&raw)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return errors.Join(fmt.Errorf("receiving events: %w", err), reader.Close())
		}
		event, ok := parse(raw.RawSample, names)
		if !ok {
			continue
		}
		log.Add(event)
		logger.V(1).Info("reported by a rule", "event", event)
	}
}

// parse reads an event as the programs write it.
func parse(data []byte, names Names) (agentapi.Event, bool) {
	var r record
	if read, err := binary.Decode(data, binary.NativeEndian, &r); err != nil || read > len(data) {
		return agentapi.Event{}, false
	}
	kind, known := types[r.Type]
	if !known {
		return agentapi.Event{}, false
	}
	event := agentapi.Event{
		Time: wallClock(r.Time), Type: kind, Endpoint: names.Endpoint(r.Key.Endpoint),
		Token: agentapi.Token(r.Token), InitiatorToken: agentapi.Token(r.InitiatorToken), Path: names.Path(r.Path),
		Local:     bpf.AddrPort(r.Key.Local.Word, r.Key.LocalPort),
		Remote:    bpf.AddrPort(r.Key.Remote.Word, r.Key.RemotePort),
		SentBytes: r.Sent[0], ReceivedBytes: r.Sent[1],
	}
	event.Policy, event.Rule = names.Rule(r.Key.Endpoint, r.Rule)
	return event, true
}

// wallClock turns a time of the programs, in ns since boot without times of
// sleep, into one of the wall clock.
func wallClock(monotonic uint64) time.Time {
	return time.Now().Add(time.Duration(monotonic) - bpf.Now()).Round(0)
}
