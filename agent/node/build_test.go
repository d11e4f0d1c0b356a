// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

func onNIC(name string, index int, usable bool) paths.Path {
	return paths.Path{Name: name, NIC: paths.NIC{Index: index}, Usable: usable}
}

func TestAModelIsOfThePlanAndOfWhatWasFound(t *testing.T) {
	builder := NewBuilder(OpenRegistry(filepath.Join(bpffs(t), "braid"), logr.Discard()))
	defer builder.Close()
	plan := &v1alpha1.MPTCPNodePlan{}
	plan.Spec.Paths = []v1alpha1.PlanPath{{Name: "blue", Capacity: 5_000_000}, {Name: "green"}, {Name: "red"}}
	plan.Spec.Endpoints = []v1alpha1.PlanEndpoint{{UID: "a", Namespace: "team", Name: "web", Addresses: []string{"::ffff:10.0.0.2", "no address", "fd00::2"}}}
	plan.Spec.Chains = []v1alpha1.PlanChain{{Name: "chain", Rules: []v1alpha1.PlanRule{{Policy: "p"}}}}
	model := build(t, builder, Sources{
		Plan:       plan,
		Resolution: paths.Resolution{Paths: []paths.Path{onNIC("blue", 2, false), onNIC("green", 3, true), onNIC("red", 0, false)}, Uplinks: []paths.NIC{{Index: 7}}},
		Peers:      []paths.Peer{{Name: "node2"}},
	})
	nics := model.NICs()
	if len(nics) != 2 || nics[0].Up || !nics[1].Up || nics[0].Capacity != 5_000_000 || nics[0].Number == nics[1].Number {
		t.Errorf("a NIC that cannot be used is there and not up, a path without a NIC is left out: %+v", nics)
	}
	if len(model.Paths) != 3 || !reflect.DeepEqual(model.Uplinks, []int{7}) || len(model.Peers) != 1 {
		t.Errorf("the model is %+v", model)
	}
	endpoint := model.Endpoint("a")
	wanted := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	if !reflect.DeepEqual(endpoint.Addresses, wanted) || endpoint.FullName() != "team/web" || model.Tenants["team"] == 0 {
		t.Errorf("the endpoint is %+v, the tenants %v", endpoint, model.Tenants)
	}
	if model.Endpoint("b") != nil || len(model.Chains()["chain"]) != 1 {
		t.Errorf("an endpoint that is not there: %v; the chains are %v", model.Endpoint("b"), model.Chains())
	}
}

func TestWithoutAPlanAModelIsEmpty(t *testing.T) {
	builder := NewBuilder(OpenRegistry(filepath.Join(bpffs(t), "braid"), logr.Discard()))
	model := build(t, builder, Sources{Peers: []paths.Peer{{Name: "node2"}}})
	if len(model.Paths)+len(model.Endpoints)+len(model.Chains()) != 0 || model.Validate() != nil {
		t.Errorf("the model is %+v", model)
	}
}
