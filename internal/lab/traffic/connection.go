// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// patience is how long an end waits for the other beyond the duration unless the
// options say otherwise.
const patience = 20 * time.Second

// Serve answers clients of Run until the context ends or the listener fails.
func Serve(ctx context.Context, listener net.Listener) error {
	return answer(ctx, listener, func(connection net.Conn) { serveOne(connection.(*net.TCPConn)) })
}

// answer has each connection of the listener answered by itself until the context ends
// or the listener fails, and waits for what goes on.
func answer(ctx context.Context, listener net.Listener, one func(net.Conn)) error {
	var connections sync.WaitGroup
	defer connections.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		connection, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accepting a connection: %w", err)
		}
		connections.Go(func() {
			stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
			defer stop()
			defer connection.Close()
			one(connection)
		})
	}
}

// serveOne has nobody to tell of an error but the client, who sees it as a broken
// connection.
func serveOne(connection *net.TCPConn) {
	var wanted request
	if err := readMessage(connection, &wanted); err != nil {
		return
	}
	if err := setCongestion(connection, wanted.Congestion); err != nil {
		return
	}
	if wanted.Direction == Down {
		stop := make(chan struct{})
		go func() {
			defer close(stop)
			_, _ = io.Copy(io.Discard, connection)
		}()
		_ = send(connection, &wanted, stop)
		<-stop
		return
	}
	_ = writeMessage(connection, receive(connection, &wanted))
}

// send writes the payload until the request's time is over or it is stopped, and ends the
// stream.
func send(connection *net.TCPConn, wanted *request, stop <-chan struct{}) error {
	if err := connection.SetWriteDeadline(wanted.until()); err != nil {
		return fmt.Errorf("setting a deadline: %w", err)
	}
	// Of a connection that is closed, nothing is sent.
	defer onceStopped(stop, func() { _ = connection.SetWriteDeadline(time.Now()) })()
	for write := wanted.writer(connection); ; {
		err := write()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return fmt.Errorf("sending: %w", err)
		}
	}
	if err := connection.CloseWrite(); err != nil {
		return fmt.Errorf("ending the stream: %w", err)
	}
	return nil
}

// onceStopped does something when it is stopped, unless end is called before.
func onceStopped(stop <-chan struct{}, do func()) (end func()) {
	ended := make(chan struct{})
	go func() {
		select {
		case <-stop:
			do()
		case <-ended:
		}
	}()
	return func() { close(ended) }
}

// offerEvery is how often a sender with a rate offers more.
const offerEvery = 5 * time.Millisecond

// writer returns what writes the next part of the payload: a piece, or what the offered rate
// allows since the last time.
func (r *request) writer(connection io.Writer) func() error {
	if r.Offered == 0 {
		rest := payload
		return func() error {
			n, err := connection.Write(rest[:min(r.Piece, len(rest))])
			if rest = rest[n:]; len(rest) == 0 {
				rest = payload
			}
			return err
		}
	}
	begun, sent := time.Now(), 0
	return func() error {
		time.Sleep(offerEvery)
		due := int(r.Offered*1e6/8*time.Since(begun).Seconds()) - sent
		from := sent % len(payload)
		n, err := connection.Write(payload[from:min(from+due, len(payload))])
		sent += n
		return err
	}
}

// Unfinished is in the error of a connection whose stream did not end in time, though nobody
// ended the connection.
const Unfinished = "not at the end"

// receive reads to the end of the stream.
func receive(connection *net.TCPConn, wanted *request) *report {
	recorder := recorder{request: *wanted}
	buffer := make([]byte, max(wanted.Buffer, 4096))
	compared := comparison{rewrites: wanted.Rewrites}
	err := connection.SetReadDeadline(wanted.until().Add(wanted.patience()))
	for err == nil {
		var n int
		n, err = connection.Read(buffer)
		if wanted.Verify && !compared.matches(buffer[:n]) {
			err = fmt.Errorf("other bytes than were sent, after %d", recorder.Bytes)
		}
		if n > 0 {
			recorder.add(Now(), n)
		}
	}
	recorder.gapUntil(recorder.to())
	recorder.Rewritten = compared.rewritten
	switch {
	case errors.Is(err, io.EOF):
		recorder.LateNs = Now() - recorder.to()
	case errors.Is(err, os.ErrDeadlineExceeded):
		recorder.Error = fmt.Sprintf("receiving: %s after %d bytes, of which the last came %.1f s ago",
			Unfinished, recorder.Bytes, time.Duration(Now()-recorder.last).Seconds())
	default:
		recorder.Error = fmt.Sprintf("receiving: %v", err)
	}
	return &recorder.report
}

// A message is its length in four bytes, and JSON.
func writeMessage(to io.Writer, message any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encoding a message: %w", err)
	}
	framed := append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	if _, err := to.Write(framed); err != nil {
		return fmt.Errorf("sending a message: %w", err)
	}
	return nil
}

const largestMessage = 16 << 20

func readMessage(from io.Reader, message any) error {
	var header [4]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return fmt.Errorf("receiving a message: %w", err)
	}
	size := binary.BigEndian.Uint32(header[:])
	if size > largestMessage {
		return fmt.Errorf("a message of %d bytes is too large", size)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(from, text); err != nil {
		return fmt.Errorf("receiving a message: %w", err)
	}
	if err := json.Unmarshal(text, message); err != nil {
		return fmt.Errorf("decoding a message: %w", err)
	}
	return nil
}
