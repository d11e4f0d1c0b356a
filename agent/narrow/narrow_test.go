// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// told is a datapath that notes which flows are to share which path; those that part have none.
type told map[netip.AddrPort]uint8

func (d told) BusyFlows() ([]datapath.BusyFlow, error) { return nil, nil }

func (d told) Share(flow datapath.BusyFlow, path uint8) error {
	d[flow.Local] = path
	return nil
}

func (d told) PathOf(netip.AddrPort, netip.AddrPort) (uint8, bool, error) { return 0, false, nil }

func (d told) Part(flow datapath.BusyFlow) error {
	delete(d, flow.Local)
	return nil
}

func TestASubflowThatSendsMuchOnlyNowLeavesByThePathOfTheOthers(t *testing.T) {
	ends := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port) }
	flows := []datapath.BusyFlow{
		{Local: ends(1), Shared: true, SharedPath: goodPath},
		{Local: ends(2), Path: slowPath},
		{Local: ends(3), Shared: true, SharedPath: slowPath},
	}
	for name, test := range map[string]struct {
		shared, trying bool
		order          order
		told           told
	}{
		"of a connection that shares a path":            {true, false, nothing, told{ends(2): goodPath, ends(3): goodPath}},
		"of one that tries it":                          {true, true, nothing, told{ends(2): goodPath, ends(3): goodPath}},
		"of one whose subflows take their own":          {false, false, nothing, told{}},
		"of one that tries that":                        {false, true, nothing, told{}},
		"of one that is to share a path from now on":    {true, true, share, told{ends(2): goodPath, ends(3): goodPath}},
		"of one whose subflows are to part from now on": {false, true, part, told{}},
	} {
		t.Run(name, func(t *testing.T) {
			n, c := New(Options{Datapath: told{}, Log: testr.New(t)}), &connection{arrangement: arrangement{shared: test.shared, path: goodPath}, trying: test.trying}
			require.NoError(t, n.follow(c, test.order, &found{flows: flows, own: []int{goodPath, slowPath, noPath}}))
			require.Equal(t, test.told, n.options.Datapath)
		})
	}
}

func TestOtherSubflowsAreLookedForWhereSomethingHoldsAConnectionBack(t *testing.T) {
	full := backlog{all: 100, underWay: 60, used: 90, buffer: 100}
	held := func(shared, trying bool, looks int) *connection {
		c := &connection{arrangement: arrangement{shared: shared}, trying: trying, looks: looks}
		for range looks {
			c.limits.add(sight{full: true, narrow: true, stuck: true})
		}
		return c
	}
	of := identity{token: 1}
	for name, test := range map[string]struct {
		connection *connection
		data       backlog
		want       bool
	}{
		"one that has no other subflow that sends much": {nil, full, true},
		"one whose application wants no more":           {nil, backlog{all: 1, buffer: 100}, false},
		"one that was seen to be held back":             {held(false, false, few), full, true},
		"but not in a single look":                      {held(false, false, 1), full, false},
		"one that shares a path has chosen it":          {held(true, false, few), full, false},
		"one that tries something is to be judged":      {held(true, true, few), full, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := New(Options{Datapath: told{}, Log: testr.New(t)})
			if test.connection != nil {
				n.connections[of] = test.connection
			}
			subflows := []subflow{{window: 64}}
			require.Equal(t, test.want, n.isHeld(of, &found{subflows: subflows, data: test.data}))
		})
	}
}

func TestWhatConnectionsFoundOutIsForgottenWhenThePodsPlanChanges(t *testing.T) {
	local, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	n := New(Options{Datapath: told{}, Log: testr.New(t)})
	model := func(policy string) *node.Model {
		plan := &v1alpha1.PlanEndpoint{Policy: v1alpha1.PolicyReference{Name: policy}}
		return &node.Model{Endpoints: []node.Endpoint{
			{PlanEndpoint: plan, Addresses: []netip.Addr{local}, Found: &endpoints.Endpoint{Path: "/run/netns/one"}},
			{PlanEndpoint: &v1alpha1.PlanEndpoint{}, Addresses: []netip.Addr{other}, Found: &endpoints.Endpoint{Path: "/run/netns/other"}},
		}}
	}
	require.NoError(t, n.Apply(t.Context(), model("spread")).Err)
	ofPod, ofOther := addresses{local, other}, addresses{other, local}
	n.outcomes[ofPod], n.outcomes[ofOther] = &outcome{}, &outcome{}
	require.NoError(t, n.look(time.Now()))
	require.Len(t, n.outcomes, 2)
	require.NoError(t, n.Apply(t.Context(), model("another")).Err)
	require.NoError(t, n.look(time.Now()), "with no connection that sends")
	require.NotContains(t, n.outcomes, ofPod)
	require.Contains(t, n.outcomes, ofOther)
}

func TestBackupsKeepToTheirOwnPaths(t *testing.T) {
	flow := func(path uint8) datapath.BusyFlow { return datapath.BusyFlow{Path: path} }
	all := []datapath.BusyFlow{flow(0), flow(1), flow(2)}
	for name, test := range map[string]struct {
		backups      []bool
		left, others []datapath.BusyFlow
	}{
		"where none is one":  {[]bool{false, false, false}, all, nil},
		"where some are":     {[]bool{true, false, true}, all[1:2], []datapath.BusyFlow{flow(0), flow(2)}},
		"where all are ones": {[]bool{true, true, true}, nil, all},
	} {
		t.Run(name, func(t *testing.T) {
			f := &found{flows: all, own: []int{0, 1, 2}}
			for i, backup := range test.backups {
				f.subflows = append(f.subflows, subflow{path: uint8(i), backup: backup})
			}
			require.Equal(t, test.others, f.leaveBackupsOut())
			require.Equal(t, test.left, f.flows)
			require.Len(t, f.subflows, len(test.left))
			for i, subflow := range f.subflows {
				require.Equal(t, f.flows[i].Path, subflow.path)
				require.Equal(t, f.own[i], int(subflow.path))
			}
		})
	}
}

