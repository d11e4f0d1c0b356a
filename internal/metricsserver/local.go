// SPDX-License-Identifier: Apache-2.0

package metricsserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// serveLocally serves on the unix socket until the context ends, for who looks from
// within: kubectl braid sysdump, where nothing may authorize.
func (s *Server) serveLocally(ctx context.Context) error {
	if s.options.Socket == "" {
		return nil
	}
	listener, err := listenLocally(s.options.Socket)
	if err != nil {
		return fmt.Errorf("failed to listen for metrics on %s: %w", s.options.Socket, err)
	}
	server := &http.Server{Handler: s.local, ReadTimeout: patience, IdleTimeout: patience, WriteTimeout: longest}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.options.Log.Error(err, "failed to serve metrics locally")
		}
	}()
	return nil
}

// listenLocally takes the socket over from an earlier process.
func listenLocally(socket string) (net.Listener, error) {
	if strings.HasPrefix(socket, "@") {
		return net.Listen("unix", socket)
	}
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(socket, 0o600)
}

// Fetch copies the metrics that a server gives on its unix socket.
func Fetch(ctx context.Context, socket string, to io.Writer) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://local"+path, nil)
	if err != nil {
		return fmt.Errorf("failed to ask for metrics: %w", err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("failed to ask for metrics; are they served? %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("failed to get metrics: %s", response.Status)
	}
	if _, err := io.Copy(to, response.Body); err != nil {
		return fmt.Errorf("failed to read metrics: %w", err)
	}
	return nil
}
