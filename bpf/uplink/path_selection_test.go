// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

const allPaths = 1<<blue | 1<<green | 1<<red

// The numbers that stand for connections in these tests.
const (
	key   = 0x1122334455667788
	token = 0xabcdef01
)

// end sends a segment with these flags in both directions.
func (n *node) end(t testutil.TB, e ends, flags uint8) {
	t.Helper()
	last := e.out().with(func(s *segment) { s.flags = flags })
	n.egress(t, blue, last.frame())
	n.ingress(t, blue, last.flip().frame())
}

// joinOn begins a joining subflow from this port, up to its answer, and returns its path.
func (n *node) joinOn(t testutil.TB, e ends, port uint16) int {
	t.Helper()
	s := e.port(port).syn(join(token))
	verdict := n.egress(t, blue, s.frame())
	flow := n.mustFlow(t, s)
	if (verdict == redirect) != (flow.Path != blue) {
		t.Errorf("the verdict on a SYN of path %d is %d", flow.Path, verdict)
	}
	n.isAnswered(t, e.port(port), joinAnswer())
	return int(flow.Path)
}

func TestASYNGetsAFlow(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for subtype, option := range [][]byte{capable(1), join(token)} {
			n.reset(t)
			s := e.syn(option)
			n.egress(t, blue, s.frame())
			flow := n.mustFlow(t, s)
			if flow.Role != initiator || flow.Peer != thePeer || flow.Endpoint != thePod || flow.Allowed != allPaths ||
				int(flow.Subtype) != subtype || flow.Sequence != bigEndian32(s.sequence) || flow.Ended != 0 {
				t.Errorf("the flow is %+v", flow)
			}
			if n.countFlows(t) != 1 {
				t.Errorf("%d flows", n.countFlows(t))
			}
		}
	})
}

func TestASYNToNoPeerGetsNone(t *testing.T) {
	n := newNode(t)
	strangers := map[int]string{4: "192.0.2.7", 6: "2001:db8::7"}
	unrouted := map[int]string{4: "203.0.113.7", 6: "2001:db8:1::7"}
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for name, to := range map[string]string{"behind a router that is no peer": strangers[version], "without a route": unrouted[version]} {
			other := e.syn(capable(1))
			other.to = addrPort(to, 80)
			if v := n.both(t, other); v != next || n.countFlows(t) != 0 {
				t.Errorf("%s: verdict %d, %d flows", name, v, n.countFlows(t))
			}
		}
	})
}

func TestASYNToAPeerThatTheRoutesForbidGetsNone(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		peer := nodeAddress(blue, 2, version)
		_, err := n.Run("ip", fmt.Sprintf("-%d", version), "route", "add", "unreachable", peer, "metric", "1")
		require.NoError(t, err)
		s := e.syn(capable(1))
		s.to = addrPort(peer, 80)
		if v := n.egress(t, blue, s.frame()); v != next || n.countFlows(t) != 0 {
			t.Errorf("verdict %d, %d flows", v, n.countFlows(t))
		}
	})
}

func TestAPeersPathsAreThoseOfTheIPVersion(t *testing.T) {
	n := newNode(t)
	for _, only := range versions {
		n.reset(t)
		var peer uplink.ToUplinkPeer
		require.NoError(t, n.maps.Peers.Lookup(uint32(thePeer), &peer))
		peer.Ipv4Paths, peer.Ipv6Paths = 1<<green, 1<<green
		if only == 4 {
			peer.Ipv4Paths = 1 << red
		} else {
			peer.Ipv6Paths = 1 << red
		}
		put(t, n.maps.Peers, uint32(thePeer), peer)
		for _, version := range versions {
			expected := map[bool]uint8{true: red, false: green}[version == only]
			s := endsOf[version].syn(join(token))
			n.egress(t, blue, s.frame())
			if flow := n.mustFlow(t, s); flow.Path != expected {
				t.Errorf("the peer has IPv%d on red alone, and a flow of IPv%d is on path %d", only, version, flow.Path)
			}
		}
	}
}

