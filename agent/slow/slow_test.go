// SPDX-License-Identifier: Apache-2.0

package slow

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/api/v1alpha1"
)

// counting is a datapath that counts as the test says.
type counting struct {
	known map[key]*datapath.Lasting
	slow  map[key]map[uint8]time.Duration
}

func (c *counting) Lasting(visit func(*datapath.Lasting)) error {
	for of, known := range c.known {
		seen := *known
		for path := range c.slow[of] {
			seen.On[path].Slow = true
		}
		visit(&seen)
	}
	return nil
}

func (c *counting) SetSlow(endpoint, peer uint32, path uint8, lasts time.Duration) error {
	of := key{endpoint, peer}
	if c.slow[of] == nil {
		c.slow[of] = map[uint8]time.Duration{}
	}
	c.slow[of][path] = lasts
	if lasts == 0 {
		delete(c.slow[of], path)
	}
	return nil
}

// lasted adds connections that ended after 2 to the power of time ticks.
func (c *counting) lasted(of key, path uint8, number, time uint32) {
	if c.known[of] == nil {
		c.known[of] = &datapath.Lasting{Endpoint: of.endpoint, Peer: of.peer}
	}
	on, units := &c.known[of].On[path], uint64(time)*uint64(1/datapath.LastingUnit)
	on.Begun, on.Ended, on.Timed = on.Begun+number, on.Ended+number, on.Timed+number
	on.Times, on.Squares = on.Times+uint64(number)*units, on.Squares+uint64(number)*units*units
	total := uint64(1) << time
	on.Total, on.TotalSquares = on.Total+uint64(number)*total, on.TotalSquares+uint64(number)*total*total
}

func model() *node.Model {
	m := nodetest.Model(nodetest.Pod{UID: "web"}, nodetest.Pod{UID: "other"})
	m.Paths = []node.Path{{Name: "blue", Number: 0, Interface: 2}, {Name: "red", Number: 1, Interface: 3}}
	m.Peers = []node.Peer{{Number: 7}, {Number: 8}}
	m.Peers[0].Name, m.Peers[1].Name = "node2", "node3"
	return m
}

func message(report node.Report, uid string) string {
	var status v1alpha1.EndpointStatus
	for of, one := range report.Endpoints {
		if string(of) == uid && one.Describe != nil {
			one.Describe(&status)
		}
	}
	return status.Message
}

// shown are the pairs of each path in the metrics.
func shown(t *testing.T, s *Slow) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(s))
	families, err := registry.Gather()
	require.NoError(t, err)
	pairs := map[string]float64{}
	for _, metric := range families[0].GetMetric() {
		pairs[metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue()
	}
	return pairs
}

func TestASlowPathIsSaidToTheProgramsAndShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := model()
		of := key{m.Endpoints[0].Number, 7}
		c := &counting{known: map[key]*datapath.Lasting{}, slow: map[key]map[uint8]time.Duration{}}
		s := New(c, testr.New(t))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		require.Empty(t, message(s.Apply(ctx, m), "web"))
		time.Sleep(2 * interval)
		c.lasted(of, 0, enough, 4)
		c.lasted(of, 1, enough, 10)
		c.lasted(key{m.Endpoints[0].Number, 8}, 0, enough, 4)
		c.lasted(key{m.Endpoints[0].Number, 8}, 1, enough, 10)
		time.Sleep(2 * interval)
		require.Contains(t, c.slow[of], uint8(1), "it is tried whether more connections end without the path")
		require.Empty(t, message(s.Apply(ctx, m), "web"))
		require.Equal(t, map[string]float64{"blue": 0, "red": 0}, shown(t, s))
		for range 10 {
			c.lasted(of, 0, 2*enough, 4)
			c.lasted(key{m.Endpoints[0].Number, 8}, 0, 2*enough, 4)
			time.Sleep(interval)
		}
		require.Equal(t, map[uint8]time.Duration{1: firstRest}, c.slow[of])
		require.Equal(t, "new connections to node2 and node3 do not begin on path red, where they last much longer: see docs/subflows.md", message(s.Apply(ctx, m), "web"))
		require.Empty(t, message(s.Apply(ctx, m), "other"))
		require.Equal(t, map[string]float64{"blue": 0, "red": 2}, shown(t, s))
		time.Sleep(firstRest)
		for range tried {
			c.lasted(of, 0, 1, 4)
			c.lasted(of, 1, 1, 4)
			time.Sleep(2 * interval)
		}
		require.Empty(t, c.slow[of])
		require.Equal(t, "new connections to node3 do not begin on path red, where they last much longer: see docs/subflows.md", message(s.Apply(ctx, m), "web"))
		cancel()
		require.NoError(t, <-done)
	})
}

// What was counted before the agent began tells nothing, as it may be of any time; what it had
// found is tried again.
func TestAnAgentThatBeginsLooksAtWhatComes(t *testing.T) {
	of := key{1, 7}
	c := &counting{known: map[key]*datapath.Lasting{}, slow: map[key]map[uint8]time.Duration{of: {2: time.Hour}}}
	c.lasted(of, 0, enough, 4)
	c.lasted(of, 1, enough, 10)
	s, now := New(c, testr.New(t)), time.Now()
	require.NoError(t, s.look(now))
	require.NoError(t, s.look(now.Add(interval)))
	require.Equal(t, map[uint8]time.Duration{2: time.Hour}, c.slow[of])
	c.lasted(of, 0, enough, 4)
	c.lasted(of, 2, tried, 4)
	require.NoError(t, s.look(now.Add(firstRest+interval)))
	c.lasted(of, 2, tried, 4)
	require.NoError(t, s.look(now.Add(firstRest+2*interval)))
	require.Empty(t, c.slow[of])
}

func TestOfManyPeersTwoAreNamed(t *testing.T) {
	require.Equal(t, "a", some([]string{"a"}))
	require.Equal(t, "a and b", some([]string{"b", "a", "b"}))
	require.Equal(t, "a, b and 2 more", some([]string{"d", "b", "a", "c"}))
}