func TestASharedPathThatMakesBackupsOfAllIsForgotten(t *testing.T) {
	between, of := addresses{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}, identity{token: 1}
	flow := datapath.BusyFlow{Local: netip.AddrPortFrom(between.local, 1), Remote: netip.AddrPortFrom(between.remote, 80)}
	backup := func() *found {
		return &found{flows: []datapath.BusyFlow{flow}, own: []int{goodPath}, subflows: []subflow{{backup: true}}}
	}
	for name, test := range map[string]struct {
		shared, trying bool
		found          *found
		kept           bool
	}{
		"that they share":                      {true, false, backup(), false},
		"that they try":                        {true, true, backup(), false},
		"but not what subflows apart are":      {false, false, backup(), true},
		"nor what those that try that are":     {false, true, backup(), true},
		"nor for subflows that all have ended": {true, false, &found{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := New(Options{Datapath: told{}, Log: testr.New(t)})
			n.connections[of], n.outcomes[between] = &connection{arrangement: arrangement{shared: test.shared}, trying: test.trying}, &outcome{}
			require.NoError(t, n.take(time.Now(), of, test.found))
			require.Equal(t, test.kept, n.connections[of] != nil, "the connection")
			require.Equal(t, test.kept, n.outcomes[between] != nil, "what one found out")
		})
	}
}

// A rule that takes hold has a connection stand still for a moment, in which nobody looks at it.
func TestAConnectionStartsOverWhenItIsLookedAtFirstSinceThePodsPlanChanged(t *testing.T) {
	local, remote := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:80")
	n := New(Options{Datapath: told{local: goodPath}, Log: testr.New(t)})
	where := place{path: "/run/netns/one"}
	apply := func(policy string) {
		model := &node.Model{Endpoints: []node.Endpoint{{
			PlanEndpoint: &v1alpha1.PlanEndpoint{Policy: v1alpha1.PolicyReference{Name: policy}},
			Addresses:    []netip.Addr{local.Addr()}, Found: &endpoints.Endpoint{Path: where.path},
		}}}
		require.NoError(t, n.Apply(t.Context(), model).Err)
		require.NoError(t, n.look(time.Now()), "while it sends nothing")
	}
	judge := func() {
		flow := datapath.BusyFlow{Local: local, Remote: remote, Path: goodPath, Shared: true, SharedPath: goodPath}
		of := &found{flows: []datapath.BusyFlow{flow}, own: []int{goodPath}, subflows: []subflow{{ends: ends{local, remote}, path: goodPath}}}
		require.NoError(t, n.judge(time.Now(), identity{where, 1}, of))
	}
	apply("spread")
	judge()
	require.Equal(t, told{local: goodPath}, n.options.Datapath, "as the plan is the same")
	apply("another")
	judge()
	require.Equal(t, told{}, n.options.Datapath)
}

func TestAPodWithManySubflowsTakesNothingFromOthers(t *testing.T) {
	const lasts, atMost = 10 * time.Second, float64(time.Second/pause) * 1.01
	for name, subflows := range map[string]map[place]int{
		"one with few alone":           {{path: "few"}: 3},
		"one with thousands alone":     {{path: "many"}: 4000},
		"beside one":                   {{path: "few"}: 3, {path: "many"}: 4000},
		"beside several, and some few": {{path: "few"}: 3, {path: "fewer"}: 2, {path: "many"}: 4000, {path: "more"}: 9000},
	} {
		t.Run(name, func(t *testing.T) {
			n := New(Options{Log: testr.New(t)})
			looks, asked, began := map[place]int{}, 0, time.Now()
			for now := began; now.Sub(began) < lasts; now = now.Add(interval) {
				for where, count := range subflows {
					if !now.Before(n.rests[where].until) {
						looks[where]++
						asked += count
						n.restAfter(now, where, count, len(subflows))
					}
				}
			}
			for where, count := range subflows {
				if count < 10 {
					require.Equal(t, int(lasts/interval)+1, looks[where], "looks at the connections of %s", where.path)
				}
				require.NotZero(t, looks[where], "looks at the connections of %s", where.path)
			}
			largest := slices.Max(slices.Collect(maps.Values(subflows))) // may have been asked for at once
			require.LessOrEqual(t, float64(asked-largest*len(subflows)), atMost*lasts.Seconds())
		})
	}
}

func TestTheConnectionsOfAPodThatIsSeldomLookedAtAreRemembered(t *testing.T) {
	seldom, often := identity{place{path: "seldom"}, 1}, identity{place{path: "often"}, 2}
	n := New(Options{Log: testr.New(t)})
	now := time.Now()
	n.rests[seldom.place] = rest{lasts: forget, until: now}
	for _, of := range []identity{seldom, often} {
		n.connections[of] = &connection{seen: now.Add(-3 * forget / 2), arrangement: arrangement{shared: true}}
	}
	n.forgetIdle(now)
	require.Contains(t, n.connections, seldom)
	require.NotContains(t, n.connections, often)
	require.Equal(t, 1, n.shared)
}
