// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/schedule"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
)

// Two paths as in seed 001: a fast one with a round trip of 20 ms, and a slow one
// with 50 ms, which has less capacity too.
const (
	fastRTT, slowRTT   = 20 * time.Millisecond, 50 * time.Millisecond
	fastMbit, slowMbit = 50, 10
	ecfLasts           = 5 * time.Second
	ecfWarmup          = time.Second
)

// chunks are what is sent at once before an answer is awaited, in bytes: with a
// stream without end there is no completion to be early with.
var chunks = []int{64 << 10, 256 << 10, 1 << 20}

// ecf is a pair whose receiver answers chunks.
type ecf struct {
	*rig.Pair
	flows *rig.Flows
}

func newECF(ctx context.Context) (*ecf, error) {
	p, err := rig.NewPair(ctx, network.Spec{
		Paths: rig.Paths[:2], LinkMbit: fastMbit, PodsPerNode: 1,
		PathDelays: map[string]time.Duration{rig.Paths[0]: fastRTT / 2, rig.Paths[1]: slowRTT / 2},
	})
	if err != nil {
		return nil, err
	}
	for _, node := range p.Nodes {
		err = errors.Join(err, node.Shape(rig.Paths[1], slowMbit))
	}
	e := &ecf{Pair: p}
	if err == nil {
		err = p.Set(ctx, rig.Braid)
	}
	if err == nil {
		e.flows, err = rig.NewFlows(ctx, p.Sender(), p.Receiver())
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return e, nil
}

// Close stops the server and removes the pair.
func (e *ecf) Close() error { return errors.Join(e.flows.Close(), e.Pair.Close()) }

// measureECF compares goodput with EarliestCompletionFirst to that of the kernel's
// own scheduler, over the same two paths.
func measureECF(ctx context.Context, m *rig.Measurement, e *ecf) error {
	for range m.Trials {
		gains := 1.0
		for _, chunk := range chunks {
			before, err := e.goodput(ctx, chunk)
			if err != nil {
				return err
			}
			with, err := e.scheduled(ctx, chunk)
			if err != nil {
				return err
			}
			m.Add(fmt.Sprintf("ecf.chunk%dk.gain_ratio", chunk>>10), with/before)
			gains *= with / before
		}
		m.Add("ecf.gain_ratio", math.Pow(gains, 1/float64(len(chunks))))
	}
	return nil
}

// scheduled is the goodput with EarliestCompletionFirst.
func (e *ecf) scheduled(ctx context.Context, chunk int) (mbit float64, err error) {
	every := func(uint32, netip.AddrPort, netip.AddrPort) uint64 { return 1 }
	scheduler := schedule.Open(every, logr.Discard())
	running, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- scheduler.Run(running) }()
	err = scheduler.Apply([]schedule.Endpoint{{Number: 1, Path: e.Sender().Path(), Rules: 1}})
	if err == nil {
		mbit, err = e.goodput(ctx, chunk)
	}
	cancel()
	return mbit, errors.Join(err, <-done, scheduler.Apply(nil), scheduler.Close())
}

// goodput sends chunks one after another, and counts those after the warm-up.
func (e *ecf) goodput(ctx context.Context, chunk int) (float64, error) {
	connection, err := e.Sender().Dial(ctx, "tcp", e.flows.Address())
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	begun, bytes, data := time.Now(), 0, make([]byte, 8+chunk)
	binary.BigEndian.PutUint64(data, uint64(chunk))
	for time.Since(begun) < ecfWarmup+ecfLasts {
		if _, err := connection.Write(data); err != nil { // in one piece, to be scheduled as one
			return 0, fmt.Errorf("sending a chunk: %w", err)
		}
		if _, err := io.ReadFull(connection, data[8:9]); err != nil {
			return 0, fmt.Errorf("waiting for an answer: %w", err)
		}
		if time.Since(begun) > ecfWarmup {
			bytes += chunk
		}
	}
	return float64(bytes) * 8 / 1e6 / ecfLasts.Seconds(), nil
}
