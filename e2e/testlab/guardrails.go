// SPDX-License-Identifier: Apache-2.0

package testlab

import "testing"

// Slack is what a measurement may find beyond a rate that is kept.
const Slack = 1.1

// Stray is what a path may carry in Mbit/s that carries no connection: probes and the
// neighbours' discovery.
const Stray = 1

// What guardrails of all pods of a namespace begin with; the rest of their spec comes behind.
const (
	GuardrailsOfShop   = guardrails + "shop" + allPods
	GuardrailsOfTenant = guardrails + "tenant" + allPods

	guardrails = `
apiVersion: braid.dev/v1alpha1
kind: MPTCPGuardrail
metadata:
  name: tenants
spec:
  namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: `
	allPods = `
  podSelector: {}`
)

// The guardrails of the namespace tenant, in Mbit/s.
const (
	tenantPodRate = 10
	tenantCeiling = 6
)

// TenantGuardrails keep the pods of the namespace tenant within these rates, off the path red.
const TenantGuardrails = GuardrailsOfTenant + `
  paths: [blue, green]
  maxPodRate: 10M
  tenantPaths:
  - {path: blue, maxRate: 6M}
  - {path: green, maxRate: 6M}
`

// ExpectCeilings fails where paths carry more of what the tenant's node sends than they may.
func ExpectCeilings(t testing.TB, what string, wire Rates) {
	t.Helper()
	t.Logf("%s: %v", what, wire)
	for _, path := range []string{"blue", "green"} {
		if wire[path] > tenantCeiling*Slack {
			t.Errorf("%s: %s carries %.1f Mbit/s, and may carry %d", what, path, wire[path], tenantCeiling)
		}
	}
	if wire["red"] > Stray {
		t.Errorf("%s: the forbidden path carries %.1f Mbit/s", what, wire["red"])
	}
	if all := wire.all(); all > tenantPodRate*Slack || all < tenantCeiling/2 {
		t.Errorf("%s: the pod sends %.1f Mbit/s, and may send %d", what, all, tenantPodRate)
	}
}

// all is the rate of all paths together.
func (s Rates) all() (rate float64) {
	for _, one := range s {
		rate += one
	}
	return rate
}
