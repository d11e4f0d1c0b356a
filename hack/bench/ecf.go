// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/schedule"
	"braid.dev/braid/api/v1alpha1"
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

// measureECF compares goodput with EarliestCompletionFirst to that of the kernel's
// own scheduler, over the same two paths.
func measureECF(ctx context.Context, b *bench) (err error) {
	built, err := newRigOf(ctx, network.Spec{
		Paths: pathNames[:2], LinkMbit: fastMbit, PodsPerNode: 1,
		PathDelays: map[string]time.Duration{pathNames[0]: fastRTT / 2, pathNames[1]: slowRTT / 2},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, built.close()) }()
	for _, node := range built.Nodes {
		if err := node.Shape(pathNames[1], slowMbit); err != nil {
			return err
		}
	}
	if err := built.set(ctx, braid); err != nil {
		return err
	}
	e := &ecf{rig: built, gains: map[int][]float64{}}
	stop, err := e.answer(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	var all []float64
	for range b.trials {
		gains := 1.0
		for _, chunk := range chunks {
			gain, err := e.gain(ctx, chunk)
			if err != nil {
				return err
			}
			e.gains[chunk] = append(e.gains[chunk], gain)
			gains *= gain
		}
		all = append(all, math.Pow(gains, 1/float64(len(chunks))))
	}
	for _, chunk := range chunks {
		b.add(fmt.Sprintf("ecf.chunk%dk.gain_ratio", chunk>>10), "ratio", e.gains[chunk])
	}
	b.add("ecf.gain_ratio", "ratio", all)
	return nil
}

// ecf is a rig whose server answers chunks.
type ecf struct {
	*rig
	address string
	gains   map[int][]float64 // by the chunk's size
}

// answer starts a server that takes chunks (their size first) and answers each.
func (e *ecf) answer(ctx context.Context) (stop func() error, err error) {
	listener, err := e.server().Listen(ctx, "tcp", net.JoinHostPort(e.server().IPv4, "0"))
	if err != nil {
		return nil, err
	}
	e.address = listener.Addr().String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			for takeFlow(connection) == nil { // until the client ends it
			}
			_ = connection.Close()
		}
	}()
	return func() error {
		err := listener.Close()
		<-done
		return err
	}, nil
}

// gain compares the two schedulers at one size of chunks.
func (e *ecf) gain(ctx context.Context, chunk int) (float64, error) {
	before, err := e.goodput(ctx, chunk)
	if err != nil {
		return 0, err
	}
	every := func(uint32, netip.AddrPort, netip.AddrPort) uint64 { return 1 }
	scheduler := schedule.Open(every, logr.Discard())
	running, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- scheduler.Run(running) }()
	err = scheduler.Apply([]schedule.Endpoint{{Number: 1, Path: e.client().Path(), Rules: 1}})
	var with float64
	if err == nil {
		with, err = e.goodput(ctx, chunk)
	}
	cancel()
	if err := errors.Join(err, <-done, scheduler.Apply(nil), scheduler.Close()); err != nil {
		return 0, err
	}
	fmt.Printf("chunks of %d KiB: %.1f Mbit/s, %.1f with %s\n", chunk>>10, before, with, v1alpha1.StrategyEarliestCompletionFirst)
	return with / before, nil
}

// goodput sends chunks one after another, and counts those after the warm-up.
func (e *ecf) goodput(ctx context.Context, chunk int) (float64, error) {
	connection, err := e.client().Dial(ctx, "tcp", e.address)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	begun, bytes, data := time.Now(), 0, make([]byte, 8+chunk)
	binary.BigEndian.PutUint64(data, uint64(chunk))
	for time.Since(begun) < ecfWarmup+ecfLasts {
		if _, err := connection.Write(data); err != nil {
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
