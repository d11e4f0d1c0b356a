// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"
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

// channel leads to a guest agent.
type channel struct {
	conversation
	wait func() // until a command is asked after again
}

// conversation takes one command after the other to a guest agent: JSON, as its answers are.
type conversation interface {
	ask(command []byte) (answer []byte, err error)
}

func newChannel(by conversation) *channel {
	return &channel{by, func() { time.Sleep(poll) }}
}

// line is QEMU's own socket, where the agent's JSON stands on lines.
type line struct {
	to   io.Writer
	from *bufio.Reader
}

func newLine(connection io.ReadWriter) *line {
	return &line{connection, bufio.NewReaderSize(io.LimitReader(connection, mostBytes), mostLine)}
}

// delimiter is a byte that no JSON has: it ends what an earlier client left unread.
const delimiter = 0xff

// synchronize skips what the agent still has to say to clients before.
func (l *line) synchronize() error {
	id := rand.Int32() //nolint:gosec // it tells answers apart, and keeps no secret
	command, err := encode("guest-sync-delimited", map[string]any{"id": id})
	if err != nil {
		return err
	}
	if err := l.send(append([]byte{delimiter}, command...)); err != nil {
		return err
	}
	for {
		if err := l.skipToDelimiter(); err != nil {
			return unanswered(err)
		}
		answer, err := l.receive()
		if err != nil {
			return err
		}
		var is int64
		if err := decode(answer, &is); err == nil && is == int64(id) {
			return nil
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

func (l *line) skipToDelimiter() error {
	for {
		next, err := l.from.ReadByte()
		if err != nil || next == delimiter {
			return err
		}
	}
}

func (l *line) ask(command []byte) ([]byte, error) {
	if err := l.send(command); err != nil {
		return nil, err
	}
	return l.receive()
}

func (l *line) send(command []byte) error {
	if _, err := l.to.Write(append(command, '\n')); err != nil {
		return fmt.Errorf("asking the guest agent: %w", err)
	}
	return nil
}

func (l *line) receive() ([]byte, error) {
	answer, err := l.from.ReadSlice('\n')
	if err != nil {
		return nil, unanswered(err)
	}
	return answer[bytes.LastIndexByte(answer, delimiter)+1:], nil
}

// malformed is an answer that is none.
type malformed struct{ line []byte }

func (m *malformed) Error() string {
	return fmt.Sprintf("the guest agent's answer is not of its protocol: "+quoted, m.line)
}

func encode(command string, arguments map[string]any) ([]byte, error) {
	text, err := json.Marshal(map[string]any{"execute": command, "arguments": arguments})
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", command, err)
	}
	return text, nil
}

// decode reads what an agent answers.
func decode(text []byte, result any) error {
	text = bytes.TrimSpace(text)
	var answer struct {
		Return json.RawMessage `json:"return"`
		Error  *struct {
			Class       string `json:"class"`
			Description string `json:"desc"`
		} `json:"error"`
	}
	if err := json.Unmarshal(text, &answer); err != nil || (answer.Return == nil) == (answer.Error == nil) {
		return &malformed{bytes.Clone(text)}
	}
	if answer.Error != nil {
		return &refusal{fmt.Sprintf("the guest agent refuses: "+quoted, answer.Error.Description)}
	}
	if err := json.Unmarshal(answer.Return, result); err != nil {
		return &malformed{bytes.Clone(text)}
	}
	return nil
}

// call has the agent do something.
func (c *channel) call(command string, arguments map[string]any, result any) error {
	text, err := encode(command, arguments)
	if err != nil {
		return err
	}
	answer, err := c.ask(text)
	if err != nil {
		return err
	}
	return decode(answer, result)
}

// run runs a program in the guest, and returns what it printed.
func (c *channel) run(program string, arguments ...string) (string, error) {
	return c.feed(nil, program, arguments...)
}

// feed does the same with a program that reads something.
func (c *channel) feed(input []byte, program string, arguments ...string) (string, error) {
	var started struct {
		PID *int64 `json:"pid"`
	}
	order := map[string]any{"path": program, "arg": arguments, "capture-output": true}
	if input != nil {
		order["input-data"] = input
	}
	err := c.call("guest-exec", order, &started)
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
