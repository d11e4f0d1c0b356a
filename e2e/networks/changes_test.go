// SPDX-License-Identifier: Apache-2.0

package networks_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// overlayChanges are what cluster networks do to their overlays when they are started again or set up
// otherwise, in this order.
var overlayChanges = []struct {
	what string
	make func(*cluster, *testing.T)
}{
	{"its device is made anew", (*cluster).renewOverlay},
	{"its port changes", (*cluster).changeOverlaysPort},
	{"a node has another address in it", (*cluster).moveTunnelEnd},
}

// expectOverlayToChangeAndBack makes all of them. What is left at the end is compared with what was before,
// and the devices have their indexes in it.
func (c *cluster) expectOverlayToChangeAndBack(t *testing.T) {
	indexes := map[*network.Node]int{}
	for _, node := range c.Network.Nodes {
		index, err := node.Index(network.TunnelDevice)
		require.NoError(t, err)
		indexes[node] = index
	}
	for _, change := range overlayChanges {
		t.Run(change.what, func(t *testing.T) { c.expectOverlayToChange(t, change.make) })
	}
	for node, index := range indexes {
		node.TunnelIndex = index
	}
	c.relayOverlay(t, c.Network.Nodes...)
}

// expectOverlayToChange has the overlay change while a connection lasts. No byte is lost, all NICs
// carry the connection afterwards, and the tenant has no more than its ceilings.
func (c *cluster) expectOverlayToChange(t *testing.T, change func(*cluster, *testing.T)) {
	c.awaitSteered(t)
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, time.Minute))
	r.SleepUntil(testlab.Warmup)
	c.awaitAll(t, r)
	change(c, t)
	changed := time.Now()
	c.awaitAll(t, r)
	t.Logf("all NICs carry their share %v after the change", time.Since(changed))
	r.StopSending()
	r.Finish(t)
	c.ExpectFloodWithin(t, c.Network.Pod("tenant-client"), testlab.Flood{To: testlab.UDPTo(c.Network.Pod("tenant-server").IPv4)})
}

// awaitAll waits until all NICs of the sender's node carry their share, and just these of its paths.
func (c *cluster) awaitAll(t *testing.T, r *testlab.Running) {
	t.Helper()
	const window = 300 * time.Millisecond
	c.WaitFor(t, "all NICs carry a share", 30*time.Second, func(context.Context) error {
		wire, begin := c.Record(c.Network.Pod(r.From).Node), time.Now()
		time.Sleep(window)
		wire.Stop()
		if rates := wire.Rates(begin, time.Now()); !slices.Equal(rates.Used(), paths) {
			return fmt.Errorf("they carry %v", rates)
		}
		return nil
	})
}

// away is how long a node has no overlay while it is laid anew.
const away = 300 * time.Millisecond

func (c *cluster) relayOverlay(t *testing.T, nodes ...*network.Node) {
	t.Helper()
	for _, node := range nodes {
		require.NoError(t, node.CutOverlay())
	}
	time.Sleep(away)
	for _, node := range nodes {
		require.NoError(t, node.LayOverlay())
	}
}

func (c *cluster) renewOverlay(t *testing.T) {
	c.relayOverlay(t, c.Network.Pod("client").Node)
	c.relayOverlay(t, c.Network.Pod("server").Node)
}

// changeOverlaysPort has all nodes use the port that VXLAN has by its standard.
func (c *cluster) changeOverlaysPort(t *testing.T) {
	const port = 4789
	set := func(port int) {
		c.Network.Spec.Overlay.Port = port
		c.relayOverlay(t, c.Network.Nodes...)
	}
	set(port)
	t.Cleanup(func() { set(network.TunnelPort) })
	c.awaitSteered(t)
}

// awaitSteered waits until all nodes' status shows that the overlay is steered, with its port.
// Connections that begin before stay on the cluster network's path.
func (c *cluster) awaitSteered(t *testing.T) {
	t.Helper()
	port := cmp.Or(c.Network.Spec.Overlay.Port, network.TunnelPort)
	c.WaitFor(t, "the status shows the overlay's port", 20*time.Second, func(ctx context.Context) error {
		for _, each := range c.Network.Nodes {
			node := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: each.NodeName()}}
			if err := c.Get(ctx, node); err != nil {
				return err
			}
			overlays := node.Status.Overlays
			if len(overlays) != 1 || int(overlays[0].Port) != port || !overlays[0].Steered {
				return fmt.Errorf("%s shows %+v", node.Name, overlays)
			}
		}
		return nil
	})
}

