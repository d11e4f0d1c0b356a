// SPDX-License-Identifier: Apache-2.0

// Package attacks_test tries what a hostile pod, tenant, node or neighbour would, on a
// real API server, with the real controller and agents and their real tokens, while
// another tenant's connection runs and its new pods are programmed. docs/isolation.md
// lists the attempts; docs/developing.md says how to add one.
package attacks_test

import (
	"testing"

	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

// The links are slow, so that it is not the processor that is full.
const linkMbit = 30

// The pods of the lab: client and server of the namespace shop are the victims. Those of
// the namespace tenant are the attacker's, within guardrails: mallory shares the node of
// the client. The stranger has a node of its own and no guardrail.
var shared = testlab.NewShared(lab.Options{
	Name:    "attacks",
	Network: network.Spec{Nodes: 3, Paths: []string{"blue", "green", "red"}, LinkMbit: linkMbit},
	Pods: []lab.Pod{
		{Namespace: "shop", Name: "client", Node: 1, Labels: app("client")},
		{Namespace: "shop", Name: "server", Node: 2, Labels: app("server"), Serves: true},
		{Namespace: tenant, Name: "mallory", Node: 1, Labels: app("client")},
		{Namespace: tenant, Name: "accomplice", Node: 2, Labels: app("server"), Serves: true},
		{Namespace: "wild", Name: "stranger", Node: 3, Labels: app("stranger")},
	},
})

// tenant is the attacker's namespace.
const tenant = "tenant"

func app(name string) map[string]string { return map[string]string{"app": name} }

func TestMain(m *testing.M) { shared.Main(m) }

// The tenant may send podMbit from each pod, and not over red.
const (
	podMbit    = 2
	guardrails = testlab.GuardrailsOfTenant + `
  paths: [blue, green]
  maxPodRate: 2M
  newPods: Guard
`
)
