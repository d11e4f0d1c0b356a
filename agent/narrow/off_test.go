// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/internal/testutil"
)

// leftShared are flows of which an earlier agent said that they share a path.
type leftShared struct {
	mu    sync.Mutex
	flows []datapath.BusyFlow
}

func (l *leftShared) BusyFlows() ([]datapath.BusyFlow, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.flows), nil
}

func (l *leftShared) PathOf(netip.AddrPort, netip.AddrPort) (uint8, bool, error) { panic("it is off") }

func (l *leftShared) Share(datapath.BusyFlow, uint8) error { panic("it is off") }

func (l *leftShared) Part(flow datapath.BusyFlow) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.flows {
		if l.flows[i].Local == flow.Local {
			l.flows[i].Shared = false
		}
	}
	return nil
}

func TestWhereItIsOffFlowsPartThatAnEarlierAgentHadShare(t *testing.T) {
	local := netip.MustParseAddr("192.0.2.1")
	left := &leftShared{}
	for port := uint16(1); port <= 2; port++ {
		left.flows = append(left.flows, datapath.BusyFlow{Local: netip.AddrPortFrom(local, port), Remote: netip.MustParseAddrPort("192.0.2.2:80"), Shared: true, Busy: true})
	}
	part := New(Options{Datapath: left, Off: true, Log: testr.New(t)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- part.Run(ctx) }()
	model := &node.Model{Endpoints: []node.Endpoint{{Addresses: []netip.Addr{local}, Found: &endpoints.Endpoint{Path: "/run/netns/none"}}}}
	require.NoError(t, part.Apply(t.Context(), model).Err)
	testutil.Eventually(t, 10*time.Second, "the flows part", func() bool {
		flows, _ := left.BusyFlows()
		return !flows[0].Shared && !flows[1].Shared
	})
	cancel()
	require.NoError(t, <-done)
	require.NoError(t, part.Close())
}
