// SPDX-License-Identifier: Apache-2.0

package proxy

import "sync"

// dialing bounds the threads that wait for servers. A namespace may have as many as are left
// then: one that asks only silent servers takes half of them, several never take all, and
// whoever comes later has some.
type dialing struct {
	mu       sync.Mutex
	all      int
	byTenant map[string]int
}

func newDialing() *dialing { return &dialing{byTenant: map[string]int{}} }

// begin is false where a tenant's share is used.
func (d *dialing) begin(tenant string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byTenant[tenant] >= mostDialing-d.all {
		return false
	}
	d.all++
	d.byTenant[tenant]++
	return true
}

func (d *dialing) end(tenant string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all--
	if d.byTenant[tenant]--; d.byTenant[tenant] == 0 {
		delete(d.byTenant, tenant)
	}
}
