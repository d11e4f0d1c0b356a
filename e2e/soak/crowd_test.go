// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"net"
	"strconv"
	"testing"

	"braid.dev/braid/internal/lab/network"
)

const (
	// connections are what one tenant has at once, and perSecond how many of them it opens
	// in a second: the crowd shares the machine's processors with the victim.
	connections = 100_000
	perSecond   = 4_000
	// Some may not come about.
	leastConnections = connections * 98 / 100
	firstPort        = 20_000
)

// gathering are the crowd's connections: holders in turns begin theirs anew.
type gathering struct {
	s       *soak
	to      *network.Pod
	held    [holders]gathered
	renewed int
}

// gathered are those of one holder, and who listens for it: what was reset stays with the
// listener until that ends.
type gathered struct{ listener, holder *process }

// gather opens the crowd's connections.
func (s *soak) gather(t *testing.T) *gathering {
	t.Helper()
	g := &gathering{s: s, to: s.Network.Pod("listener")}
	if err := g.to.Sysctl("net.core.somaxconn", strconv.Itoa(backlog)); err != nil {
		t.Fatal(err)
	}
	for i := range holders {
		g.open(t, i, perSecond/holders)
	}
	all := 0
	for _, held := range g.held {
		all += held.holder.ready(t)
	}
	if all < leastConnections {
		t.Errorf("the crowd has %d connections of %d, which shows less than it should", all, connections)
	}
	return g
}

func (g *gathering) open(t *testing.T, i, perSecond int) {
	t.Helper()
	port := firstPort + i
	listener := start(t, g.to, roleListen, job{Port: uint16(port)})
	listener.ready(t)
	g.held[i] = gathered{listener, start(t, g.s.Network.Pod(holder(i)), roleHold, job{
		To: net.JoinHostPort(g.to.IPv4, strconv.Itoa(port)), Count: connections / holders, PerSecond: perSecond,
	})}
}

// renew has the next holder reset its connections, and open as many.
func (g *gathering) renew(t *testing.T) {
	t.Helper()
	i := g.renewed % holders
	g.renewed++
	end(t, g.held[i].holder)
	end(t, g.held[i].listener)
	g.open(t, i, perSecond)
	if open := g.held[i].holder.ready(t); open < leastConnections/holders {
		t.Errorf("a holder has %d connections of %d", open, connections/holders)
	}
}

func (g *gathering) leave(t *testing.T) {
	t.Helper()
	var listeners, holders []*process
	for _, held := range g.held {
		listeners, holders = append(listeners, held.listener), append(holders, held.holder)
	}
	end(t, holders...)
	end(t, listeners...)
}
