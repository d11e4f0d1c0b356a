// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/guard"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

func TestTheGuardGetsWhatThePlanAndTheNodeSay(t *testing.T) {
	limits := &v1alpha1.PlanGuard{MaxRate: 1_000_000, SpoofCheck: true}
	tenants := []v1alpha1.PlanTenant{{Namespace: "team", Paths: []v1alpha1.PlanTenantPath{{Path: "blue", Weight: 3}}}}
	plan := &v1alpha1.MPTCPNodePlan{Spec: v1alpha1.MPTCPNodePlanSpec{
		Paths: []v1alpha1.PlanPath{{Name: "blue", Capacity: 5_000_000}, {Name: "green"}},
		Endpoints: []v1alpha1.PlanEndpoint{
			{UID: "a", Namespace: "team", Name: "web", Addresses: []string{"10.1.0.2", "fd00::2"}, Guard: limits},
			{UID: "b", Namespace: "other", Name: "db", Addresses: []string{"10.1.0.3"}},
		},
		Tenants: tenants,
	}}
	r := round{news: &news{plan: plan}, resolution: paths.Resolution{
		Paths:   []paths.Path{{Name: "blue", NIC: paths.NIC{Index: 7}}, {Name: "green"}},
		Uplinks: []paths.NIC{{Index: 9}},
	}}
	g := &guarding{interfaces: map[types.UID]int{"gone": 3, "b": 5}}
	g.remember(plan.Spec.Endpoints, map[types.UID]endpoints.Endpoint{"a": {HostIndex: 4}})
	expected := guard.State{
		Paths: []guard.Path{{Name: "blue", Interface: 7, Capacity: 5_000_000}}, Uplinks: []int{9}, Tenants: tenants,
		Endpoints: []guard.Endpoint{
			{UID: "a", Namespace: "team", Name: "web", Addresses: addresses("10.1.0.2", "fd00::2"), Interface: 4, Guard: limits},
			{UID: "b", Namespace: "other", Name: "db", Addresses: addresses("10.1.0.3"), Interface: 5},
		},
	}
	if state := g.state(r); !reflect.DeepEqual(state, expected) {
		t.Errorf("the guard gets\n%+v instead of\n%+v", state, expected)
	}
	if state := g.state(round{news: &news{}}); !reflect.DeepEqual(state, guard.State{}) {
		t.Errorf("without a plan the guard gets %+v", state)
	}
}

func addresses(texts ...string) (parsed []netip.Addr) {
	for _, text := range texts {
		parsed = append(parsed, netip.MustParseAddr(text))
	}
	return parsed
}
