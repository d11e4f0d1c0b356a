// SPDX-License-Identifier: Apache-2.0

package spreading

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

// BenchmarkALookAtAPod is what an agent does for each pod and interval.
func BenchmarkALookAtAPod(b *testing.B) {
	n := network.ForTest(b, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1})
	pod, server := n.Nodes[0].Pods[0], n.Nodes[1].Pods[0]
	listener, err := server.Listen(context.Background(), "tcp", net.JoinHostPort(server.IPv4, "5001"))
	require.NoError(b, err)
	b.Cleanup(func() { listener.Close() })
	go func() {
		for {
			if _, err := listener.Accept(); err != nil {
				return // what was accepted ends with the namespace
			}
		}
	}()
	index, err := n.Nodes[0].Index("blue")
	require.NoError(b, err)
	handle, err := n.Nodes[0].Handle()
	require.NoError(b, err)
	model := &node.Model{Paths: []node.Path{{Name: "blue", Interface: index, Up: true}}}
	endpoint := &node.Endpoint{PlanEndpoint: &v1alpha1.PlanEndpoint{Name: "pod"}, Found: &endpoints.Endpoint{Path: pod.Path()}}
	open := 0
	for _, connections := range []int{0, 100, 1000} {
		for ; open < connections; open++ {
			connection, err := pod.Dial(context.Background(), "tcp", listener.Addr().String())
			require.NoError(b, err)
			b.Cleanup(func() { connection.Close() })
		}
		b.Run(fmt.Sprintf("%d connections", connections), func(b *testing.B) {
			b.ReportAllocs()
			before := map[ends]keptSocket{}
			for b.Loop() {
				l := look{endpoint: endpoint, before: before, flows: &datapath.FlowTable{}, atlas: newAtlas(model, handle, nil), keep: func() bool { return true }}
				require.NoError(b, l.run())
				require.Len(b, l.now, connections)
				before = l.now
			}
		})
	}
}
