// SPDX-License-Identifier: Apache-2.0

// Package selftest is the traffic of `kubectl braid test`: one connection that sends as
// fast as it can, and a server that counts what it gets.
package selftest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"braid.dev/braid/internal/agentapi"
)

// Serve counts what each connection sends, and says how much it was once the connection
// has nothing more to send. It ends with its context.
func Serve(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() }) // Accept says what became of it
	defer stop()
	for {
		connection, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("waiting for connections: %w", err)
		}
		go count(connection)
	}
}

func count(connection net.Conn) {
	defer connection.Close()
	received, err := io.Copy(io.Discard, connection)
	if err != nil {
		return // the other end says what broke
	}
	_ = binary.Write(connection, binary.BigEndian, uint64(received)) // as above
}

// Options are those of a transfer.
type Options struct {
	// Address is the server's, with its port.
	Address string
	// Multipath asks for MPTCP.
	Multipath bool
	// Duration is how long to send.
	Duration time.Duration
	// Every is the time between two reports; 0 reports the end alone.
	Every time.Duration
}

// dialPatience is how long a server that has just begun may take to answer.
const dialPatience = 20 * time.Second

// Send sends, and reports what it did now and then, and at the end. What broke the
// connection is in the last report.
func Send(ctx context.Context, options Options, report func(agentapi.Transfer) error) error {
	connection, err := dial(ctx, options)
	if err != nil {
		return report(agentapi.Transfer{Error: err.Error()})
	}
	defer connection.Close()
	s := &sender{connection: connection, begun: time.Now(), options: options, report: report}
	s.progressed, s.reported = s.begun, s.begun
	if err := s.send(ctx); err != nil {
		return err
	}
	return report(s.finish())
}

// dial tries again while nobody listens yet.
func dial(ctx context.Context, options Options) (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	dialer.SetMultipathTCP(options.Multipath)
	for deadline := time.Now().Add(dialPatience); ; {
		connection, err := dialer.DialContext(ctx, "tcp", options.Address)
		if err == nil {
			return connection.(*net.TCPConn), nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return nil, fmt.Errorf("connecting to %s: %w", options.Address, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

type sender struct {
	connection *net.TCPConn
	options    Options
	report     func(agentapi.Transfer) error

	begun, progressed, reported time.Time
	is                          agentapi.Transfer
}

// stuck is how long a connection may take nothing before it counts as broken.
const stuck = 15 * time.Second

// send ends when the time is over, or the connection breaks.
func (s *sender) send(ctx context.Context) error {
	block := make([]byte, 64<<10)
	for ctx.Err() == nil && time.Since(s.begun) < s.options.Duration && s.is.Error == "" {
		_ = s.connection.SetWriteDeadline(time.Now().Add(stuck)) // it is open
		n, err := s.connection.Write(block)
		if err != nil {
			s.is.Error = err.Error()
		}
		s.progress(n)
		if s.options.Every == 0 || time.Since(s.reported) < s.options.Every {
			continue
		}
		s.reported = time.Now()
		if err := s.report(s.state()); err != nil {
			return err
		}
	}
	return nil
}

func (s *sender) progress(sent int) {
	now := time.Now()
	s.is.SentBytes += uint64(sent)
	s.is.LongestStandstillMilliseconds = max(s.is.LongestStandstillMilliseconds, now.Sub(s.progressed).Milliseconds())
	s.progressed = now
}

func (s *sender) state() agentapi.Transfer {
	is := s.is
	is.Milliseconds = time.Since(s.begun).Milliseconds()
	is.Multipath, _ = s.connection.MultipathTCP() // false where it cannot be asked
	return is
}

// finish asks the server how much it got.
func (s *sender) finish() agentapi.Transfer {
	is := s.state()
	if is.Error != "" {
		return is
	}
	answer := make([]byte, 8)
	_ = s.connection.SetReadDeadline(time.Now().Add(stuck)) // it is open
	err := s.connection.CloseWrite()
	if err == nil {
		_, err = io.ReadFull(s.connection, answer)
	}
	is.ReceivedBytes = binary.BigEndian.Uint64(answer)
	if err == nil && is.ReceivedBytes != is.SentBytes {
		err = errors.New("the other end got another number of bytes")
	}
	if err != nil {
		is.Error = err.Error()
		return is
	}
	is.Ended = true
	return is
}
