// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/guard"
	"braid.dev/braid/api/v1alpha1"
)

// guarding keeps the pods within the guardrails of the plan.
type guarding struct {
	guard *guard.Guard
	// interfaces are the host's ends of the pods' interfaces, as they were found last.
	interfaces map[types.UID]int
}

func openGuarding(options Options) *guarding {
	return &guarding{
		guard: guard.Open(guard.Options{
			PinPath:       filepath.Join(options.PinPath, "guard"),
			UplinkLinks:   filepath.Join(options.PinPath, "datapath", "*", "links", "to_uplink_%d"),
			EndpointLinks: filepath.Join(options.PinPath, "endpoints", "*", "links", "from_endpoint_%d"),
			Log:           options.Log.WithName("guard"),
		}),
		interfaces: map[types.UID]int{},
	}
}

// apply guards the pods, and notes in their results where that failed: a pod is not
// programmed while a guardrail is not kept.
func (g *guarding) apply(r round, found map[types.UID]endpoints.Endpoint, results []v1alpha1.EndpointStatus) error {
	g.remember(r.news.planEndpoints(), found)
	state := g.state(r)
	failures, whole := g.guard.Apply(state)
	guarded := state.Guarded()
	for i := range results {
		result := &results[i]
		failed := failures[result.UID]
		if guarded[result.UID] {
			failed = errors.Join(failed, whole)
		}
		if failed != nil && result.State == v1alpha1.EndpointProgrammed {
			result.State, result.Message = v1alpha1.EndpointFailed, shorten("guardrails are not kept: "+failed.Error())
			whole = errors.Join(whole, errUnfinished)
		}
	}
	return whole
}

// remember keeps the interface of a pod that is not found for a moment.
func (g *guarding) remember(wanted []v1alpha1.PlanEndpoint, found map[types.UID]endpoints.Endpoint) {
	before := g.interfaces
	g.interfaces = map[types.UID]int{}
	for i := range wanted {
		uid := wanted[i].UID
		if endpoint, here := found[uid]; here {
			g.interfaces[uid] = endpoint.HostIndex
		} else if index, known := before[uid]; known {
			g.interfaces[uid] = index
		}
	}
}

func (g *guarding) state(r round) guard.State {
	plan := r.news.plan
	if plan == nil {
		return guard.State{}
	}
	state := guard.State{Tenants: plan.Spec.Tenants}
	capacities := map[string]int64{}
	for _, path := range plan.Spec.Paths {
		capacities[string(path.Name)] = path.Capacity
	}
	for _, path := range r.resolution.Paths {
		if path.Index != 0 {
			state.Paths = append(state.Paths, guard.Path{Name: path.Name, Interface: path.Index, Capacity: capacities[path.Name]})
		}
	}
	for _, uplink := range r.resolution.Uplinks {
		state.Uplinks = append(state.Uplinks, uplink.Index)
	}
	for i := range plan.Spec.Endpoints {
		endpoint := &plan.Spec.Endpoints[i]
		state.Endpoints = append(state.Endpoints, guard.Endpoint{
			UID: endpoint.UID, Namespace: endpoint.Namespace, Name: endpoint.Name,
			Addresses: endpointAddresses(endpoint), Interface: g.interfaces[endpoint.UID], Guard: endpoint.Guard,
		})
	}
	return state
}
