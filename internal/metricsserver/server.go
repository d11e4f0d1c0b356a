// SPDX-License-Identifier: Apache-2.0

// Package metricsserver serves Prometheus metrics by HTTPS to those whom the API server
// allows to get them, and bounds what others can make it do.
package metricsserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// path is what one has to be allowed to get.
const path = "/metrics"

const (
	// patience is how long a client may take for its request, or for the next one.
	patience = 10 * time.Second
	// longest is how long an answer may take.
	longest = 30 * time.Second
	// mostHeader holds a token with many claims.
	mostHeader = 16 << 10
	// atOnce is how many answers are written at a time, to clients that may be slow.
	atOnce = 4
)

// Options of a Server.
type Options struct {
	// Address to serve on, such as :9478; "0" serves nothing.
	Address string
	// CertDir has tls.crt and tls.key, which may change; with an empty one the server
	// makes a certificate of its own, which nobody can verify.
	CertDir string
	// Socket is a unix socket that gives the same to who can open it; in a directory of
	// root's alone, or @ and a name in the pod's network namespace.
	Socket string
	Log    logr.Logger
}

// Server serves /metrics.
type Server struct {
	options Options
	handler http.Handler
	local   http.Handler // without authorization
	// listening gets the address once there is one, for tests.
	listening chan net.Addr
}

// For makes a server of controller-runtime's registry. It asks the API server as the
// manager does: who a token is of (TokenReview), and whether that one may get the path
// /metrics (SubjectAccessReview).
func For(mgr manager.Manager, options Options) (*Server, error) {
	return New(mgr.GetConfig(), mgr.GetHTTPClient(), metrics.Registry, options)
}

// New makes a server of what the gatherer has.
func New(config *rest.Config, client *http.Client, gatherer prometheus.Gatherer, options Options) (*Server, error) {
	access, err := newAccess(config, client, path, options.Log)
	if err != nil {
		return nil, err
	}
	serve := promhttp.HandlerFor(&shared{gatherer: gatherer}, promhttp.HandlerOpts{
		ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: atOnce,
	})
	mux := http.NewServeMux()
	mux.Handle("GET "+path, access.protect(serve))
	return &Server{options: options, handler: newSources().limit(mux), local: serve, listening: make(chan net.Addr, 1)}, nil
}

// NeedLeaderElection is false: whoever does not lead is measured too.
func (s *Server) NeedLeaderElection() bool { return false }

// Start serves until the context ends.
func (s *Server) Start(ctx context.Context) error {
	if s.options.Address == "0" {
		<-ctx.Done()
		return nil
	}
	certificate, err := s.certificate(ctx)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.options.Address)
	if err != nil {
		return fmt.Errorf("failed to listen for metrics: %w", err)
	}
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: patience, ReadTimeout: patience, IdleTimeout: patience,
		WriteTimeout: longest, MaxHeaderBytes: mostHeader,
		ErrorLog:  log.New(io.Discard, "", 0), // anybody can make it grow
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: certificate},
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := s.serveLocally(ctx); err != nil {
		return errors.Join(err, listener.Close())
	}
	s.listening <- listener.Addr()
	s.options.Log.Info("Serving metrics", "address", listener.Addr().String())
	if err := server.ServeTLS(newLimited(listener), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("failed to serve metrics: %w", err)
	}
	return nil
}

type certificateFunc = func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// certificate is that of the directory, as it is then, or one of the server's own.
func (s *Server) certificate(ctx context.Context) (certificateFunc, error) {
	if s.options.CertDir == "" {
		own, err := selfSigned()
		return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own, nil }, err
	}
	watcher, err := certwatcher.New(filepath.Join(s.options.CertDir, "tls.crt"), filepath.Join(s.options.CertDir, "tls.key"))
	if err != nil {
		return nil, fmt.Errorf("failed to read the certificate for metrics: %w", err)
	}
	go func() {
		if err := watcher.Start(ctx); err != nil {
			s.options.Log.Error(err, "failed to watch the certificate for metrics: it stays as it is")
		}
	}()
	return watcher.GetCertificate, nil
}
