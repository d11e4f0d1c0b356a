// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// monitor is the line to a hypervisor: QEMU's machine protocol, QMP. One at a time may use it.
type monitor struct {
	line   net.Conn
	reader *bufio.Reader
	events []monitorEvent // that came and were not waited for
}

type monitorEvent struct {
	Name string `json:"event"`
	Data struct {
		Status string `json:"status"`
	} `json:"data"`
}

// monitorMessage is what the hypervisor says: a return, an error or an event.
type monitorMessage struct {
	monitorEvent
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Description string `json:"desc"`
	} `json:"error"`
}

func dialMonitor(ctx context.Context, path string) (*monitor, error) {
	line, err := dialUnix(ctx, path)
	if err != nil {
		return nil, err
	}
	q := &monitor{line: line, reader: bufio.NewReader(line)}
	if _, err := q.read(ctx); err != nil { // its greeting
		return nil, errors.Join(err, line.Close())
	}
	if err := q.ask(ctx, "qmp_capabilities", nil, nil); err != nil {
		return nil, errors.Join(err, line.Close())
	}
	return q, nil
}

func (q *monitor) close() error { return q.line.Close() }

// ask has the hypervisor do something, and reads what it returns.
func (q *monitor) ask(ctx context.Context, command string, arguments, result any) error {
	order := map[string]any{"execute": command}
	if arguments != nil {
		order["arguments"] = arguments
	}
	if err := json.NewEncoder(q.line).Encode(order); err != nil {
		return fmt.Errorf("ordering %s: %w", command, err)
	}
	for {
		message, err := q.read(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("waiting for %s: %w", command, err)
		case message.Error != nil:
			return fmt.Errorf("%s: %s", command, message.Error.Description)
		case message.Name != "":
			q.events = append(q.events, message.monitorEvent)
		case result != nil:
			return json.Unmarshal(message.Return, result)
		default:
			return nil
		}
	}
}

// wait returns once an event has come, with a status where one is named. A migration that fails
// ends it too.
func (q *monitor) wait(ctx context.Context, name, status string) error {
	for {
		for i, event := range q.events {
			if event.Name == name && (status == "" || event.Data.Status == status) {
				q.events = slices.Delete(q.events, 0, i+1)
				return nil
			}
			if event.Name == "MIGRATION" && event.Data.Status == "failed" {
				return errors.New("the migration failed")
			}
		}
		message, err := q.read(ctx)
		if err != nil {
			return fmt.Errorf("waiting for %s %s: %w", name, status, err)
		}
		q.events = append(q.events, message.monitorEvent)
	}
}

func (q *monitor) read(ctx context.Context) (message monitorMessage, err error) {
	stop := context.AfterFunc(ctx, func() { _ = q.line.SetReadDeadline(time.Now()) })
	defer stop()
	text, err := q.reader.ReadBytes('\n')
	if err != nil {
		return message, errors.Join(context.Cause(ctx), err)
	}
	if err := json.Unmarshal(text, &message); err != nil {
		return message, fmt.Errorf("reading %q: %w", text, err)
	}
	return message, nil
}
