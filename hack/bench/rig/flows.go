// SPDX-License-Identifier: Apache-2.0

package rig

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

	"golang.org/x/sync/errgroup"
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

// SizesOf are the sizes of so many flows, evenly over the distribution, shuffled in
// the same way each time.
func SizesOf(flows int) []int64 {
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

// Flows runs flows from one namespace to a server in another.
type Flows struct {
	// Protocol is the network's default unless another one is set.
	Protocol network.Protocol

	client   *network.Namespace
	listener net.Listener
	served   chan error
	dialing  *semaphore.Weighted
}

// NewFlows starts a server in a pod that takes flows: a size, that many bytes, and a
// byte back.
func NewFlows(ctx context.Context, client, server *network.Pod) (*Flows, error) {
	listener, err := server.Listen(ctx, "tcp", net.JoinHostPort(server.IPv4, "0"))
	if err != nil {
		return nil, err
	}
	f := &Flows{client: client.Namespace, listener: listener, served: make(chan error, 1), dialing: semaphore.NewWeighted(dialsAtOnce)}
	go func() { f.served <- takeFlows(listener) }()
	return f, nil
}

// Close stops the server.
func (f *Flows) Close() error { return errors.Join(f.listener.Close(), <-f.served) }

// Address is the server's.
func (f *Flows) Address() string { return f.listener.Addr().String() }

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
			for takeFlow(connection) == nil { // until the client ends it or sees it broken
			}
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

// Run runs flows of these sizes, so many at once, and returns how long each took: from
// before its opening until the server's answer.
func (f *Flows) Run(ctx context.Context, sizes []int64, atOnce int) ([]time.Duration, error) {
	times := make([]time.Duration, len(sizes))
	running, ctx := errgroup.WithContext(ctx)
	running.SetLimit(min(atOnce, mostAtOnce))
	for i, size := range sizes {
		running.Go(func() (err error) {
			times[i], err = f.one(ctx, size)
			return err
		})
	}
	return times, running.Wait()
}

func (f *Flows) one(ctx context.Context, size int64) (time.Duration, error) {
	if err := f.dialing.Acquire(ctx, 1); err != nil {
		return 0, err
	}
	begun := time.Now()
	connection, err := f.dial(ctx)
	f.dialing.Release(1)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	if err := sendFlow(connection, size); err != nil {
		return 0, fmt.Errorf("a flow of %d bytes: %w", size, err)
	}
	return time.Since(begun), nil
}

// dial opens a connection that is over after some minutes.
func (f *Flows) dial(ctx context.Context) (net.Conn, error) {
	connection, err := f.client.DialBy(ctx, f.Protocol, "tcp", f.Address())
	if err != nil {
		return nil, fmt.Errorf("opening a flow: %w", err)
	}
	return connection, connection.SetDeadline(time.Now().Add(5 * time.Minute))
}

// Kept is a connection on which flows go one after another.
type Kept struct{ connection net.Conn }

// Keep opens one.
func (f *Flows) Keep(ctx context.Context) (*Kept, error) {
	connection, err := f.dial(ctx)
	return &Kept{connection}, err
}

// Ask runs a flow, and returns how long it took.
func (k *Kept) Ask(size int64) (time.Duration, error) {
	begun := time.Now()
	err := sendFlow(k.connection, size)
	return time.Since(begun), err
}

// Close closes the connection.
func (k *Kept) Close() error { return k.connection.Close() }

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