// The kernel is asked for the route that the packet took, not for that of packets
// that come in by the same NIC.
func TestRoutesOfIncomingPacketsDoNotMatter(t *testing.T) {
	n := newNode(t)
	for version, pods := range map[int]string{4: "10.244.2.0/24", 6: "fd00:244:2::/64"} {
		family := fmt.Sprintf("-%d", version)
		for _, command := range [][]string{
			{family, "rule", "add", "iif", "blue", "lookup", "100"},
			{family, "route", "add", pods, "via", nodeAddress(blue, 99, version), "dev", "blue", "onlink", "table", "100"},
		} {
			_, err := n.Run("ip", command...)
			require.NoError(t, err)
		}
	}
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.egress(t, blue, e.syn(capable(1)).frame())
		n.mustFlow(t, e.out())
	})
}

// A pod of the host's network has the node's own address, and its peer is on the
// link.
func TestASYNToThePeerItselfGetsAFlow(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		s := e.syn(capable(1))
		s.to = addrPort(nodeAddress(blue, 2, version), 80)
		n.egress(t, blue, s.frame())
		n.mustFlow(t, s)
	})
}

func TestASYNWithNoPathAliveGetsNoFlow(t *testing.T) {
	n := newNode(t)
	dead := map[string]func(){
		"at the node":         func() { n.setNode(t, 0) },
		"at the peer":         func() { n.setPeer(t, 0) },
		"at one end each":     func() { n.setNode(t, 1<<blue); n.setPeer(t, 1<<green) },
		"of those allowed":    func() { n.selectPod(t, weights(0, 0, 1)); n.setNode(t, 1<<blue|1<<green) },
		"with no weight ever": func() { n.selectPod(t, weights(0, 0, 0)) },
	}
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for name, kill := range dead {
			for _, option := range [][]byte{capable(1), join(token)} {
				n.reset(t)
				kill()
				if v := n.egress(t, blue, e.syn(option).frame()); v != next || n.countFlows(t) != 0 {
					t.Errorf("%s: verdict %d, %d flows", name, v, n.countFlows(t))
				}
			}
		}
	})
}

func TestARepeatedSYNKeepsItsPath(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		for _, option := range [][]byte{capable(1), join(token)} {
			s := e.syn(option)
			n.egress(t, blue, s.frame())
			first := *n.mustFlow(t, s)
			places := n.places(t, token)
			for range 5 {
				n.egress(t, blue, s.frame())
			}
			// The last attempts of Linux leave out what a middlebox may dislike.
			n.egress(t, blue, s.with(func(s *segment) { s.options = nil }).frame())
			if again := *n.mustFlow(t, s); again != first {
				t.Errorf("%+v became %+v", first, again)
			}
			if again := n.places(t, token); !slices.Equal(again, places) {
				t.Errorf("the places were %v and are %v", places, again)
			}
			e = e.port(e.pod.Port() + 1)
		}
	})
}

func TestANewSYNOnTheSamePortsBeginsAnew(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.joinOn(t, e, 41000)
		before := n.places(t, token)
		s := e.port(41000).syn(join(token + 1)).with(func(s *segment) { s.sequence++ })
		n.egress(t, blue, s.frame())
		if flow := n.mustFlow(t, s); flow.Token != token+1 || flow.Sequence != bigEndian32(s.sequence) {
			t.Errorf("the flow is %+v", flow)
		}
		if after := n.places(t, token); sum(after) != sum(before)-1 {
			t.Errorf("the places of the first connection were %v and are %v", before, after)
		}
		plain := s.with(func(s *segment) { s.sequence++; s.options = usual(nil) })
		if v := n.egress(t, blue, plain.frame()); v != next || n.flow(t, plain) != nil {
			t.Errorf("plain TCP on the same ports: verdict %d, flow %+v", v, n.flow(t, plain))
		}
	})
}

