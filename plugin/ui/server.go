// SPDX-License-Identifier: Apache-2.0

// Package ui serves a page that shows what a Source knows of a cluster: to a browser of
// this machine alone, and only with the token of the page's address. It stores nothing, and
// asks its Source for nothing while no page is open.
package ui

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Source knows a cluster. Each of its functions may be called by many at once; those with
// show go on until the context ends.
type Source interface {
	// Follow shows the cluster whenever it changes.
	Follow(ctx context.Context, show func(State)) error
	// NICs shows what the NICs of nodes carry, Subflows what those of a node's pods do, or
	// those of one pod.
	NICs(ctx context.Context, nodes []string, show func(any)) error
	Subflows(ctx context.Context, node, namespace, pod string, show func(any)) error
	// Node tells of a node and its pods, Pod of a pod or a VM, Find which pods have a text in
	// their names.
	Node(ctx context.Context, name string) (any, error)
	Pod(ctx context.Context, namespace, name string) (any, error)
	Find(ctx context.Context, text string) (any, error)
}

//go:embed assets
var assets embed.FS

// linger is for how long a cluster is followed that no page shows: one that is loaded
// again, or looks at something else, is there at once.
const linger = 5 * time.Second

// Server serves the page.
type Server struct {
	source   Source
	listener net.Listener
	document *document
	guard    *guard
	history  *history
	linger   time.Duration
	ctx      context.Context
	running  sync.WaitGroup

	mutex sync.Mutex
	pages int
	// visit counts when a page came or went; stop ends the following.
	visit int
	stop  context.CancelFunc
}

// Listen prepares a server at a port of 127.0.0.1; 0 is one that is free.
func Listen(source Source, port uint16) (*Server, error) {
	listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, fmt.Errorf("serving the page: %w", err)
	}
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // the directory is not embedded
	}
	page, err := newDocument(files)
	if err != nil {
		panic(err) // what is embedded does not fit together
	}
	s := &Server{source: source, listener: listener, document: page, history: newHistory(), linger: linger}
	_, chosen, _ := net.SplitHostPort(listener.Addr().String())
	s.guard = newGuard(chosen, page.policy, s.routes(files))
	return s, nil
}

// Address is the page's, with its token.
func (s *Server) Address() string { return s.address(s.guard.token) }

// AddressOnce is good for one visit.
func (s *Server) AddressOnce() string {
	token := rand.Text()
	s.guard.once.Store(&token)
	return s.address(token)
}

func (s *Server) address(token string) string {
	return "http://" + s.listener.Addr().String() + "/?token=" + token
}

// Show shows a state before a page is open.
func (s *Server) Show(state State) error { return s.history.show(state) }

// Serve serves until the context ends, and leaves nothing behind.
func (s *Server) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer s.running.Wait()
	defer cancel()
	s.ctx = ctx
	server := &http.Server{
		Handler: s.guard, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }, // it ends streams
	}
	ended := make(chan error, 1)
	s.running.Go(func() { ended <- server.Serve(s.listener) })
	select {
	case <-ctx.Done():
	case err := <-ended:
		return fmt.Errorf("serving the page: %w", err)
	}
	patience, done := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer done()
	if err := server.Shutdown(patience); err != nil {
		return errors.Join(fmt.Errorf("ending the page's server: %w", err), server.Close())
	}
	return nil
}

func (s *Server) routes(files fs.FS) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.Handle("GET /", exactly(http.FileServerFS(files)))
	for name, content := range s.document.modules {
		mux.HandleFunc("GET /"+name+".js", script(content))
	}
	mux.HandleFunc("GET /api/stream", s.stream)
	mux.HandleFunc("GET /api/node", answering(func(r *http.Request) (any, error) {
		return s.source.Node(r.Context(), r.FormValue("name"))
	}))
	mux.HandleFunc("GET /api/pod", answering(func(r *http.Request) (any, error) {
		return s.source.Pod(r.Context(), r.FormValue("namespace"), r.FormValue("name"))
	}))
	mux.HandleFunc("GET /api/find", answering(func(r *http.Request) (any, error) {
		return s.source.Find(r.Context(), r.FormValue("text"))
	}))
	return mux
}

// exactly serves files, and no lists of them.
func exactly(files http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" && strings.HasSuffix(r.URL.Path, "/") {
			http.NotFound(w, r)
			return
		}
		files.ServeHTTP(w, r)
	})
}

// answering answers in JSON.
func answering(find func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		found, err := find(r)
		status := http.StatusOK
		switch {
		case err == nil:
		case apierrors.IsForbidden(err):
			status = http.StatusForbidden
		case apierrors.IsNotFound(err):
			status = http.StatusNotFound
		default:
			status = http.StatusBadGateway
		}
		if err != nil {
			found = map[string]string{"error": err.Error()}
		}
		text, err := json.Marshal(found)
		if err != nil {
			http.Error(w, "writing the answer as JSON: "+err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write(text) // a page that is gone needs no answer
	}
}

// enter follows the cluster from the first page on; leave gives it up after the last one.
func (s *Server) enter() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.pages == maxPages || s.ctx.Err() != nil {
		return false
	}
	s.pages++
	s.visit++
	if s.stop == nil {
		var ctx context.Context
		ctx, s.stop = context.WithCancel(s.ctx)
		s.running.Go(func() { s.follow(ctx) })
	}
	return true
}

func (s *Server) leave() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.pages--
	s.visit++
	if s.pages > 0 {
		return
	}
	last := s.visit
	s.running.Go(func() {
		select {
		case <-s.ctx.Done():
		case <-time.After(s.linger):
		}
		s.mutex.Lock()
		defer s.mutex.Unlock()
		if s.visit == last && s.stop != nil {
			s.stop()
			s.stop = nil
		}
	})
}

// follow goes on after what goes wrong; the source shows that itself.
func (s *Server) follow(ctx context.Context) {
	for ctx.Err() == nil {
		_ = s.source.Follow(ctx, func(state State) { _ = s.history.show(state) })
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}
