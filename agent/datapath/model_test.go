// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// State is what a test says of a node, of which its agent's builder makes the model.
type State struct {
	Paths     []Path
	Uplinks   []int
	Peers     []Peer
	Endpoints []Endpoint
}

type Path struct {
	Name      string
	Interface int
	Up        bool
}

type (
	Peer     = paths.Peer
	PeerPath = paths.PeerPath
)

type Endpoint struct {
	Addresses         []netip.Addr
	Paths             []v1alpha1.PathWeight
	Preferred, Backup []v1alpha1.PathName
	// Class is a preference of its own for each number, from 1.
	Class     int
	Share     int32
	SamePath  bool
	Interface int
}

// newBuilder is that of an agent with these pins.
func newBuilder(pinPath string) *node.Builder {
	return node.NewBuilder(node.OpenRegistry(pinPath, logr.Discard()))
}

// applyState applies the model of a state, as the agent's loop does.
func applyState(ctx context.Context, d *Datapath, builder *node.Builder, state State) error {
	model, err := builder.Build(state.sources())
	if err != nil {
		return err
	}
	model, _, err = builder.Find(model, state.look(), true)
	if err != nil {
		return err
	}
	report := d.Apply(ctx, model)
	if report.Err == nil {
		_, report.Err = builder.Applied(model)
	}
	return report.Err
}

func (s State) sources() node.Sources {
	from := node.Sources{Plan: &v1alpha1.MPTCPNodePlan{}, Peers: s.Peers}
	for _, path := range s.Paths {
		from.Resolution.Paths = append(from.Resolution.Paths, paths.Path{Name: path.Name, NIC: paths.NIC{Index: path.Interface}, Usable: path.Up})
	}
	for _, index := range s.Uplinks {
		from.Resolution.Uplinks = append(from.Resolution.Uplinks, paths.NIC{Index: index})
	}
	for _, endpoint := range s.Endpoints {
		from.Plan.Spec.Endpoints = append(from.Plan.Spec.Endpoints, endpoint.plan())
	}
	return from
}

func (e Endpoint) plan() v1alpha1.PlanEndpoint {
	plan := v1alpha1.PlanEndpoint{Namespace: "team", Paths: e.Paths, Preferred: e.Preferred, Backup: e.Backup}
	for _, address := range e.Addresses {
		plan.Addresses = append(plan.Addresses, address.String())
	}
	plan.Name, plan.UID = plan.Addresses[0], types.UID(plan.Addresses[0])
	if e.Class > 0 || e.Share > 0 {
		plan.Preference = &v1alpha1.PlanPreference{MaxLossPercent: int32(e.Class), Weight: e.Share}
	}
	if e.SamePath {
		plan.Subflows.Mode = v1alpha1.SubflowModeSamePair
	}
	return plan
}

func (s State) look() endpoints.Snapshot {
	found := map[netip.Addr]endpoints.Endpoint{}
	for _, endpoint := range s.Endpoints {
		for _, address := range endpoint.Addresses {
			found[address] = endpoints.Endpoint{HostIndex: endpoint.Interface}
		}
	}
	return endpoints.NewSnapshot(found, nil)
}

func TestWhatTheMapsCannotHoldIsRefused(t *testing.T) {
	nine := State{}
	for i := range 9 {
		nine.Paths = append(nine.Paths, Path{Name: strings.Repeat("x", i+1), Interface: i + 1})
	}
	builder := newBuilder(filepath.Join(bpffs(t), "node"))
	defer builder.Close()
	model, err := builder.Build(nine.sources())
	if err == nil || !strings.Contains(err.Error(), "8 paths") {
		t.Errorf("the error is %v", err)
	}
	if len(model.NICs()) != 8 {
		t.Errorf("%d paths have a NIC and a number", len(model.NICs()))
	}
	endpoint := &node.Model{Endpoints: []node.Endpoint{{PlanEndpoint: &v1alpha1.PlanEndpoint{Name: "web"}}}}
	if err := endpoint.Validate(); err == nil || !strings.Contains(err.Error(), "web") {
		t.Errorf("an endpoint without a number: %v", err)
	}
}

// without is the state without a path, as while its NIC is gone.
func (s State) without(path string) State {
	s.Paths = slices.DeleteFunc(slices.Clone(s.Paths), func(p Path) bool { return p.Name == path })
	return s
}

func (s State) neighbours() map[neighbour]bool {
	model := &node.Model{}
	for _, path := range s.Paths {
		model.Paths = append(model.Paths, node.Path{Name: path.Name, Interface: path.Interface, Up: path.Up})
	}
	for _, peer := range s.Peers {
		model.Peers = append(model.Peers, node.Peer{Peer: peer})
	}
	return neighboursOf(model.NICs(), model.Peers)
}