func TestThePlacesOfUnknownConnectionsBeginOnTheRoute(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		first, second := n.joinOn(t, e, 41000), n.joinOn(t, e, 41001)
		if got := []int{first, second}; !slices.Equal(slices.Sorted(slices.Values(got)), []int{green, red}) {
			t.Errorf("the joining subflows are on %v, beside the first one on the route's path", got)
		}
	})
}

func TestASubflowsEndFreesItsPlace(t *testing.T) {
	n := newNode(t)
	outwards := func(flags uint8) func(ends) {
		return func(e ends) { n.egress(t, blue, e.out().with(func(s *segment) { s.flags = flags }).frame()) }
	}
	inwards := func(flags uint8) func(ends) {
		return func(e ends) {
			n.ingress(t, blue, e.out().with(func(s *segment) { s.flags = flags }).flip().frame())
		}
	}
	endings := []struct {
		name  string
		steps []func(ends)
		freed bool
	}{
		{"a reset sent", []func(ends){outwards(rst)}, true},
		{"a reset sent with ACK", []func(ends){outwards(rst | ack)}, true},
		{"a reset received", []func(ends){inwards(rst | ack)}, true},
		{"FIN in both directions", []func(ends){outwards(fin | ack), inwards(fin | ack)}, true},
		{"FIN in both directions, the other first", []func(ends){inwards(fin | ack), outwards(fin | ack)}, true},
		{"FIN sent", []func(ends){outwards(fin | ack)}, false},
		{"FIN sent twice", []func(ends){outwards(fin | ack), outwards(fin | ack)}, false},
		{"FIN received", []func(ends){inwards(fin | ack)}, false},
		{"FIN received twice", []func(ends){inwards(fin | ack), inwards(fin | ack | psh)}, false},
		{"data", []func(ends){outwards(ack | psh), inwards(ack)}, false},
		{"everything at once", []func(ends){outwards(fin | ack), inwards(fin | ack), outwards(rst), inwards(rst), inwards(fin)}, true},
	}
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for _, ending := range endings {
			n.reset(t)
			n.joinOn(t, e, 41000)
			path := n.joinOn(t, e, e.pod.Port())
			before := n.places(t, token)
			for _, step := range ending.steps {
				step(e)
			}
			expected := slices.Clone(before)
			if ending.freed {
				expected[path]--
			}
			if after := n.places(t, token); !slices.Equal(after, expected) {
				t.Errorf("%s: the places were %v and are %v instead of %v", ending.name, before, after, expected)
			}
			if ended := n.mustFlow(t, e.out()).Ended == endedBoth; ended != ending.freed {
				t.Errorf("%s: ended is %t", ending.name, ended)
			}
		}
	})
}

func TestMoreSubflowsThanPathsAreEven(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		for i := range 11 {
			n.joinOn(t, e, uint16(41000+i))
		}
		if places := n.places(t, token); !slices.Equal(places, []int{4, 4, 4}) {
			t.Errorf("the places are %v", places)
		}
	})
}

func TestACountThatIsFullStaysFull(t *testing.T) {
	n := newNode(t)
	n.selectPod(t, weights(0, 0, 1))
	for i := range 300 {
		if path := n.joinOn(t, endsOf[4], uint16(41000+i)); path != red {
			t.Fatalf("subflow %d is on path %d", i, path)
		}
	}
	if places := n.places(t, token); places[red] != math.MaxUint8 {
		t.Errorf("the places are %v", places)
	}
}

