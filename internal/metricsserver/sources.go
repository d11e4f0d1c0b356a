// SPDX-License-Identifier: Apache-2.0

package metricsserver

import (
	"net"
	"net/http"
	"net/netip"
	"sync"

	"braid.dev/braid/internal/room"
)

const (
	// mostConnections is how many are open at a time, some ten kilobytes each. One
	// address has no more of them than are free.
	mostConnections = 128
	// Each address may ask so often.
	asksPerSecond, asksBurst = 2, 10
	// mostSources is of how many addresses the rate is known.
	mostSources = 1024
)

// limited accepts from each address no more connections than its part.
type limited struct {
	net.Listener
	room *room.Room
}

func newLimited(listener net.Listener) *limited { return &limited{listener, room.New(mostConnections)} }

// Accept closes what is beyond without a word.
func (l *limited) Accept() (net.Conn, error) {
	for {
		connection, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		source := sourceOf(connection.RemoteAddr().String()).String()
		if l.room.Take(source) {
			return &counted{Conn: connection, give: sync.OnceFunc(func() { l.room.Give(1, source) })}, nil
		}
		_ = connection.Close()
	}
}

// counted is a connection that gives its place back when it is closed.
type counted struct {
	net.Conn
	give func()
}

func (c *counted) Close() error {
	defer c.give()
	return c.Conn.Close()
}

func sourceOf(address string) netip.Addr {
	source, _ := netip.ParseAddrPort(address) // zero for none: one source as well
	return source.Addr().Unmap()
}

// sources bounds how often each address asks: each new token costs the API server a
// review.
type sources struct{ *room.Rates[netip.Addr] }

func newSources() sources {
	return sources{room.NewRates[netip.Addr](asksPerSecond, asksBurst, mostSources)}
}

func (s sources) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if !s.Allow(sourceOf(request.RemoteAddr)) {
			w.Header().Set("Connection", "close")
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, request)
	})
}
