// SPDX-License-Identifier: Apache-2.0

package pathmanager_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/agent/pathmanager/conntrack"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/pair"
)

// services are the addresses of a Service, by IP version; their port is not the
// backends'.
var services = map[int]netip.AddrPort{
	4: netip.MustParseAddrPort("10.96.0.10:80"),
	6: netip.MustParseAddrPort("[fd00:96::10]:80"),
}

const backendPort = 8080

// cluster is a pod, and a Service with two backends on another node. Each new
// connection to the Service goes to the backend whose turn it is.
type cluster struct {
	client   *pair.Host
	backends []*pair.Host
	node     *network.Node // of the client
}

func newCluster(t *testing.T, version int) *cluster {
	t.Helper()
	lab := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"red"}, PodsPerNode: 2})
	host := func(pod *network.Pod) *pair.Host { return pair.HostOf(t, pod.Namespace, pod.IPv4, pod.IPv6) }
	c := &cluster{node: lab.Nodes[0], client: host(lab.Nodes[0].Pods[0])}
	for _, pod := range lab.Nodes[1].Pods {
		backend := host(pod)
		backend.ServeAt(netip.AddrPortFrom(backend.Address(version), backendPort))
		c.backends = append(c.backends, backend)
	}
	c.translate(t, version)
	return c
}

// translate makes the client's node do for the Service what kube-proxy does.
func (c *cluster) translate(t *testing.T, version int) {
	t.Helper()
	family := "ip"
	if version == 6 {
		family = "ip6"
	}
	service := services[version]
	rules := fmt.Sprintf(`table %[1]s services {
		chain prerouting {
			type nat hook prerouting priority dstnat
			%[1]s daddr %[2]s tcp dport %[3]d dnat to numgen inc mod 2 map { 0 : %[4]s, 1 : %[5]s } : %[6]d
		}
	}`, family, service.Addr(), service.Port(), c.backends[0].Address(version), c.backends[1].Address(version), backendPort)
	path := t.TempDir() + "/rules"
	require.NoError(t, os.WriteFile(path, []byte(rules), 0o600))
	_, err := c.node.Run("nft", "-f", path)
	require.NoError(t, err)
}

// manage configures the client, with the node's translations or without them.
func (c *cluster) manage(t *testing.T, wanted pathmanager.Settings, translations bool) {
	t.Helper()
	options := pathmanager.Options{StatePath: t.TempDir(), Log: testr.New(t)}
	if translations {
		options.Destination = c.table(t).Destination
	}
	namespace, err := pathmanager.Open(c.client.Path(), options)
	require.NoError(t, err)
	t.Cleanup(func() { namespace.Close() })
	require.NoError(t, namespace.Configure(context.Background(), wanted))
}

func (c *cluster) table(t *testing.T) *conntrack.Table {
	t.Helper()
	file, err := os.Open(c.node.Path())
	require.NoError(t, err)
	defer file.Close()
	table, err := conntrack.Dial(int(file.Fd()))
	require.NoError(t, err)
	t.Cleanup(func() { table.Close() })
	return table
}

// expectBackend expects a connection's further subflows to go to a backend, and
// the peers of them all to be the same one.
func (c *cluster) expectBackend(t *testing.T, connection net.Conn, version, count int) {
	t.Helper()
	expectSteady(t, c.client, connection, count)
	remotes := map[netip.Addr]int{}
	for _, subflow := range c.client.Subflows(connection.LocalAddr()) {
		if !subflow.First {
			remotes[subflow.Remote.Addr()]++
		}
	}
	first, second := remotes[c.backends[0].Address(version)], remotes[c.backends[1].Address(version)]
	if first+second != count-1 || first != 0 && second != 0 {
		t.Errorf("further subflows go to %v, not to one of the backends", remotes)
	}
}

// both connects so often that each backend has had its turn.
func (c *cluster) both(t *testing.T, version int) (connections []net.Conn) {
	t.Helper()
	for range 4 {
		connections = append(connections, c.client.Connect(services[version]))
	}
	return connections
}

func TestSubflowsToAServiceGoToTheBackendOfTheFirst(t *testing.T) {
	t.Parallel()
	for _, version := range []int{4, 6} {
		for _, servers := range []v1alpha1.SubflowManager{agent, kernel} {
			t.Run(fmt.Sprintf("Agent/IPv%d/backends with manager %s", version, servers), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, version)
				for _, backend := range c.backends {
					manage(t, backend, servers, 3)
				}
				c.manage(t, settings(c.client, agent, 3), true)
				for _, connection := range c.both(t, version) {
					c.expectBackend(t, connection, version, 3)
				}
			})
		}
	}
	t.Run("Kernel/IPv4", func(t *testing.T) {
		t.Parallel()
		c := newCluster(t, 4)
		for _, backend := range c.backends {
			manage(t, backend, kernel, 3)
		}
		c.manage(t, settings(c.client, kernel, 3), true)
		for _, connection := range c.both(t, 4) {
			c.expectBackend(t, connection, 4, 3)
		}
	})
}

func TestSubflowsToAServiceAreOpenedAgainToItsBackend(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 4)
	for _, backend := range c.backends {
		manage(t, backend, agent, 3)
	}
	c.manage(t, settings(c.client, agent, 3), true)
	for _, connection := range c.both(t, 4) {
		c.client.ExpectSubflows(connection, 3)
		killOne(t, c.client, connection)
		c.expectBackend(t, connection, 4, 3)
	}
}

// Where the node knows of no translation, as with a load balancer of its own, the
// backends' announcements show the way.
func TestAnnouncementsShowTheBackendWhereTheNodeDoesNot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 4)
	for _, backend := range c.backends {
		manage(t, backend, kernel, 3)
	}
	c.manage(t, settings(c.client, agent, 3), false)
	for _, connection := range c.both(t, 4) {
		c.client.ExpectSubflows(connection, 3)
	}
}

func TestOneLookUpFindsWhereAConnectionGoes(t *testing.T) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) {
			c := newCluster(t, version)
			table := c.table(t)
			c.client.ServeAt(netip.AddrPortFrom(c.client.Address(version), 0))
			through := c.client.Connect(services[version])
			direct := netip.AddrPortFrom(c.backends[1].Address(version), backendPort)
			straight := c.client.Connect(direct)
			backend := destination(t, table, local(through), services[version])
			if backend.Port() != backendPort || backend.Addr() != c.backends[0].Address(version) {
				t.Errorf("a connection to the Service goes to %s", backend)
			}
			if got := destination(t, table, local(straight), direct); got != direct {
				t.Errorf("a connection to %s goes to %s", direct, got)
			}
			at := netip.AddrPortFrom(local(through).Addr(), 1)
			if got, found, err := table.Destination(at, direct); err != nil || found {
				t.Errorf("a connection that does not exist goes to %s (%v)", got, err)
			}
		})
	}
}

func local(connection net.Conn) netip.AddrPort {
	return netip.MustParseAddrPort(connection.LocalAddr().String())
}

func destination(t *testing.T, table *conntrack.Table, local, remote netip.AddrPort) netip.AddrPort {
	t.Helper()
	at, found, err := table.Destination(local, remote)
	require.NoError(t, err)
	if !found {
		t.Fatalf("the connection from %s to %s is not tracked", local, remote)
	}
	return at
}
