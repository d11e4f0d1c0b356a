// SPDX-License-Identifier: Apache-2.0

package pace_test

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/schedule"
	"braid.dev/braid/agent/transport"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// onNet1 says of all subflows that they are on the path net1.
type onNet1 struct{}

func (onNet1) Find(local, remote netip.AddrPort) (*datapath.Flow, error) {
	return &datapath.Flow{Local: local, Remote: remote, Path: "net1"}, nil
}
func (onNet1) Close() error { return nil }

// request has the server ask for a rate, and the client accept it.
func (l *lab) request(t *testing.T, part *transport.Part, rate string) {
	t.Helper()
	model := nodetest.Model(nodetest.Pod{UID: "client", Namespace: l.client.Path()}, nodetest.Pod{UID: "server", Namespace: l.server.Path()})
	model.Endpoints[0].Transport = &v1alpha1.Transport{Accept: &v1alpha1.TransportAcceptance{
		From: []v1alpha1.CIDR{"0.0.0.0/0"}, MinRate: resource.NewQuantity(1e6, resource.DecimalSI),
	}}
	if rate == "" {
		model.Endpoints[0].Transport = nil
	} else {
		model.Endpoints[1].Transport = &v1alpha1.Transport{Request: &v1alpha1.TransportRequest{Rates: []v1alpha1.PathRate{{Path: "net1", Rate: resource.MustParse(rate)}}}}
	}
	require.NoError(t, nodetest.Failures(part.Apply(t.Context(), model)))
}

// openTransport has another part, which speaks with peers, run until it is stopped.
func (l *lab) openTransport(t *testing.T) (part *transport.Part, stop func()) {
	t.Helper()
	part = transport.Open(transport.Options{
		PinPath: l.directory, NamespaceDirectories: []string{network.Directory}, Log: testr.New(t),
		Flows: func() (transport.Flows, error) { return onNet1{}, nil },
		AgentRequests: func(_ string, requests []schedule.Request, _ []schedule.Ends) error {
			strategies := slices.DeleteFunc(requests, func(request schedule.Request) bool { return !request.EarliestCompletionFirst })
			l.strategies.Store(int32(len(strategies)))
			return nil
		},
	})
	t.Cleanup(func() { require.NoError(t, part.Remove(context.Background())) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); require.NoError(t, <-done) })
	t.Cleanup(stop)
	return part, stop
}

func TestOfARulesRateAndAPeersTheLesserHolds(t *testing.T) {
	l := newLab(t)
	part, _ := l.openTransport(t)
	l.request(t, part, "20M")
	l.serve(t, l.server.IPv4)
	connection := l.dial(t, l.server.IPv4)
	s := l.awaitSubflows(t, 1)[0]
	send(t, connection)
	isPaced := func(at string) {
		t.Helper()
		testutil.Eventually(t, 10*time.Second, "the socket is paced at "+at, func() bool { return all(paces(t, l.client), at) })
	}
	isPaced("20000000")
	expectRates(t, "what the peer asks for", l.client, time.Second, each(20))
	l.apply(t, l.endpoint())
	for _, step := range []struct {
		mbit float64
		pace string
	}{{50, "20000000"}, {5, "5000000"}, {0, "20000000"}, {8, "8000000"}} {
		l.note(t, s.key(), limit{mbit: step.mbit})
		l.apply(t, l.endpoint())
		isPaced(step.pace)
	}
	l.request(t, part, "")
	isPaced("8000000")
	l.request(t, part, "4M")
	isPaced("4000000")
	require.NoError(t, l.pacer.Remove())
	isPaced("4000000")
	l.request(t, part, "")
	isPaced("")
}
