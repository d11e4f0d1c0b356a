// SPDX-License-Identifier: Apache-2.0

package product

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// A request is what was asked of the API server: a verb and a resource, with its
// subresource.
type request struct{ verb, resource string }

// refused ends the resource of requests that the server refused, such as writes of
// an object that changed in between.
const refused = " refused"

// requestLog reads the API server's audit log.
type requestLog struct {
	file   *os.File
	reader *bufio.Reader
	rest   []byte // of a line that was not whole yet
	last   time.Time
	counts map[request]int
}

func openRequestLog(path string) (*requestLog, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600) // perhaps nobody asked for anything yet
	if err != nil {
		return nil, fmt.Errorf("opening the audit log: %w", err)
	}
	return &requestLog{file: file, reader: bufio.NewReader(file), counts: map[request]int{}}, nil
}

// read counts the requests that were answered since the last call. Those by which
// a leader is elected do not count: they go on for ever.
func (l *requestLog) read() error {
	for {
		line, err := l.reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			l.rest = append(l.rest, line...)
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the audit log: %w", err)
		}
		if err := l.count(append(l.rest, line...)); err != nil {
			return err
		}
		l.rest = nil
	}
}

func (l *requestLog) count(line []byte) error {
	var event struct {
		Verb      string    `json:"verb"`
		At        time.Time `json:"stageTimestamp"`
		ObjectRef struct {
			Resource    string `json:"resource"`
			Subresource string `json:"subresource"`
		} `json:"objectRef"`
		Answer struct {
			Code int `json:"code"`
		} `json:"responseStatus"`
	}
	if err := json.Unmarshal(line, &event); err != nil {
		return fmt.Errorf("reading the audit log: %w", err)
	}
	resource := event.ObjectRef.Resource
	if resource == "leases" && event.Verb != "list" && event.Verb != "watch" {
		return nil
	}
	if event.ObjectRef.Subresource != "" {
		resource += "/" + event.ObjectRef.Subresource
	}
	if event.Answer.Code >= http.StatusBadRequest {
		resource += refused
	}
	l.counts[request{event.Verb, resource}]++
	l.last = event.At
	return nil
}

// take returns what was counted since it was called last.
func (l *requestLog) take() (map[request]int, error) {
	if err := l.read(); err != nil {
		return nil, err
	}
	taken := l.counts
	l.counts = map[request]int{}
	return taken, nil
}

// settle waits until nothing was asked for a while, and returns when the last
// request was answered.
func (l *requestLog) settle(ctx context.Context, quiet time.Duration) (time.Time, error) {
	since := time.Now()
	for {
		if err := l.read(); err != nil {
			return time.Time{}, err
		}
		if l.last.After(since) {
			since = l.last
		}
		if time.Since(since) > quiet {
			return l.last, nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("waiting for the controller's last request: %w", ctx.Err())
		case <-time.After(quiet / 10):
		}
	}
}

func (l *requestLog) close() error { return l.file.Close() }
