// SPDX-License-Identifier: Apache-2.0

// Package inspect shows what the chains of a node do: subflows, rules and events,
// as tables, JSON or YAML, from a running agent or, without one, from the pinned
// maps.
package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/events"
	"braid.dev/braid/internal/agentapi"
)

// SocketName is the server's socket in the agent's directory of states.
const SocketName = "inspect.sock"

const (
	pathSubflows = "/v1/subflows"
	pathRules    = "/v1/rules"
	pathEvents   = "/v1/events"

	pathSpreading = "/v1/spreading"
)

// Source tells what there is now. It must be safe for concurrent use.
type Source interface {
	Subflows() ([]agentapi.Subflow, error)
	Rules() ([]agentapi.Rule, error)
}

// Server answers what the debug commands ask, on a unix socket that its owner
// alone can use. A new server takes the socket over from an older one.
type Server struct {
	// Path of the socket.
	Path   string
	Source Source
	Events *events.Log
	// Spreading is what pods' traffic does; nil where nobody looks.
	Spreading func() ([]agentapi.Spreading, error)
	Log       logr.Logger
}

// Start serves until the context ends, and then removes the socket.
func (s *Server) Start(ctx context.Context) error {
	listener, own, err := listen(s.Path)
	if err != nil {
		return fmt.Errorf("serving the debug commands: %w", err)
	}
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second,
		// Followers end with the context.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	err = server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, removeSame(s.Path, own))
}

// listen makes the socket with its mode before it gets its name, so that it is
// never open to others, and tells which file it is: another server may have that name soon.
func listen(path string) (net.Listener, os.FileInfo, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, fmt.Errorf("making the directory of the socket: %w", err)
	}
	directory, err := os.MkdirTemp(filepath.Dir(path), ".inspect-") // mode 0700
	if err != nil {
		return nil, nil, fmt.Errorf("making the socket: %w", err)
	}
	listener, own, err := listenIn(directory, path)
	if err := errors.Join(err, os.RemoveAll(directory)); err != nil {
		if listener != nil {
			err = errors.Join(err, listener.Close())
		}
		return nil, nil, fmt.Errorf("making the socket: %w", err)
	}
	return listener, own, nil
}

// listenIn makes the socket in a directory of its own and then moves it.
func listenIn(directory, path string) (net.Listener, os.FileInfo, error) {
	temporary := filepath.Join(directory, "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	listener.SetUnlinkOnClose(false)
	own, err := os.Lstat(temporary)
	return listener, own, errors.Join(err, os.Chmod(temporary, 0o600), os.Rename(temporary, path))
}

// removeSame removes a file unless another has its name now.
func removeSame(path string, own os.FileInfo) error {
	now, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(own, now) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing the socket: %w", err)
	}
	return os.Remove(path)
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathSubflows, func(w http.ResponseWriter, _ *http.Request) {
		subflows, err := s.Source.Subflows()
		s.answer(w, subflows, err)
	})
	mux.HandleFunc("GET "+pathRules, func(w http.ResponseWriter, _ *http.Request) {
		rules, err := s.Source.Rules()
		s.answer(w, rules, err)
	})
	if s.Spreading != nil {
		mux.HandleFunc("GET "+pathSpreading, func(w http.ResponseWriter, _ *http.Request) {
			spreading, err := s.Spreading()
			s.answer(w, spreading, err)
		})
	}
	mux.HandleFunc("GET "+pathEvents, s.sendEvents)
	return mux
}

func (s *Server) answer(w http.ResponseWriter, value any, err error) {
	var data []byte
	if err == nil {
		data, err = json.Marshal(value)
	}
	if err != nil {
		s.Log.Error(err, "failed to answer a debug command")
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // who asked is gone
}

// sendEvents writes the events, one line each, and with follow=true those to come.
func (s *Server) sendEvents(w http.ResponseWriter, request *http.Request) {
	w.Header().Set("Content-Type", "application/jsonl")
	encoder := json.NewEncoder(w)
	flush := http.NewResponseController(w).Flush
	for from := uint64(0); ; {
		batch := s.Events.Read(from)
		for _, event := range batch.Events {
			if encoder.Encode(event) != nil {
				return // who asked is gone
			}
		}
		if flush() != nil || request.URL.Query().Get("follow") != "true" {
			return
		}
		from = batch.Next
		select {
		case <-request.Context().Done():
			return
		case <-batch.Changed:
		}
	}
}
