// SPDX-License-Identifier: Apache-2.0

package spreading

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pathmanager/conntrack"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/mptcpnl"
)

var (
	podEnd  = netip.MustParseAddr("10.244.1.2")
	peerEnd = netip.MustParseAddrPort("10.244.2.2:80")
	nearEnd = netip.MustParseAddrPort("10.244.1.9:80")
)

// lookFor is a look at sockets that a test makes up, whose peers are where it says.
func lookFor(before map[ends]keptSocket) *look {
	return &look{
		begin: time.Unix(1000, 0), before: before, flows: &datapath.FlowTable{}, atlas: newAtlas(&node.Model{}, nil, nil),
		keep: func() bool { return true }, observed: observation{open: []string{"blue", "green"}},
		now: map[ends]keptSocket{}, byToken: map[uint32]int{}, onPath: map[string]*agentapi.PathTraffic{},
		spots: map[netip.AddrPort]spot{peerEnd: {place: behindPeer}, nearEnd: {place: here}},
	}
}

// subflowAt is one of a connection, by its local port, with so many bytes sent and received so far.
func subflowAt(port uint16, token uint32, sent, received uint64) *mptcpnl.Socket {
	s := &mptcpnl.Socket{Multipath: token != 0}
	s.Token, s.Local, s.Remote = token, netip.AddrPortFrom(podEnd, port), peerEnd
	s.TCP.SentBytes, s.TCP.ReceivedBytes = sent, received
	return s
}

// take looks at sockets, and is what there is to judge.
func (l *look) take(sockets ...*mptcpnl.Socket) []connection {
	for _, s := range sockets {
		l.socket(s)
	}
	l.setAsideIdle()
	return l.observed.connections
}

func TestTheFirstLookOnlyLearnsWhatThereIs(t *testing.T) {
	first := lookFor(nil)
	require.Empty(t, first.take(subflowAt(1, 7, 1000, 0)), "when it moved that is not known")
	second := lookFor(first.now)
	second.begin = first.begin.Add(10 * time.Second)
	found := second.take(subflowAt(1, 7, 1500, 20))
	require.Len(t, found, 1)
	require.Equal(t, []uint64{520, 1520}, []uint64{found[0].bytes, found[0].ever})
	require.True(t, found[0].known)
	require.Equal(t, 10*time.Second, found[0].age)
	require.Equal(t, map[string]*agentapi.PathTraffic{"": {Subflows: 1, SentBytes: 500, ReceivedBytes: 20}}, second.onPath)
}

func TestSubflowsOfATokenAreOneConnection(t *testing.T) {
	initiator := subflowAt(2, 7, 10, 0)
	initiator.Initiator = true
	found := lookFor(map[ends]keptSocket{}).take(subflowAt(1, 7, 1, 2), initiator, subflowAt(3, 8, 5, 0))
	require.Len(t, found, 2)
	require.Equal(t, []int{2, 1}, []int{found[0].subflows, found[1].subflows})
	require.Equal(t, uint64(13), found[0].bytes)
	require.True(t, found[0].begunHere, "one of its subflows was opened here")
	require.False(t, found[1].begunHere)
}

func TestASocketIsWhatItSpeaks(t *testing.T) {
	back := subflowAt(2, 0, 1, 0)
	back.FellBack = true
	found := lookFor(map[ends]keptSocket{}).take(subflowAt(1, 0, 1, 0), back, subflowAt(3, 7, 1, 0))
	require.Equal(t, []speaks{speaksTCP, fellBack, speaksMPTCP}, []speaks{found[0].speaks, found[1].speaks, found[2].speaks})
}

func TestCountersThatWentBackAreOfAnotherSocket(t *testing.T) {
	before := map[ends]keptSocket{{netip.AddrPortFrom(podEnd, 1), peerEnd}: {carried: carried{5000, 5000}}}
	found := lookFor(before).take(subflowAt(1, 7, 300, 0))
	require.Equal(t, uint64(300), found[0].bytes)
}

func TestWhatStaysOnTheNodeIsNotSpread(t *testing.T) {
	near := subflowAt(1, 7, 1000, 0)
	near.Remote = nearEnd
	l := lookFor(map[ends]keptSocket{})
	require.Empty(t, l.take(near))
	require.Empty(t, l.onPath)
	require.Empty(t, l.now, "nothing is kept of it")
}

func TestWhereThereIsNoRoomNothingIsGuessed(t *testing.T) {
	l := lookFor(map[ends]keptSocket{})
	l.keep = func() bool { return len(l.now) < 1 }
	require.Len(t, l.take(subflowAt(1, 7, 10, 0), subflowAt(2, 8, 10, 0)), 1)
	require.True(t, l.full)

	next := lookFor(l.now)
	next.partly = true
	found := next.take(subflowAt(1, 7, 15, 0), subflowAt(2, 8, 900, 0))
	require.Len(t, found, 1, "the second may be older than the last look")
	require.Equal(t, uint64(5), found[0].bytes)
}

