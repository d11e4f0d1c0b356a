// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"braid.dev/braid/internal/lab/network"
)

// flowSizes is the distribution of sizes of DCTCP's web search workload, which seed
// 001's traffic generator has too: bytes, and the share of flows of up to that size.
var flowSizes = []struct {
	bytes float64
	share float64
}{
	{0, 0}, {10_000, 0.15}, {20_000, 0.20}, {30_000, 0.30}, {50_000, 0.40}, {80_000, 0.53}, {200_000, 0.60},
	{1_000_000, 0.70}, {2_000_000, 0.80}, {5_000_000, 0.90}, {10_000_000, 0.97}, {30_000_000, 1},
}

// sizesOf are the sizes of so many flows, evenly over the distribution, shuffled in
// the same way each time.
func sizesOf(flows int) []int64 {
	sizes := make([]int64, flows)
	for i := range sizes {
		sizes[i] = sizeAt((float64(i) + 0.5) / float64(flows))
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(flows, func(i, j int) { sizes[i], sizes[j] = sizes[j], sizes[i] })
	return sizes
}

func sizeAt(share float64) int64 {
	for i := 1; i < len(flowSizes); i++ {
		from, to := flowSizes[i-1], flowSizes[i]
		if share <= to.share {
			return int64(from.bytes + (to.bytes-from.bytes)*(share-from.share)/(to.share-from.share))
		}
	}
	return int64(flowSizes[len(flowSizes)-1].bytes)
}

const (
	// mostAtOnce is how many flows run at once: each has two descriptors in this
	// process, which may have 20,000. Of more flows, each begins when one has ended.
	mostAtOnce = 4000
	// dialsAtOnce is how many are opened at once: opening one takes a thread.
	dialsAtOnce = 32
)

// flows runs flows from one namespace to a server in another.
type flows struct {
	client   *network.Namespace
	address  string
	protocol network.Protocol
	dialing  *semaphore.Weighted
	stop     func() error
}

// newFlows starts a server that takes flows: a size, that many bytes, and a byte back.
func newFlows(ctx context.Context, client, server *network.Namespace, address string) (*flows, error) {
	listener, err := server.Listen(ctx, "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- takeFlows(listener) }()
	stop := func() error {
		err := listener.Close()
		return errors.Join(err, <-done)
	}
	return &flows{client: client, address: listener.Addr().String(), dialing: semaphore.NewWeighted(dialsAtOnce), stop: stop}, nil
}

func takeFlows(listener net.Listener) error {
	var taking sync.WaitGroup
	defer taking.Wait()
	for {
		connection, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accepting a flow: %w", err)
		}
		taking.Go(func() {
			defer connection.Close()
			_ = takeFlow(connection) // the client sees a broken flow
		})
	}
}

// flowBuffers are what is read and written at once.
var flowBuffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

func takeFlow(connection net.Conn) error {
	var size int64
	if err := binary.Read(connection, binary.BigEndian, &size); err != nil {
		return err
	}
	for left := size; left > 0; {
		buffer := flowBuffers.Get().(*[64 << 10]byte)
		n, err := connection.Read(buffer[:min(left, int64(len(buffer)))])
		flowBuffers.Put(buffer)
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	_, err := connection.Write([]byte{1})
	return err
}

// run runs flows of these sizes, and returns how long each took: from before its
// opening until the server's answer.
func (f *flows) run(ctx context.Context, sizes []int64) ([]time.Duration, error) {
	return f.runAtMost(ctx, sizes, mostAtOnce)
}

// runAtMost is the same with so many at once.
func (f *flows) runAtMost(ctx context.Context, sizes []int64, atOnce int) ([]time.Duration, error) {
	times := make([]time.Duration, len(sizes))
	errs := make(chan error, len(sizes))
	running := semaphore.NewWeighted(int64(atOnce))
	for i, size := range sizes {
		if err := running.Acquire(ctx, 1); err != nil {
			return nil, err
		}
		go func() {
			defer running.Release(1)
			took, err := f.one(ctx, size)
			times[i] = took
			errs <- err
		}()
	}
	var failed error
	for range sizes {
		failed = errors.Join(failed, <-errs)
	}
	return times, failed
}

func (f *flows) one(ctx context.Context, size int64) (time.Duration, error) {
	if err := f.dialing.Acquire(ctx, 1); err != nil {
		return 0, err
	}
	begun := time.Now()
	connection, err := f.client.DialBy(ctx, f.protocol, "tcp", f.address)
	f.dialing.Release(1)
	if err != nil {
		return 0, fmt.Errorf("opening a flow: %w", err)
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(5 * time.Minute)); err != nil {
		return 0, fmt.Errorf("opening a flow: %w", err)
	}
	if err := sendFlow(connection, size); err != nil {
		return 0, fmt.Errorf("a flow of %d bytes: %w", size, err)
	}
	return time.Since(begun), nil
}

func sendFlow(connection net.Conn, size int64) error {
	if err := binary.Write(connection, binary.BigEndian, size); err != nil {
		return err
	}
	buffer := flowBuffers.Get().(*[64 << 10]byte)
	defer flowBuffers.Put(buffer)
	for left := size; left > 0; {
		n, err := connection.Write(buffer[:min(left, int64(len(buffer)))])
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	var answer [1]byte
	_, err := io.ReadFull(connection, answer[:])
	return err
}
