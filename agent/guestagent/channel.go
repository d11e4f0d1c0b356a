// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of one exchange with a guest, whose answers are a tenant's.
const (
	mostTime  = 10 * time.Second
	mostBytes = 256 << 10
	mostLine  = 64 << 10
	// poll is how long a command may run before it is asked after again.
	poll = 50 * time.Millisecond
)

// quoted is how much is told of what a guest says.
const quoted = "%.160q"

// refusal is what a guest agent, or a command in the guest, says in the place of a result.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

// dial connects to a socket below a directory. Nothing on the way may be a symbolic link:
// who can write there, as QEMU can, is not to lead the agent elsewhere.
func dial(ctx context.Context, directory, path string) (net.Conn, error) {
	root, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the directory of guest agents' sockets: %w", err)
	}
	defer unix.Close(root)
	socket, err := unix.Openat2(root, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: there is no %s", errGone, path)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the guest agent's socket %s: %w", path, err)
	}
	defer unix.Close(socket)
	var is unix.Stat_t
	if err := unix.Fstat(socket, &is); err != nil {
		return nil, fmt.Errorf("looking at the guest agent's socket %s: %w", path, err)
	}
	if is.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("looking at the guest agent's socket %s: it is no socket", path)
	}
	connection, err := new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", socket))
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("%w: nobody listens at %s", errGone, path)
	case errors.Is(err, unix.EAGAIN):
		return nil, errHeld
	case err != nil:
		return nil, fmt.Errorf("connecting to the guest agent's socket %s: %w", path, err)
	}
	return connection, nil
}

// errGone is of machines that are not there.
var errGone = errors.New("no machine has the guest agent's socket")

// errHeld is of sockets where nobody answers: QEMU serves one client of each at a time.
var errHeld = errors.New("no answer: either no qemu-guest-agent runs in the guest, or something else holds the socket open, as libvirt does with its own")

// with talks to the agent at a socket, for as long as an exchange may take.
func (p *Part) with(ctx context.Context, path string, talk func(*channel) error) error {
	if p.options.Sockets == "" {
		return errNoDirectory
	}
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	connection, err := dial(ctx, p.options.Sockets, path)
	if err != nil {
		return err
	}
	defer connection.Close()
	stop := context.AfterFunc(ctx, func() { _ = connection.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c := newChannel(connection)
	if err := c.synchronize(); err != nil {
		return err
	}
	return talk(c)
}

// channel is a connection to a guest agent: JSON on lines.
type channel struct {
	to   io.Writer
	from *bufio.Reader
	wait func() // until a command is asked after again
}

func newChannel(connection io.ReadWriter) *channel {
	return &channel{connection, bufio.NewReaderSize(io.LimitReader(connection, mostBytes), mostLine), func() { time.Sleep(poll) }}
}

// delimiter is a byte that no JSON has: it ends what an earlier client left unread.
const delimiter = 0xff

// synchronize skips what the agent still has to say to clients before.
func (c *channel) synchronize() error {
	id := rand.Int32() //nolint:gosec // it tells answers apart, and keeps no secret
	if err := c.send("guest-sync-delimited", map[string]any{"id": id}, delimiter); err != nil {
		return err
	}
	for {
		if err := c.skipToDelimiter(); err != nil {
			return unanswered(err)
		}
		var is int64
		if err := c.receive(&is); err == nil && is == int64(id) {
			return nil
		} else if err != nil && !errors.As(err, new(*refusal)) && !errors.As(err, new(*malformed)) {
			return err
		}
	}
}

// unanswered says what silence means.
func unanswered(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errHeld
	}
	return fmt.Errorf("waiting for the guest agent: %w", err)
}

func (c *channel) skipToDelimiter() error {
	for {
		next, err := c.from.ReadByte()
		if err != nil || next == delimiter {
			return err
		}
	}
}

// call has the agent do something; the result may be nil.
func (c *channel) call(command string, arguments map[string]any, result any) error {
	if err := c.send(command, arguments); err != nil {
		return err
	}
	return c.receive(result)
}

func (c *channel) send(command string, arguments map[string]any, before ...byte) error {
	line, err := json.Marshal(map[string]any{"execute": command, "arguments": arguments})
	if err != nil {
		return fmt.Errorf("encoding %s: %w", command, err)
	}
	if _, err := c.to.Write(append(append(before, line...), '\n')); err != nil {
		return fmt.Errorf("asking the guest agent: %w", err)
	}
	return nil
}

// malformed is an answer that is none.
type malformed struct{ line []byte }

func (m *malformed) Error() string {
	return fmt.Sprintf("the guest agent's answer is not of its protocol: "+quoted, m.line)
}

// receive reads the next answer.
func (c *channel) receive(result any) error {
	line, err := c.from.ReadSlice('\n')
	if err != nil {
		return unanswered(err)
	}
	line = bytes.TrimSpace(line[bytes.LastIndexByte(line, delimiter)+1:])
	var answer struct {
		Return json.RawMessage `json:"return"`
		Error  *struct {
			Class       string `json:"class"`
			Description string `json:"desc"`
		} `json:"error"`
	}
	if err := json.Unmarshal(line, &answer); err != nil || (answer.Return == nil) == (answer.Error == nil) {
		return &malformed{bytes.Clone(line)}
	}
	if answer.Error != nil {
		return &refusal{fmt.Sprintf("the guest agent refuses: "+quoted, answer.Error.Description)}
	}
	if err := json.Unmarshal(answer.Return, result); err != nil {
		return &malformed{bytes.Clone(line)}
	}
	return nil
}

// run runs a program in the guest, and returns what it printed.
func (c *channel) run(program string, arguments ...string) (string, error) {
	var started struct {
		PID *int64 `json:"pid"`
	}
	err := c.call("guest-exec", map[string]any{"path": program, "arg": arguments, "capture-output": true}, &started)
	if err != nil {
		return "", err
	}
	if started.PID == nil {
		return "", &malformed{[]byte("guest-exec without a pid")}
	}
	for {
		var is outcome
		if err := c.call("guest-exec-status", map[string]any{"pid": *started.PID}, &is); err != nil {
			return "", err
		}
		if is.Exited {
			return is.result(program)
		}
		c.wait()
	}
}

// outcome is what guest-exec-status says.
type outcome struct {
	Exited   bool   `json:"exited"`
	ExitCode *int64 `json:"exitcode"`
	Signal   *int64 `json:"signal"`
	Out      []byte `json:"out-data"`
	Err      []byte `json:"err-data"`
}

func (o *outcome) result(program string) (string, error) {
	if o.ExitCode == nil || *o.ExitCode != 0 {
		said := bytes.TrimSpace(append(bytes.Clone(o.Err), o.Out...))
		return "", &refusal{fmt.Sprintf("%s fails in the guest: "+quoted, program, said)}
	}
	return string(o.Out), nil
}