// What is left of connections may be of any, unless it came after the first look.
func TestWhatIsOverCountsWhereItsConnectionWasSeen(t *testing.T) {
	over := subflowAt(1, 0, 0, 0)
	over.Over = true
	young, mature := lookFor(map[ends]keptSocket{}), lookFor(map[ends]keptSocket{})
	mature.mature = true
	young.take(over)
	mature.take(over)
	require.Empty(t, young.observed.over)
	require.Equal(t, []connection{{speaks: speaksTCP, place: behindPeer}}, mature.observed.over)
}

func TestOnlySoManyPlacesAreLookedUpForAPod(t *testing.T) {
	l := lookFor(map[ends]keptSocket{})
	for i := range uint16(mostPlaces) {
		l.spots[netip.AddrPortFrom(peerEnd.Addr(), 1000+i)] = spot{}
	}
	stranger := subflowAt(1, 7, 10, 0)
	stranger.Remote = netip.MustParseAddrPort("10.244.3.3:80")
	require.Empty(t, l.take(stranger), "the atlas, which has no kernel here, was not asked")
	require.Len(t, l.take(subflowAt(2, 8, 10, 0)), 1, "places that are known still are")
}

func TestWhoIsNotAnsweredIsToldWithTheWay(t *testing.T) {
	silent := func(retries uint8, change func(*mptcpnl.Socket)) *mptcpnl.Socket {
		s := subflowAt(1, 7, 0, 0)
		s.TCP.Retries, s.Opening, s.First = retries, true, true
		change(s)
		return s
	}
	lonely, err := network.NamespaceForTest(t).Handle()
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		socket *mptcpnl.Socket
		want   []lost
	}{
		"a first SYN that no route is for":               {silent(manyRetries, func(*mptcpnl.Socket) {}), []lost{{noRoute: true}}},
		"not before it was sent some times":              {silent(manyRetries-1, func(*mptcpnl.Socket) {}), nil},
		"not a further subflow, which is no loss":        {silent(manyRetries, func(s *mptcpnl.Socket) { s.First = false }), nil},
		"plain TCP as well":                              {silent(manyRetries, func(s *mptcpnl.Socket) { s.Multipath, s.First = false, false }), []lost{{noRoute: true}}},
		"data of the only subflow of a connection":       {silent(manyRetries, func(s *mptcpnl.Socket) { s.Opening = false }), []lost{{noRoute: true}}},
		"not data that is sent again for the first time": {silent(1, func(s *mptcpnl.Socket) { s.Opening = false }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			l := lookFor(map[ends]keptSocket{})
			l.atlas.kernel = lonely
			l.take(tc.socket)
			require.Equal(t, tc.want, l.observed.unanswered)
		})
	}
}

// One subflow that is silent is no loss while another one delivers.
func TestAConnectionWithASubflowThatDeliversIsNotUnanswered(t *testing.T) {
	lonely, err := network.NamespaceForTest(t).Handle()
	require.NoError(t, err)
	silent := subflowAt(1, 7, 0, 0)
	silent.TCP.Retries = manyRetries
	l := lookFor(map[ends]keptSocket{})
	l.atlas.kernel = lonely
	require.Len(t, l.take(silent, subflowAt(2, 7, 100, 0)), 1)
	require.Empty(t, l.observed.unanswered)
}

// A connection to a Service goes to a backend, as the node's translation says.
func TestAServicesPeerIsTheBackend(t *testing.T) {
	service, backend := netip.MustParseAddrPort("10.96.0.1:80"), peerEnd
	l := lookFor(nil)
	l.tracked = func(local, remote netip.AddrPort) (conntrack.Ends, bool, error) {
		return conntrack.Ends{Local: local, Remote: backend}, remote == service, nil
	}
	s := subflowAt(1, 7, 0, 0)
	s.Remote = service
	require.Equal(t, backend, l.translated(s))
	require.Equal(t, backend, l.translated(subflowAt(1, 7, 0, 0)), "one that names the backend itself")
	l.tracked = func(_, _ netip.AddrPort) (conntrack.Ends, bool, error) {
		return conntrack.Ends{Remote: backend}, false, unix.EPERM
	}
	require.Equal(t, service, l.translated(s), "where nobody can tell")
}

func TestTheUpgradeFailsOnlyWhereTheKernelIsKnownNotToHaveIt(t *testing.T) {
	require.False(t, isUnsupported(nil), "nothing asked for it yet")
	require.False(t, isUnsupported(&v1alpha1.KernelFeature{Supported: true}))
	require.True(t, isUnsupported(&v1alpha1.KernelFeature{}))
}
