// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/events"
	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/testutil"
)

// known is a source of what is known beforehand.
type known struct {
	subflows []agentapi.Subflow
	rules    []agentapi.Rule
	err      error
}

func (k known) Subflows() ([]agentapi.Subflow, error) { return k.subflows, k.err }
func (k known) Rules() ([]agentapi.Rule, error)       { return k.rules, k.err }

// served is a server that runs.
type served struct {
	socket string
	log    *events.Log
	stop   func()
}

func serve(t *testing.T, socket string, source inspect.Source) served {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log := events.NewLog(0)
	server := &inspect.Server{Path: socket, Source: source, Events: log, Log: logr.Discard()}
	before, _ := os.Lstat(socket)
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	testutil.Eventually(t, 20*time.Second, "the server listens", func() bool {
		now, err := os.Lstat(socket)
		return err == nil && (before == nil || !os.SameFile(before, now))
	})
	var stopped bool
	stop := func() {
		cancel()
		if stopped {
			return
		}
		stopped = true
		if err := <-ended; err != nil {
			t.Errorf("the server ended: %v", err)
		}
	}
	t.Cleanup(stop)
	return served{socket, log, stop}
}

func client(t *testing.T, socket string) *inspect.Client {
	t.Helper()
	c := inspect.NewClient(socket)
	t.Cleanup(c.Close)
	return c
}

func TestTheClientGetsWhatTheSourceHas(t *testing.T) {
	source := known{subflows: sample(), rules: []agentapi.Rule{{Endpoint: "team/web", Name: "slow", Hits: 3}}}
	running := serve(t, filepath.Join(t.TempDir(), "state", inspect.SocketName), source)
	subflows, err := client(t, running.socket).Subflows(t.Context())
	if err != nil || !reflect.DeepEqual(subflows, source.subflows) {
		t.Errorf("the subflows are %+v (%v)", subflows, err)
	}
	rules, err := client(t, running.socket).Rules(t.Context())
	if err != nil || !slices.Equal(rules, source.rules) {
		t.Errorf("the rules are %+v (%v)", rules, err)
	}
}

func TestTheSocketIsItsOwnersAlone(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "state")
	running := serve(t, filepath.Join(directory, inspect.SocketName), known{})
	status, err := os.Lstat(running.socket)
	if err != nil {
		t.Fatal(err)
	}
	if want := fs.ModeSocket | 0o600; status.Mode() != want {
		t.Errorf("its mode is %s, want %s", status.Mode(), want)
	}
	running.stop()
	if left, err := os.ReadDir(directory); err != nil || len(left) > 0 {
		t.Errorf("the server left %v (%v)", left, err)
	}
}

func TestANewServerTakesTheSocketOver(t *testing.T) {
	socket := filepath.Join(t.TempDir(), inspect.SocketName)
	older := serve(t, socket, known{rules: []agentapi.Rule{{Name: "older"}}})
	newer := serve(t, socket, known{rules: []agentapi.Rule{{Name: "newer"}}})
	older.stop()
	rules, err := client(t, socket).Rules(t.Context())
	if err != nil || len(rules) != 1 || rules[0].Name != "newer" {
		t.Errorf("the rules are %+v (%v)", rules, err)
	}
	newer.stop()
}

func TestAServerReplacesWhatACrashLeft(t *testing.T) {
	socket := filepath.Join(t.TempDir(), inspect.SocketName)
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	serve(t, socket, known{})
	if _, err := client(t, socket).Rules(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWithoutAnAgentTheClientSaysSo(t *testing.T) {
	socket := filepath.Join(t.TempDir(), inspect.SocketName)
	if _, err := client(t, socket).Rules(t.Context()); !errors.Is(err, inspect.ErrNoAgent) {
		t.Errorf("without a socket: %v", err)
	}
}

func TestTheSourcesErrorReachesTheClient(t *testing.T) {
	running := serve(t, filepath.Join(t.TempDir(), inspect.SocketName), known{err: errors.New("the map is gone")})
	_, err := client(t, running.socket).Subflows(t.Context())
	if err == nil || !strings.Contains(err.Error(), "the map is gone") {
		t.Errorf("the error is %v", err)
	}
}

func TestEventsOfBeforeAreListed(t *testing.T) {
	running := serve(t, filepath.Join(t.TempDir(), inspect.SocketName), known{})
	running.log.Add(agentapi.Event{Token: 1})
	running.log.Add(agentapi.Event{Token: 2})
	var got []agentapi.Token
	err := client(t, running.socket).Events(t.Context(), false, func(event agentapi.Event) error {
		got = append(got, event.Token)
		return nil
	})
	if err != nil || !slices.Equal(got, []agentapi.Token{1, 2}) {
		t.Errorf("the events are %v (%v)", got, err)
	}
}

func TestAFollowerGetsEventsAsTheyComeUntilTheAgentEnds(t *testing.T) {
	running := serve(t, filepath.Join(t.TempDir(), inspect.SocketName), known{})
	running.log.Add(agentapi.Event{Token: 1})
	got, ended := make(chan agentapi.Token), make(chan error, 1)
	go func() {
		ended <- client(t, running.socket).Events(t.Context(), true, func(event agentapi.Event) error {
			got <- event.Token
			return nil
		})
	}()
	for token := agentapi.Token(1); token < 4; token++ {
		if received := <-got; received != token {
			t.Errorf("event %s came in the place of %s", received, token)
		}
		running.log.Add(agentapi.Event{Token: token + 1})
	}
	<-got
	running.stop()
	if err := <-ended; err != nil && !strings.Contains(err.Error(), "reading events") {
		t.Errorf("following ended with %v", err)
	}
}