// moveTunnelEnd gives the server's node another address on the first path in the place of its own:
// the overlay goes there, and the Node says so.
func (c *cluster) moveTunnelEnd(t *testing.T) {
	const address = "10.20.0.102"
	node := c.Network.Pod("server").Node
	require.NoError(t, node.Sysctl("net.ipv4.conf."+paths[0]+".promote_secondaries", "1"))
	move := func(from, to string) {
		require.NoError(t, node.AddAddress(paths[0], to+"/24"))
		c.setInternalIP(t, node.NodeName(), from, to)
		node.TunnelEnd = to
		require.NoError(t, node.CutOverlay())
		for _, each := range c.Network.Nodes {
			require.NoError(t, each.LayOverlay())
		}
		out, err := node.Run("ip", "address", "delete", from+"/24", "dev", paths[0])
		require.NoError(t, err, out)
		for _, pod := range node.Pods { // the kernel has removed what had that source
			require.NoError(t, node.AddRoute(network.Route{Destination: pod.IPv4 + "/32", Interface: pod.HostInterface, Source: to}))
		}
	}
	old := node.Address(0, 4)
	move(old, address)
	t.Cleanup(func() { move(address, old) })
}

func (c *cluster) setInternalIP(t *testing.T, name, old, address string) {
	t.Helper()
	var node corev1.Node
	node.Name = name
	ctx := context.Background() // also when the test has ended
	require.NoError(t, c.Get(ctx, &node))
	for i := range node.Status.Addresses {
		if node.Status.Addresses[i].Address == old {
			node.Status.Addresses[i].Address = address
		}
	}
	require.NoError(t, c.Client.Status().Update(ctx, &node))
}

// expectOwnTunnelPacketsToChangeNothing has a pod put packets of another tenant's connection into the
// overlay itself, by sending what a node would. The server's node takes them out: the overlay asks nobody
// who they are. Each flow keeps its path all the same, and the connection lasts.
func (c *cluster) expectOwnTunnelPacketsToChangeNothing(t *testing.T) {
	server := c.Network.Pod("server")
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, time.Minute))
	r.SleepUntil(testlab.Warmup)
	c.awaitAll(t, r)
	before := c.Flows(t, server.Node)
	var forged [][]byte
	for _, subflow := range r.Subflows(t) {
		segment := testlab.Forgery{From: subflow.Local, To: subflow.Remote, Sequence: 4242, Answer: 4242}
		for _, flags := range []byte{testlab.SYN, testlab.RST, testlab.RST | testlab.ACK, testlab.FIN | testlab.ACK, testlab.ACK} {
			segment.Flags, segment.Options = flags, nil
			if flags == testlab.SYN {
				segment.Options = testlab.Capable
			}
			forged = append(forged, segment.Packet())
		}
	}
	const times = 300
	testlab.Encapsulate(t, c.Network.Pod("tenant-client"), server.Node, times, forged...)
	c.expectOwnTunnelPacketsToArrive(t)
	c.awaitAll(t, r)
	require.Equal(t, before, c.Flows(t, server.Node))
	require.Len(t, r.Subflows(t), len(paths))
	r.StopSending()
	r.Finish(t)
}

// expectOwnTunnelPacketsToArrive: without that the test would show nothing. What docs/isolation.md has
// admins do keeps them away.
func (c *cluster) expectOwnTunnelPacketsToArrive(t *testing.T) {
	t.Helper()
	from, to := c.Network.Pod("tenant-client"), c.Network.Pod("tenant-server")
	var socket net.PacketConn
	require.NoError(t, to.Do(func() (err error) {
		socket, err = net.ListenPacket("udp4", to.IPv4+":0")
		return err
	}))
	defer socket.Close()
	client := testlab.AddrPort(c.Network.Pod("client").IPv4, 5555)
	datagram := testlab.UDP(client, netip.MustParseAddrPort(socket.LocalAddr().String()), []byte("hello"))
	arrives := func(patience time.Duration) error {
		testlab.Encapsulate(t, from, to.Node, 1, datagram)
		require.NoError(t, socket.SetReadDeadline(time.Now().Add(patience)))
		_, sender, err := socket.ReadFrom(make([]byte, 100))
		if err == nil {
			require.Equal(t, client.String(), sender.String())
		}
		return err
	}
	require.NoError(t, arrives(5*time.Second))
	rules := fmt.Sprintf("add table inet tunnels; add chain inet tunnels pods { type filter hook prerouting priority raw; }; "+
		"add rule inet tunnels pods iifname { %q, %q } udp dport %d drop", from.HostInterface, network.TunnelDevice, network.TunnelPort)
	out, err := from.Node.Run("nft", rules)
	require.NoError(t, err, out)
	require.ErrorIs(t, arrives(500*time.Millisecond), os.ErrDeadlineExceeded)
	out, err = from.Node.Run("nft", "delete table inet tunnels")
	require.NoError(t, err, out)
	require.NoError(t, arrives(5*time.Second))
}
