// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// HoldOptions say what Hold does.
type HoldOptions struct {
	// Connections is their number.
	Connections int
	// Every is how long a connection rests between two exchanges.
	Every time.Duration
	// Patience is how long an exchange may take.
	Patience time.Duration
}

// Held is what became of connections so far.
type Held struct {
	Connections int `json:"connections"`
	// Multipath is true when every connection that is left is an MPTCP one.
	Multipath bool `json:"multipath"`
	// Lost counts connections that broke, or brought back other bytes than were
	// sent; Errors has the first few reasons.
	Lost   int      `json:"lost"`
	Errors []string `json:"errors,omitempty"`
	// Exchanges counts what came back whole, LongestMs is the longest time that one
	// took.
	Exchanges int64   `json:"exchanges"`
	LongestMs float64 `json:"longestMs"`
}

// Holder holds connections to an Echo.
type Holder struct {
	options     HoldOptions
	connections []*net.TCPConn

	mu   sync.Mutex
	held Held
}

// Hold opens connections, one after the other. One that cannot be opened is an error.
func Hold(ctx context.Context, dial DialFunc, options HoldOptions) (*Holder, error) {
	connections, err := open(ctx, dial, options.Connections)
	if err != nil {
		closeAll(connections)
		return nil, err
	}
	return &Holder{options: options, connections: connections, held: Held{Connections: len(connections)}}, nil
}

// Run sends bytes over each connection, again and again, and compares what comes
// back, until the context ends.
func (h *Holder) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { closeAll(h.connections) })
	defer stop()
	var running sync.WaitGroup
	for i, connection := range h.connections {
		running.Go(func() {
			if err := h.keep(ctx, i, connection); err != nil && ctx.Err() == nil {
				h.lose(err)
			}
		})
	}
	running.Wait()
}

// Held says what became of the connections until now.
func (h *Holder) Held() Held {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.held
	held.Multipath = true
	for _, connection := range h.connections {
		// Of a connection that is closed nothing is known.
		if multipath, err := connection.MultipathTCP(); err == nil && !multipath {
			held.Multipath = false
		}
	}
	return held
}

// pieceSize is more than a segment, in bytes.
const pieceSize = 4096

// keep begins at another time than the others do.
func (h *Holder) keep(ctx context.Context, number int, connection *net.TCPConn) error {
	rest := h.options.Every * time.Duration(number) / time.Duration(len(h.connections))
	sent, got := make([]byte, pieceSize), make([]byte, pieceSize)
	for round := uint64(1); ; round++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rest):
		}
		rest = h.options.Every
		for at := 0; at < pieceSize; at += 8 {
			binary.BigEndian.PutUint64(sent[at:], round<<32|uint64(number)<<16|uint64(at))
		}
		began := time.Now()
		if err := h.exchange(connection, sent, got); err != nil {
			return fmt.Errorf("connection %d, exchange %d, after %s: %w", number, round, time.Since(began), err)
		}
		h.note(time.Since(began))
	}
}

func (h *Holder) exchange(connection *net.TCPConn, sent, got []byte) error {
	if err := connection.SetDeadline(time.Now().Add(h.options.Patience)); err != nil {
		return fmt.Errorf("setting a deadline: %w", err)
	}
	if _, err := connection.Write(sent); err != nil {
		return fmt.Errorf("sending: %w", err)
	}
	if _, err := io.ReadFull(connection, got); err != nil {
		return fmt.Errorf("receiving: %w", err)
	}
	if !bytes.Equal(sent, got) {
		return errors.New("other bytes came back than were sent")
	}
	return nil
}

func (h *Holder) note(took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held.Exchanges++
	h.held.LongestMs = max(h.held.LongestMs, float64(took.Microseconds())/1e3)
}

func (h *Holder) lose(reason error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held.Lost++
	if len(h.held.Errors) < mostErrors {
		h.held.Errors = append(h.held.Errors, reason.Error())
	}
}

// Echo sends back what it receives on each connection until the context ends.
func Echo(ctx context.Context, listener net.Listener) error {
	return answer(ctx, listener, func(connection net.Conn) {
		_, _ = io.Copy(connection, connection) // who sent it sees what failed
	})
}
