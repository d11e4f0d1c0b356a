// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"reflect"
	"strings"
	"time"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/internal/relayed"
)

const (
	// look is how often the agent's list is read.
	look = 500 * time.Millisecond
	// again is how often the clients are looked at where the list is the same.
	again = 2 * time.Second
)

// Follow relays those whom the agent of the node names in its directory, until the context
// ends.
func (p *Proxy) Follow(ctx context.Context, directory string) error {
	var applied []relayed.Endpoint
	var at time.Time
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		endpoints, err := relayed.Read(directory)
		if err != nil {
			p.options.Log.Error(err, "failed to learn whom to relay; the connections of those that are known go on")
		}
		if err == nil && (!reflect.DeepEqual(endpoints, applied) || time.Since(at) > again) {
			if err := p.Apply(ctx, clientsOf(endpoints)); err != nil {
				p.options.Log.Error(err, "failed to relay somebody; tried again")
			}
			applied, at = endpoints, time.Now()
		}
		p.tell()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// tenantOf is the namespace of an endpoint.
func tenantOf(name string) string {
	tenant, _, _ := strings.Cut(name, "/")
	return tenant
}

func clientsOf(endpoints []relayed.Endpoint) (clients []Client) {
	for _, endpoint := range endpoints {
		subflows := endpoint.Subflows
		clients = append(clients, Client{Interface: endpoint.Interface, Tenant: tenantOf(endpoint.Name), Addresses: endpoint.Addresses, Subflows: pathmanager.Settings{
			Manager: subflows.Manager, Count: int(subflows.Count), Reopen: subflows.Reopen,
			OpenAfter: pathmanager.OpenAfter{
				Bytes: uint64(subflows.OpenAfterBytes), Time: time.Duration(subflows.OpenAfterMillis) * time.Millisecond,
			},
		}})
	}
	return clients
}
