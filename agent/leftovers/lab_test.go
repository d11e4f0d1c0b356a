// SPDX-License-Identifier: Apache-2.0

package leftovers_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/leftovers"
	nodemodel "braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// node has a datapath with one peer, attached in one way or the other.
type node struct {
	*network.Node
	t        *testing.T
	options  leftovers.Options
	datapath *datapath.Datapath
}

func newNode(t *testing.T, clsact bool) *node {
	t.Helper()
	built := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 1})
	pins := testutil.BPFFS(t)
	n := &node{Node: built.Nodes[0], t: t, options: leftovers.Options{PinPath: filepath.Join(pins, "braid"), StatePath: t.TempDir()}}
	n.datapath = datapath.Open(datapath.Options{PinPath: n.options.PinPath, FlowEntries: 4096, Clsact: clsact})
	t.Cleanup(func() { require.NoError(t, n.Do(n.remove)) })
	index, err := n.Index("blue")
	require.NoError(t, err)
	address := netip.MustParseAddr(built.Nodes[1].Address(0, 4))
	state := nodetest.State{
		Paths: []nodetest.Path{{Name: "blue", Interface: index, Up: true}},
		Peers: []nodetest.Peer{{Name: "other", Addresses: []netip.Addr{address}, Paths: map[string]nodetest.PeerPath{"blue": {Addresses: []netip.Addr{address}, Up: true}}}},
		Endpoints: []nodetest.Endpoint{{
			Addresses: []netip.Addr{netip.MustParseAddr(n.Pods[0].IPv4)}, Paths: []v1alpha1.PathWeight{{Path: "blue", Weight: 1}},
		}},
	}
	require.NoError(t, n.Do(func() error { return state.Apply(t.Context(), n.datapath, nodetest.NewBuilder(n.options.PinPath)) }))
	return n
}

// remove removes the datapath and the numbers of what was in it.
func (n *node) remove() error {
	return errors.Join(n.datapath.Remove(context.Background()), nodemodel.OpenRegistry(n.options.PinPath, logr.Discard()).Remove())
}

// find is what is left, a line for each kind, without what differs between runs.
func (n *node) find() map[string][]string {
	n.t.Helper()
	found := map[string][]string{}
	require.NoError(n.t, n.Do(func() error {
		left, err := leftovers.Find(n.options)
		for _, one := range left {
			text := one.Name
			if one.Kind == leftovers.Program {
				text += " " + one.Detail
			}
			if relative, err := filepath.Rel(n.options.PinPath, one.Name); err == nil && one.Kind == leftovers.Pin {
				text = relative
			}
			found[string(one.Kind)] = append(found[string(one.Kind)], text)
		}
		return err
	}))
	return found
}

func TestWhatANodeHasOfBraidIsListedUntilItIsRemoved(t *testing.T) {
	for name, clsact := range map[string]bool{"tcx": false, "clsact": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, clsact)
			rule := netlink.NewRule()
			rule.Family, rule.Table, rule.Priority = netlink.FAMILY_V4, paths.DetourTable, paths.DetourRulePriority
			_, destination, err := net.ParseCIDR("192.0.2.0/24")
			require.NoError(t, err)
			index, err := n.Index("blue")
			require.NoError(t, err)
			route := &netlink.Route{Table: paths.DetourTable, Protocol: paths.DetourProtocol, Dst: destination, LinkIndex: index}
			require.NoError(t, n.Do(func() error { return errors.Join(netlink.RuleAdd(rule), netlink.RouteAdd(route)) }))
			record := filepath.Join(n.options.StatePath, "pods", "4026531840.json")
			require.NoError(t, errors.Join(os.Mkdir(filepath.Dir(record), 0o700), os.WriteFile(record, []byte("{}"), 0o600)))

			wanted := map[string][]string{
				"Pin": {"datapath", "node"}, "Program": {"from_uplink blue ingress", "to_uplink blue egress"}, "Neighbour": {"10.20.0.2"},
				"Rule": {"priority 32700"}, "Route": {"192.0.2.0/24"}, "Namespace": {"4026531840"},
			}
			if difference := cmp.Diff(wanted, n.find()); difference != "" {
				t.Errorf("what is left is not what was expected:\n%s", difference)
			}
			require.NoError(t, n.Do(func() error {
				return errors.Join(n.remove(), netlink.RuleDel(rule), netlink.RouteDel(route), os.Remove(record))
			}))
			if difference := cmp.Diff(map[string][]string{}, n.find()); difference != "" {
				t.Errorf("after the removal:\n%s", difference)
			}
		})
	}
}

// Rules, routes, neighbours and files of others are no concern of Braid's.
func TestWhatOthersHaveIsNotListed(t *testing.T) {
	n := newNode(t, false)
	require.NoError(t, n.Do(n.remove))
	index, err := n.Index("blue")
	require.NoError(t, err)
	_, destination, err := net.ParseCIDR("192.0.2.0/24")
	require.NoError(t, err)
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority = netlink.FAMILY_V4, 77, 1000
	library := filepath.Join(n.options.StatePath, "preload", "libmptcpwrap.so")
	require.NoError(t, errors.Join(os.Mkdir(filepath.Dir(library), 0o700), os.WriteFile(library, nil, 0o600)))
	require.NoError(t, n.Do(func() error {
		return errors.Join(netlink.RuleAdd(rule), netlink.RouteAdd(&netlink.Route{Table: 77, Dst: destination, LinkIndex: index}))
	}))
	require.Empty(t, n.find())
}
