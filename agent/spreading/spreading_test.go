// SPDX-License-Identifier: Apache-2.0

package spreading

import (
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

func newForTest(t *testing.T) *Spreading {
	t.Helper()
	s := New(Options{Log: logr.Discard()})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// status is what the part has an endpoint's status say.
func status(t *testing.T, s *Spreading, model *node.Model, uid types.UID) *v1alpha1.SpreadingStatus {
	t.Helper()
	report := s.Apply(t.Context(), model)
	require.True(t, report.Done())
	var said v1alpha1.EndpointStatus
	if of := report.Endpoints[uid]; of.Describe != nil {
		of.Describe(&said)
	}
	return said.Spreading
}

// seen lets a look at an endpoint of the model come to an end.
func (s *Spreading) seen(model *node.Model, uid types.UID, o observation, onPath map[string]*agentapi.PathTraffic) (changed bool) {
	endpoint := model.Endpoint(uid)
	p := s.begin(endpoint)
	return s.end(p, &look{endpoint: endpoint, observed: o, now: map[ends]keptSocket{}, onPath: onPath}, time.Now(), true)
}

func TestNothingIsToldBeforeTheSecondLook(t *testing.T) {
	s, model := newForTest(t), nodetest.Model(nodetest.Pod{UID: "u", Name: "shop/web"})
	require.Nil(t, status(t, s, model, "u"))
	require.False(t, s.seen(model, "u", observation{}, nil), "the first look only learns what there is")
	require.Nil(t, status(t, s, model, "u"))
	require.True(t, s.seen(model, "u", observation{}, nil))
	require.Equal(t, v1alpha1.ReasonNothingSent, status(t, s, model, "u").Reason)
}

func TestWhatAnEarlierAgentToldStaysUntilThereIsMore(t *testing.T) {
	s, model := newForTest(t), nodetest.Model(nodetest.Pod{UID: "u", Name: "shop/web"})
	told := &v1alpha1.SpreadingStatus{State: v1alpha1.SpreadingSpread, Reason: v1alpha1.ReasonSpread}
	model.Plan.Status.Endpoints = []v1alpha1.EndpointStatus{{UID: "u", Spreading: told}}
	require.Equal(t, told, status(t, s, model, "u"))
	for range remembered {
		require.False(t, s.seen(model, "u", observation{}, nil), "silence is not told at once")
	}
	require.Equal(t, told, status(t, s, model, "u"))
}

func TestWhatAPodCarriedIsCountedForItsNamespace(t *testing.T) {
	s, model := newForTest(t), nodetest.Model(nodetest.Pod{UID: "u", Name: "shop/web"}, nodetest.Pod{UID: "v", Name: "shop/files"})
	s.Apply(t.Context(), model)
	for _, uid := range []types.UID{"u", "v", "u"} {
		s.seen(model, uid, observation{}, map[string]*agentapi.PathTraffic{"blue": {Path: "blue", SentBytes: 10, ReceivedBytes: 1}, "": {SentBytes: 5}})
	}
	require.Equal(t, map[string]carried{"blue": {30, 3}, "": {15, 0}}, s.totals["shop"])
	shown, err := s.Spreading()
	require.NoError(t, err)
	require.Len(t, shown, 2)
	require.Equal(t, "shop/files", shown[0].Endpoint)
	require.Equal(t, []agentapi.PathTraffic{{Path: "blue", SentBytes: 10, ReceivedBytes: 1}, {SentBytes: 5}}, shown[0].Paths, "the nameless path comes last")

	metrics := make(chan prometheus.Metric, 10)
	s.Collect(metrics)
	require.Len(t, metrics, 6, "two reasons, and two directions of two paths")
	s.Apply(t.Context(), nodetest.Model())
	require.Empty(t, s.totals, "of a namespace without pods nothing is kept")
}

func TestAPodThatGoesGivesItsPlacesBack(t *testing.T) {
	s, model := newForTest(t), nodetest.Model(nodetest.Pod{UID: "u", Name: "shop/web"})
	s.Apply(t.Context(), model)
	before := s.room.Left("shop", "u")
	p, endpoint := s.begin(model.Endpoint("u")), model.Endpoint("u")
	require.True(t, s.room.Take("shop", "u"))
	look := &look{endpoint: endpoint, now: map[ends]keptSocket{{}: {}}}
	s.end(p, look, time.Now(), true)
	require.Less(t, s.room.Left("shop", "u"), before)
	s.Apply(t.Context(), nodetest.Model())
	require.Equal(t, before, s.room.Left("shop", "u"))

	// One that goes while it is looked at does too.
	require.True(t, s.room.Take("shop", "u"))
	require.False(t, s.end(p, look, time.Now(), true))
	require.Equal(t, before, s.room.Left("shop", "u"))
}

// Sockets in the namespace of such a pod are not the guest's: they are not looked at.
func TestAPodThatHoldsAVMIsJudgedByItsFlowsAlone(t *testing.T) {
	address := netip.MustParseAddr("10.0.0.1")
	up := paths.PeerPath{Up: true}
	model := &node.Model{
		Paths: []node.Path{{Name: "blue", Interface: 2, Up: true}, {Name: "green", Interface: 3, Up: true}},
		Peers: []node.Peer{{Number: 1, Peer: paths.Peer{Name: "node2", Paths: map[string]paths.PeerPath{"blue": up, "green": up}}}},
	}
	for name, tc := range map[string]struct {
		used   []string
		reason string
	}{
		"of two paths": {[]string{"blue", "green"}, v1alpha1.ReasonSpread},
		"of one path":  {[]string{"blue"}, v1alpha1.ReasonOnePathUsed},
		"of none":      {nil, v1alpha1.ReasonNothingSent},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := &node.Endpoint{Addresses: []netip.Addr{address}, PlanEndpoint: &v1alpha1.PlanEndpoint{
				VirtualMachine: &v1alpha1.PlanVirtualMachine{Held: true}, Paths: []v1alpha1.PathWeight{{Path: "blue"}, {Path: "green"}},
			}}
			s := &sight{Spreading: newForTest(t), atlas: newAtlas(model, nil, nil), used: map[netip.Addr]map[usedFlow]bool{address: {}}}
			for _, path := range tc.used {
				s.used[address][usedFlow{path, 1}] = true
			}
			l := look{endpoint: endpoint, observed: s.observationOf(endpoint)}
			require.NoError(t, l.run(), "there is no namespace to look into")
			require.Equal(t, tc.reason, judge(&l.observed).reason)
		})
	}
}