// The count of a connection that the kernel dropped for newer ones begins at 0,
// while its subflows live on.
func TestAnEmptyCountStaysEmpty(t *testing.T) {
	n := newNode(t)
	e := endsOf[4]
	for path := range paths {
		n.reset(t)
		n.selectPod(t, 1<<(path*8))
		n.joinOn(t, e, e.pod.Port())
		if places := n.places(t, token); places[path] == 0 {
			t.Fatalf("the subflow of path %d is counted as %v", path, places)
		}
		putConnection(t, n, token)
		n.end(t, e, rst)
		if places := n.places(t, token); sum(places) != 0 {
			t.Errorf("after the end of the subflow on path %d the places are %v", path, places)
		}
	}
}

func TestFirstSubflowsTakeTurnsByWeight(t *testing.T) {
	n := newNode(t)
	for _, weight := range [][]uint8{
		{1, 1, 1}, {1, 1, 0}, {0, 1, 0}, {50, 50, 0}, {100, 100, 100}, {3, 2, 1}, {100, 50, 25}, {10, 90, 0}, {1, 100, 1}, {7, 5, 3},
	} {
		t.Run(fmt.Sprint(weight), func(t *testing.T) {
			n.reset(t)
			n.selectPod(t, weights(weight...))
			all := sum(asInts(weight))
			begun := make([]int, paths)
			for i := 1; i <= 2*all; i++ {
				s := endsOf[4].port(uint16(20000 + i)).syn(capable(1))
				n.egress(t, blue, s.frame())
				begun[n.mustFlow(t, s).Path]++
				for path, count := range begun {
					if due := float64(i) * float64(weight[path]) / float64(all); math.Abs(float64(count)-due) > 2 {
						t.Fatalf("after %d connections: %v", i, begun)
					}
				}
			}
			for path, count := range begun {
				if count != 2*int(weight[path]) {
					t.Errorf("after two rounds: %v", begun)
				}
			}
		})
	}
}

func TestAPathThatIsDownHasNoTurn(t *testing.T) {
	n := newNode(t)
	n.setPeer(t, 1<<blue|1<<red)
	begun := make([]int, paths)
	for i := range 20 {
		s := endsOf[6].port(uint16(20000 + i)).syn(capable(1))
		n.egress(t, blue, s.frame())
		begun[n.mustFlow(t, s).Path]++
	}
	if !slices.Equal(begun, []int{10, 0, 10}) {
		t.Errorf("connections began on %v", begun)
	}
	n.setPeer(t, allPaths)
	for i := range 30 {
		s := endsOf[6].port(uint16(21000 + i)).syn(capable(1))
		n.egress(t, blue, s.frame())
		begun[n.mustFlow(t, s).Path]++
	}
	if begun[green] < 9 || begun[green] > 11 {
		t.Errorf("after the path's return connections began on %v", begun)
	}
}

func TestAConnectionThatBeginsWhileAPathIsDownUsesItOnceItIsBack(t *testing.T) {
	for _, version := range versions {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) {
			n := newNode(t)
			n.setPeer(t, 1<<blue|1<<red)
			putConnection(t, n, token)
			taken := map[uint8]bool{}
			var last segment
			for port := range uint16(paths) {
				last = endsOf[version].port(20000 + port).syn(join(token))
				n.egress(t, blue, last.frame())
				taken[n.mustFlow(t, last).Path] = true
			}
			require.Len(t, taken, paths, "each path is that of a subflow")
			require.EqualValues(t, green, n.mustFlow(t, last).Path, "the last one has the path that is down")
			require.NotEqualValues(t, green, n.mustFlow(t, last).Last, "another carries it meanwhile")

			n.setPeer(t, allPaths)
			n.egress(t, blue, last.frame())
			require.EqualValues(t, green, n.mustFlow(t, last).Last)
		})
	}
}

