// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
	"braid.dev/braid/proxy"
)

var threePaths = []string{"blue", "green", "red"}

// lab is two nodes, both of which steer: pods of the first one are relayed, and the second
// one has servers.
type lab struct {
	*network.Network
	proxy  *proxy.Proxy
	client *network.Pod
	// mostWaiting is what may wait in connections; 0 for the default.
	mostWaiting int
	server      *network.Pod
}

func newLab(t *testing.T) *lab {
	t.Helper()
	pins := testutil.BPFFS(t)
	l := &lab{Network: network.ForTest(t, network.Spec{Nodes: 2, Paths: threePaths, LinkMbit: 100, PodsPerNode: 1, GuestsPerNode: 1})}
	l.client, l.server = l.Pod("pod-1-1"), l.Pod("pod-2-1")
	for i, on := range l.Nodes {
		options := datapath.Options{PinPath: filepath.Join(pins, fmt.Sprint(i)), FlowEntries: 4096, Log: testr.New(t)}
		opened, builder := datapath.Open(options), nodetest.NewBuilder(options.PinPath)
		t.Cleanup(func() {
			require.NoError(t, on.Do(func() error { return opened.Remove(context.Background()) }))
			require.NoError(t, builder.Close())
		})
		require.NoError(t, on.Do(func() error { return l.state(t, i).Apply(t.Context(), opened, builder) }))
	}
	return l
}

// state is that of a node, all of whose pods are steered.
func (l *lab) state(t *testing.T, number int) (state nodetest.State) {
	t.Helper()
	on, other := l.Nodes[number], l.Nodes[1-number]
	peer := nodetest.Peer{Name: other.NodeName(), Paths: map[string]nodetest.PeerPath{}}
	for p, path := range threePaths {
		state.Paths = append(state.Paths, nodetest.Path{Name: path, Interface: indexOf(t, on, path), Up: true})
		addresses := []netip.Addr{netip.MustParseAddr(other.Address(p, 4)), netip.MustParseAddr(other.Address(p, 6))}
		peer.Addresses = append(peer.Addresses, addresses...)
		peer.Paths[path] = nodetest.PeerPath{Addresses: addresses, Up: true}
	}
	state.Peers = []nodetest.Peer{peer}
	for _, pod := range on.Pods {
		endpoint := nodetest.Endpoint{Interface: indexOf(t, on, pod.HostInterface), Addresses: addressesOf(pod)}
		for _, path := range threePaths {
			endpoint.Paths = append(endpoint.Paths, v1alpha1.PathWeight{Path: v1alpha1.PathName(path), Weight: 1})
		}
		state.Endpoints = append(state.Endpoints, endpoint)
	}
	return state
}

func addressesOf(pod *network.Pod) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(pod.IPv4), netip.MustParseAddr(pod.IPv6)}
}

func indexOf(t *testing.T, on *network.Node, name string) int {
	t.Helper()
	index, err := on.Index(name)
	require.NoError(t, err)
	return index
}

// clientAt is a pod whose connections are to have three subflows.
func clientAt(t *testing.T, pod *network.Pod) proxy.Client {
	t.Helper()
	return proxy.Client{
		Interface: indexOf(t, pod.Node, pod.HostInterface), Addresses: addressesOf(pod),
		Subflows: pathmanager.Settings{Manager: v1alpha1.SubflowManagerAgent, Count: 3},
	}
}

// start relays a pod's connections until the test ends.
func (l *lab) start(t *testing.T, pod *network.Pod) {
	t.Helper()
	l.client = pod
	node, err := os.Open(pod.Node.Path())
	require.NoError(t, err)
	t.Cleanup(func() { node.Close() })
	l.proxy, err = proxy.Open(proxy.Options{Node: node, StatePath: t.TempDir(), MostWaiting: l.mostWaiting, Log: testr.New(t)})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- l.proxy.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ran)
		require.NoError(t, l.proxy.Close())
	})
	require.NoError(t, l.proxy.Apply(t.Context(), []proxy.Client{clientAt(t, pod)}))
}

// listen serves at a pod; each accepted connection comes out of the channel.
func listen(t *testing.T, pod *network.Pod, version int) (netip.AddrPort, <-chan *net.TCPConn) {
	t.Helper()
	listener, err := pod.Listen(t.Context(), "tcp", netip.AddrPortFrom(addressesOf(pod)[version/6], 0).String())
	require.NoError(t, err)
	return serve(t, listener)
}

func (l *lab) dial(t *testing.T, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	connection, err := l.client.DialBy(t.Context(), network.TCP, "tcp", to.String())
	require.NoError(t, err)
	t.Cleanup(func() { connection.Close() })
	return connection.(*net.TCPConn)
}

func forBoth(t *testing.T, test func(t *testing.T, version int)) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) { test(t, version) })
	}
}

type errCount int

func (e errCount) Error() string { return fmt.Sprintf("%d connections are relayed", int(e)) }

func portOf(address netip.AddrPort) string { return strconv.Itoa(int(address.Port())) }

// nft changes the rules of a node, which end with its namespace.
func (l *lab) nft(t *testing.T, on *network.Node, rules string) {
	t.Helper()
	_, err := on.Run("nft", rules)
	require.NoError(t, err)
}

// listenPlain is listen with a socket of plain TCP.
func listenPlain(t *testing.T, pod *network.Pod, version int) (netip.AddrPort, <-chan *net.TCPConn) {
	t.Helper()
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	var listener net.Listener
	require.NoError(t, pod.Do(func() (err error) {
		listener, err = config.Listen(t.Context(), "tcp", netip.AddrPortFrom(addressesOf(pod)[version/6], 0).String())
		return err
	}))
	return serve(t, listener)
}

func serve(t *testing.T, listener net.Listener) (netip.AddrPort, <-chan *net.TCPConn) {
	t.Cleanup(func() { listener.Close() })
	accepted := make(chan *net.TCPConn, 16)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- connection.(*net.TCPConn)
		}
	}()
	return listener.Addr().(*net.TCPAddr).AddrPort(), accepted
}
