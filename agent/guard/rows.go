// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/guard"
)

// rows are what the rows of the maps stand for: the numbers of the node's model. All
// rates are in bits a second, 0 for none.
type rows struct {
	paths     []pathRow
	tenants   map[string]*tenantRow // by namespace
	endpoints map[types.UID]*endpointRow
}

type pathRow struct {
	name     string
	number   uint32
	nic      int
	capacity float64 // where shares are to be kept
}

// tenantRow is a namespace with guarded endpoints.
type tenantRow struct {
	number   uint32
	ceilings [slots]float64
	weights  [slots]int32
}

// weight is the tenant's part of a path in relation to others.
func (t *tenantRow) weight(path uint32) float64 { return float64(max(1, t.weights[path])) }

type endpointRow struct {
	*node.Endpoint
	tenant  *tenantRow
	maxRate float64
}

// rowsOf are those of a model and of its guarded endpoints. Tenants without a ceiling
// or share are others' equals. Endpoints that the maps have no row for are failures.
func rowsOf(m *node.Model, guarded []*node.Endpoint, report *node.Report) *rows {
	r := &rows{tenants: map[string]*tenantRow{}, endpoints: map[types.UID]*endpointRow{}}
	limits := tenantPaths(m)
	numbers := map[v1alpha1.PathName]uint32{}
	shared := map[string]bool{}
	for _, paths := range limits {
		for _, path := range paths {
			shared[string(path.Path)] = shared[string(path.Path)] || path.Weight > 0
		}
	}
	for _, path := range m.NICs() {
		row := pathRow{name: path.Name, number: uint32(path.Number), nic: path.Interface}
		if shared[path.Name] {
			row.capacity = float64(path.Capacity)
		}
		r.paths = append(r.paths, row)
		numbers[v1alpha1.PathName(path.Name)] = row.number
	}
	for _, endpoint := range guarded {
		tenant := m.Tenants[endpoint.Namespace]
		if endpoint.Number > mostRows || tenant > mostRows {
			report.Fail(endpoint.UID, fmt.Errorf("a node can guard %d endpoints", mostRows))
			continue
		}
		r.add(endpoint, tenant, limits[endpoint.Namespace], numbers)
	}
	return r
}

func tenantPaths(m *node.Model) map[string][]v1alpha1.PlanTenantPath {
	paths := map[string][]v1alpha1.PlanTenantPath{}
	if m.Plan == nil {
		return paths
	}
	for _, tenant := range m.Plan.Spec.Tenants {
		paths[tenant.Namespace] = tenant.Paths
	}
	return paths
}

func (r *rows) add(endpoint *node.Endpoint, number uint32, limits []v1alpha1.PlanTenantPath, numbers map[v1alpha1.PathName]uint32) {
	tenant := r.tenants[endpoint.Namespace]
	if tenant == nil {
		tenant = &tenantRow{number: number}
		for _, limit := range limits {
			if path, here := numbers[limit.Path]; here {
				tenant.ceilings[path], tenant.weights[path] = float64(limit.MaxRate), limit.Weight
			}
		}
		r.tenants[endpoint.Namespace] = tenant
	}
	row := &endpointRow{Endpoint: endpoint, tenant: tenant}
	if endpoint.Guard != nil {
		row.maxRate = float64(endpoint.Guard.MaxRate)
	}
	r.endpoints[endpoint.UID] = row
}

// groups are the endpoints by their namespace, in an order that stays.
func (r *rows) groups() (groups [][]*endpointRow) {
	by := map[string][]*endpointRow{}
	for _, endpoint := range r.endpoints {
		by[endpoint.Namespace] = append(by[endpoint.Namespace], endpoint)
	}
	for _, members := range by {
		groups = append(groups, members)
	}
	slices.SortFunc(groups, func(a, b []*endpointRow) int { return cmp.Compare(a[0].Namespace, b[0].Namespace) })
	return groups
}

// emptyUnused empties the rows of what is gone, so that their next owners begin anew.
func (g *Guard) emptyUnused() error {
	g.newPods.mu.Lock()
	defer g.newPods.mu.Unlock()
	used := map[node.Kind]map[uint32]bool{node.KindPath: {}, node.KindTenant: {}, node.KindEndpoint: {}}
	for _, path := range g.rows.paths {
		used[node.KindPath][path.number] = true
	}
	for _, tenant := range g.rows.tenants {
		used[node.KindTenant][tenant.number] = true
	}
	for _, endpoint := range g.rows.endpoints {
		used[node.KindEndpoint][endpoint.Number] = true
	}
	for _, held := range g.newPods.held {
		used[node.KindEndpoint][held.row] = true
	}
	for _, row := range g.newPods.freed { // interfaces refer to them for a moment more
		used[node.KindEndpoint][row] = true
	}
	var failed error
	for kind, now := range used {
		for number := range g.filled[kind] {
			if !now[number] {
				failed = errors.Join(failed, g.empty(kind, number))
			}
		}
	}
	if failed != nil {
		return fmt.Errorf("failed to empty the counters of what is gone: %w", failed)
	}
	g.filled = used
	return nil
}

func (g *Guard) empty(kind node.Kind, number uint32) error {
	maps := g.loaded.Value.maps()
	switch kind {
	case node.KindPath:
		return maps.PathUsages.Put(number, guard.MeterPathUsage{})
	case node.KindTenant:
		return maps.TenantUsages.Put(number, guard.MeterTenantUsage{})
	}
	g.sharing.forget(number)
	return errors.Join(maps.Allowances.Put(number, guard.MeterAllowance{}), maps.Usages.Put(number, guard.MeterUsage{}))
}

// allRows are all that an earlier agent may have filled.
func allRows() map[node.Kind]map[uint32]bool {
	all := map[node.Kind]map[uint32]bool{node.KindPath: {}, node.KindTenant: {}, node.KindEndpoint: {}}
	for number := range uint32(slots) {
		all[node.KindPath][number] = true
	}
	for number := range uint32(mostRows) {
		all[node.KindTenant][number+1], all[node.KindEndpoint][number+1] = true, true
	}
	return all
}
