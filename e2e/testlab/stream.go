// SPDX-License-Identifier: Apache-2.0

package testlab

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"braid.dev/braid/internal/lab/network"
)

// Stream is a connection that sends as fast as it can until the test ends. Every byte is
// compared where it arrives.
type Stream struct {
	Connection *net.TCPConn

	mu      sync.Mutex
	begin   time.Time
	arrived []int // bytes by bin
	err     error
}

const (
	streamBin = 50 * time.Millisecond
	// StreamPort is where its server listens.
	StreamPort = "7001"
)

// pattern repeats on the wire. Its length is prime, so that a piece that is lost,
// repeated or shifted is noticed.
var pattern = func() []byte {
	bytes := make([]byte, 262_139)
	_, _ = rand.NewChaCha8([32]byte{}).Read(bytes)
	return bytes
}()

// StartStream begins one from a pod to another.
func StartStream(t testing.TB, from, to *network.Pod) *Stream {
	t.Helper()
	address := net.JoinHostPort(to.IPv4, StreamPort)
	listener, err := to.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	connection, err := from.Dial(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	// The listener stays: subflows join by it.
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s := &Stream{Connection: connection.(*net.TCPConn), begin: time.Now()}
	var running sync.WaitGroup
	running.Go(func() { s.note(0, send(connection)) })
	running.Go(func() { s.note(0, s.receive(accepted)) })
	t.Cleanup(func() {
		_ = errors.Join(connection.Close(), accepted.Close(), listener.Close())
		running.Wait()
	})
	return s
}

func send(connection net.Conn) error {
	for {
		if _, err := connection.Write(pattern); err != nil {
			return fmt.Errorf("sending: %w", err)
		}
	}
}

func (s *Stream) receive(connection net.Conn) error {
	buffer, at := make([]byte, 1<<16), 0
	for {
		n, err := connection.Read(buffer[:min(len(buffer), len(pattern)-at)])
		if err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
		if !bytes.Equal(buffer[:n], pattern[at:at+n]) {
			return errors.New("other bytes arrived than were sent")
		}
		at = (at + n) % len(pattern)
		s.note(n, nil)
	}
}

func (s *Stream) note(n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, err)
	bin := int(time.Since(s.begin) / streamBin)
	for len(s.arrived) <= bin {
		s.arrived = append(s.arrived, 0)
	}
	s.arrived[bin] += n
}

// Mbit is the median over the bins between two times, in Mbit/s.
func (s *Stream) Mbit(from, to time.Time) (float64, error) {
	s.note(0, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	first, last := int(from.Sub(s.begin)/streamBin)+1, int(to.Sub(s.begin)/streamBin)
	if first >= last || s.err != nil {
		return 0, errors.Join(s.err, errTooShort)
	}
	return Median(s.arrived[first:last]) * 8 / 1e6 / streamBin.Seconds(), nil
}

// Arrived are the bytes that have arrived so far.
func (s *Stream) Arrived() (bytes int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.arrived {
		bytes += n
	}
	return bytes, s.err
}

var errTooShort = errors.New("the victim's connection broke, or the time was too short to tell its rate")

// Median is the one in the middle.
func Median[T int | float64 | time.Duration](values []T) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return float64(sorted[len(sorted)/2])
}
