// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"fmt"
	"net"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	hosts "braid.dev/braid/internal/lab/pair"
	"braid.dev/braid/internal/room"
)

// podOf is a host of a pair as a pod that opens two subflows for each connection.
func podOf(t *testing.T, tenant string, host *hosts.Host) node.Endpoint {
	t.Helper()
	var status unix.Stat_t
	require.NoError(t, unix.Stat(host.Path(), &status))
	return node.Endpoint{
		PlanEndpoint: &v1alpha1.PlanEndpoint{
			Namespace: tenant, Name: "pod", Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerAgent, Count: 2},
		},
		Found: &endpoints.Endpoint{Inode: status.Ino, Path: host.Path()},
	}
}

// openMany opens connections that last until the test ends.
func openMany(t *testing.T, host *hosts.Host, to string, count int) (opened []net.Conn) {
	t.Helper()
	for range count {
		connection, err := host.Dial(t.Context(), "tcp", to)
		require.NoError(t, err)
		t.Cleanup(func() { connection.Close() })
		_, err = connection.Write([]byte{1})
		require.NoError(t, err)
		opened = append(opened, connection)
	}
	return opened
}

func TestAPodThatOpensThousandsOfConnectionsIsToldOfItsShare(t *testing.T) {
	const size, share, many = 600, 200, 2000
	noisy, noisyServer := hosts.New(t)
	quiet, quietServer := hosts.New(t)
	pods := newPods(t)
	pods.namespace.Room = room.New(size)
	model := &node.Model{Endpoints: []node.Endpoint{podOf(t, "noisy", noisy), podOf(t, "quiet", quiet)}}
	model.Endpoints[0].UID, model.Endpoints[1].UID = "noisy", "quiet"
	report := pods.Apply(t.Context(), model)
	require.True(t, report.Done(), "%+v", report)

	openMany(t, noisy, noisy.Serve(4).String(), many/4) // to itself
	require.Zero(t, pods.namespace.Room.Held("noisy"))
	openMany(t, noisy, noisyServer.Serve(4).String(), many)
	hosts.Eventually(t, func() bool {
		return pods.namespace.Room.Held("noisy") == share && pods.managed[model.Endpoints[0].Found.Inode].Unmanaged() == many-share
	}, func() string { return fmt.Sprintf("%d connections are managed", pods.namespace.Room.Held("noisy")) })

	report = pods.Apply(t.Context(), model)
	statuses := report.Statuses(model)
	require.EqualValues(t, many-share, statuses[0].UnmanagedConnections)
	require.Contains(t, statuses[0].Message, "share")
	require.Equal(t, v1alpha1.EndpointProgrammed, statuses[0].State)
	require.Zero(t, statuses[1].UnmanagedConnections)
	require.Empty(t, statuses[1].Message)
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(pods))
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 4)

	opened := quiet.Connect(quietServer.Serve(4))
	quiet.ExpectSubflows(opened, 2)
}
