// SPDX-License-Identifier: Apache-2.0

// Package soak_test lets a cluster live through what wears agents out, again and again:
// pods that die without a word, 100,000 connections of one tenant, full maps, agents that
// are killed. Another tenant's connection must not suffer, and at the end nothing may be
// left. `make soak` does it for half an hour, `make test` for two minutes.
package soak_test

import (
	"fmt"
	"os"
	"testing"

	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

const (
	labName = "soak"
	// The links are slow, so that it is not the processor that is full.
	linkMbit = 30
	// crowd is the namespace of the tenant that wears everything out.
	crowd = "crowd"
	// holders are the pods that share the tenant's connections: one process may have
	// 20,000 descriptors, and one address an eighth of the table of flows.
	holders = 8
	// resident are the crowd's pods that stay.
	resident = holders + 2
)

// The pods of the lab: client and server of the namespace shop are those who must not
// suffer. The connections of the crowd go from node2 to node1, against the shop's bytes.
var shared = testlab.NewShared(lab.Options{
	Name:    labName,
	Network: network.Spec{Nodes: 3, Paths: []string{"blue", "green", "red"}, LinkMbit: linkMbit},
	Pods:    pods(),
})

func pods() []lab.Pod {
	all := []lab.Pod{
		{Namespace: "shop", Name: "client", Node: 1, Labels: app("client")},
		{Namespace: "shop", Name: "server", Node: 2, Labels: app("server")},
		{Namespace: crowd, Name: "listener", Node: 1, Labels: app("crowd")},
		{Namespace: crowd, Name: "echo", Node: 1, Labels: app("crowd")},
		{Namespace: "wild", Name: "stranger", Node: 3, Labels: app("stranger")},
	}
	for i := range holders {
		all = append(all, lab.Pod{Namespace: crowd, Name: holder(i), Node: 2, Labels: app("crowd")})
	}
	return all
}

func holder(i int) string { return fmt.Sprint("holder-", i) }

func app(name string) map[string]string { return map[string]string{"app": name} }

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := runRole(role); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	shared.Main(m)
}
