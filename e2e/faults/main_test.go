// SPDX-License-Identifier: Apache-2.0

// Package faults_test breaks things in a cluster with the real API server, controller and
// agents, and shows that users are told: by kubectl braid status, by kubectl braid explain,
// by an Event or by an alert, and what to do about it.
package faults_test

import (
	"testing"
	"time"

	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

const (
	labName = "faults"
	// linkMbit is what each NIC carries.
	linkMbit = 30
	shop     = "shop"
	// interval is between two looks of the agents at traffic, which users leave at half a
	// minute.
	interval          = time.Second
	controllerMetrics = "127.0.0.1:19478"
)

// paths of each node: that of the cluster network's own routes first, and one for each
// fault of a NIC that is made at a time, since a path's condition tells of its worst node.
var paths = []string{"blue", "green", "red", "gold", "grey", "pink"}

var shared = testlab.NewShared(lab.Options{
	Name:    labName,
	Network: network.Spec{Nodes: 3, Paths: paths, LinkMbit: linkMbit},
	Pods: []lab.Pod{pod("client", 1), pod("server", 2), pod("third", 3), pod("plain", 1), pod("loner", 1), pod("stranger", 3),
		pod("tcp", 1), pod("lonely", 1), pod("bound", 1), pod("old", 1), pod("walled", 1), pod("muted", 1), pod("cut", 1), pod("large", 1)},
	SpreadingInterval: interval,
	ControllerMetrics: controllerMetrics,
})

// overlaid has a network that encapsulates what pods send. Its controller serves no metrics:
// two of them on one machine cannot.
var overlaid = testlab.NewShared(lab.Options{
	Name:              labName + "overlay",
	Network:           network.Spec{Nodes: 2, Paths: paths[:2], LinkMbit: linkMbit, Overlay: network.Overlay{Outer: 4}},
	Pods:              []lab.Pod{pod("inner", 1), pod("server", 2)},
	SpreadingInterval: interval,
})

func pod(name string, node int) lab.Pod {
	return lab.Pod{Namespace: shop, Name: name, Node: node, Labels: map[string]string{"app": name}, Serves: node > 1}
}

func TestMain(m *testing.M) { shared.Main(m) }