func TestAPathWithoutANICOrAnAddressIsNoSubflowsOwn(t *testing.T) {
	n := newNode(t)
	for name, drop := range map[string]func(){
		"no NIC": func() {
			value := lookup[uplink.ToUplinkNode](t, n.maps.Node, uint32(0))
			value.PathsUp, value.Interface[green] = 1<<blue, 0
			put(t, n.maps.Node, uint32(0), *value)
		},
		"no address": func() {
			value := lookup[uplink.ToUplinkPeer](t, n.maps.Peers, uint32(thePeer))
			value.Ipv4Paths, value.Ipv4[green] = 1<<blue, 0
			put(t, n.maps.Peers, uint32(thePeer), *value)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n.reset(t)
			n.selectPod(t, weights(1, 1, 0))
			putConnection(t, n, token)
			drop()
			for port := range uint16(3) {
				s := endsOf[4].port(20000 + port).syn(join(token))
				n.egress(t, blue, s.frame())
				require.EqualValues(t, blue, n.mustFlow(t, s).Path)
			}
		})
	}
}

// connectionModel is what a connection of the pod must look like.
type connectionModel struct {
	n       *node
	e       ends
	weights []uint8
	node    uint32
	peer    uint8
	living  map[uint16]int  // path by port
	agreed  map[uint16]bool // of these, those whose handshake has ended
	ended   []uint16
	port    uint16
	// sequence of the last SYN, and that of each port; all are different.
	sequence  uint32
	sequences map[uint16]uint32
}

func (m *connectionModel) subflowsOn(path int) (count int) {
	for _, p := range m.living {
		if p == path {
			count++
		}
	}
	return count
}

func (m *connectionModel) usable(path int) bool {
	return m.weights[path] > 0 && m.node>>path&1 != 0 && m.peer>>path&1 != 0
}

// isPlace tells whether one more subflow may have the path: one that is usable, or, while each of
// those has a subflow, one that has none and is down.
func (m *connectionModel) isPlace(path int) bool {
	for other := range paths {
		if m.usable(other) && m.subflowsOn(other) == 0 {
			return m.usable(path)
		}
	}
	return m.usable(path) || (m.weights[path] > 0 && m.subflowsOn(path) == 0)
}

// rank is lower for a better place.
func (m *connectionModel) rank(path int) int {
	return (m.subflowsOn(path) + 1) * 4096 / int(m.weights[path])
}

// Join begins a subflow on a new port.
func (m *connectionModel) Join(t *rapid.T) {
	m.port++
	m.join(t, m.port)
}

// Reuse begins a subflow on the port of one that has ended.
func (m *connectionModel) Reuse(t *rapid.T) {
	if len(m.ended) == 0 {
		t.Skip("no subflow has ended")
	}
	port := m.ended[0]
	m.ended = m.ended[1:]
	m.join(t, port)
}

func (m *connectionModel) join(t *rapid.T, port uint16) {
	m.sequence++
	s := m.e.port(port).syn(join(token)).with(func(s *segment) { s.sequence = m.sequence })
	m.sequences[port] = m.sequence
	m.n.egress(t, blue, s.frame())
	flow := m.n.flow(t, s)
	if !m.usable(blue) && !m.usable(green) && !m.usable(red) {
		if flow != nil {
			t.Fatalf("a flow although no path is usable: %+v", flow)
		}
		return
	}
	if flow == nil || !m.isPlace(int(flow.Path)) {
		t.Fatalf("the flow is %+v", flow)
	}
	chosen := int(flow.Path)
	for path := range paths {
		if !m.isPlace(path) || path == chosen {
			continue
		}
		if m.subflowsOn(chosen) > 0 && m.subflowsOn(path) == 0 {
			t.Fatalf("one more subflow on path %d while path %d is free: %v", chosen, path, m.living)
		}
		if (m.subflowsOn(chosen) > 0) == (m.subflowsOn(path) > 0) && m.rank(path) < m.rank(chosen) {
			t.Fatalf("path %d was chosen, and path %d has less for its weight: %v, weights %v", chosen, path, m.living, m.weights)
		}
	}
	m.living[port] = chosen
}

