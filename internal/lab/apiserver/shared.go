// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"testing"
)

// Shared is a server with this repository's CRDs for all tests of a package, one after the
// other: to start one takes seconds of processor time.
type Shared struct {
	// Options say how to run it; the CRDs are filled in.
	Options Options

	server *Server
	begun  *contents
}

// Use returns the server as it was when it started, whatever tests before made of it.
func (s *Shared) Use(t testing.TB) *Server {
	t.Helper()
	if s.server == nil {
		s.start(t)
		return s.server
	}
	if err := s.server.restore(t.Context(), s.begun); err != nil {
		t.Fatalf("taking the API server back to its beginning: %v", err)
	}
	if err := s.server.waitCRDs(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s.server
}

func (s *Shared) start(t testing.TB) {
	t.Helper()
	crds, err := CRDDir()
	if err != nil {
		t.Fatal(err)
	}
	s.Options.CRDDirs = []string{crds}
	if s.server, err = Start(t.Context(), s.Options); err != nil {
		t.Fatal(err)
	}
	if s.begun, err = s.server.read(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Stop ends the server, where one was used.
func (s *Shared) Stop() error {
	if s.server == nil {
		return nil
	}
	return s.server.Stop()
}