// Agree ends the handshake of a subflow.
func (m *connectionModel) Agree(t *rapid.T) {
	port := m.draw(t)
	if m.agreed[port] {
		t.Skip("its handshake has ended")
	}
	m.agreed[port] = true
	answer := m.e.port(port).synAck(joinAnswer()).with(func(s *segment) { s.answer = m.sequences[port] + 1 })
	m.n.ingress(t, blue, answer.frame())
	m.n.egress(t, blue, m.e.port(port).third().frame())
	if path := int(m.n.mustFlow(t, m.e.port(port).out()).Path); path != m.living[port] {
		t.Fatalf("the end of its handshake moved a flow from %d to %d", m.living[port], path)
	}
}

// Repeat sends the SYN of a subflow again, before it is answered.
func (m *connectionModel) Repeat(t *rapid.T) {
	port := m.draw(t)
	if m.agreed[port] {
		t.Skip("its handshake has ended")
	}
	s := m.e.port(port).syn(join(token)).with(func(s *segment) { s.sequence = m.sequences[port] })
	m.n.egress(t, blue, s.frame())
	if path := int(m.n.mustFlow(t, s).Path); path != m.living[port] {
		t.Fatalf("a repeated SYN moved its flow from %d to %d", m.living[port], path)
	}
}

func (m *connectionModel) Close(t *rapid.T) {
	port := m.draw(t)
	if !m.agreed[port] {
		t.Skip("its handshake has not ended")
	}
	m.n.end(t, m.e.port(port), fin|ack)
	m.end(port)
}

func (m *connectionModel) Reset(t *rapid.T) {
	port := m.draw(t)
	m.n.end(t, m.e.port(port), rst)
	m.end(port)
}

func (m *connectionModel) end(port uint16) {
	delete(m.living, port)
	delete(m.agreed, port)
	m.ended = append(m.ended, port)
}

// Replace begins another connection on the ports of a living subflow.
func (m *connectionModel) Replace(t *rapid.T) {
	port := m.draw(t)
	s := m.e.port(port).syn(capable(1)).with(func(s *segment) { s.sequence = 5 }) // no other's
	m.n.egress(t, blue, s.frame())
	delete(m.living, port)
	delete(m.agreed, port)
}

func (m *connectionModel) Paths(t *rapid.T) {
	m.node = rapid.Uint32Range(0, allPaths).Draw(t, "node")
	m.peer = rapid.Uint8Range(0, allPaths).Draw(t, "peer")
	m.n.setNode(t, m.node)
	m.n.setPeer(t, m.peer)
}

func (m *connectionModel) Check(t *rapid.T) {
	places := m.n.places(t, token)
	for path, count := range places {
		if expected := m.subflowsOn(path); count != expected {
			t.Fatalf("%d subflows on path %d instead of %d: %v", count, path, expected, m.living)
		}
	}
}

func (m *connectionModel) draw(t *rapid.T) uint16 {
	if len(m.living) == 0 {
		t.Skip("no subflow")
	}
	ports := make([]uint16, 0, len(m.living))
	for port := range m.living {
		ports = append(ports, port)
	}
	slices.Sort(ports)
	return rapid.SampledFrom(ports).Draw(t, "port")
}

// Never two on one path while another is free; whatever comes and goes.
func TestPlacesOfAConnection(t *testing.T) {
	n := newNode(t)
	rapid.Check(t, func(t *rapid.T) {
		n.reset(t)
		model := &connectionModel{n: n, e: endsOf[rapid.SampledFrom(versions).Draw(t, "version")], node: allPaths, peer: allPaths,
			living: map[uint16]int{}, agreed: map[uint16]bool{}, port: 41000, sequences: map[uint16]uint32{}, sequence: 1000}
		model.weights = rapid.SliceOfN(rapid.Uint8Range(0, 100), int(paths), int(paths)).Draw(t, "weights")
		n.selectPod(t, weights(model.weights...))
		// The connection is known from its first subflow's answer, as always.
		putConnection(t, n, token)
		t.Repeat(rapid.StateMachineActions(model))
	})
}
