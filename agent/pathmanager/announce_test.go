// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/mptcpnl"
)

// accepted is an announcer that a peer has begun a connection to, and that has made
// its announcements.
func accepted() *announcer {
	a := newAnnouncer(nil, Settings{
		Mode: v1alpha1.SubflowModeFullMesh, Addresses: []netip.Addr{local.Addr(), netip.MustParseAddr("10.0.0.3"), local6.Addr()},
	}, unbounded(), &lookPace{})
	event := established(1)
	event.ServerSide = true
	a.handle(event, start)
	return a
}

// pendingOf lists the addresses that are to be announced, and takes them for announced.
func pendingOf(a *announcer) (addresses []string) {
	for _, p := range a.pending {
		if c := a.known[p.token]; c != nil {
			c.pending--
			addresses = append(addresses, p.endpoint.Address.String())
		}
	}
	a.pending = nil
	return addresses
}

// replace has the announcer look at these sockets.
func (a *announcer) replace(connections []mptcpnl.Connection, subflows []mptcpnl.Subflow, now time.Time) {
	look := a.look()
	for i := range subflows {
		look.subflow(&subflows[i])
	}
	for i := range connections {
		look.connection(&connections[i])
	}
	look.end(now)
}

// subflowsAt are established subflows of the connection to these addresses of ours.
func subflowsAt(addresses ...string) []mptcpnl.Subflow {
	subflows := []mptcpnl.Subflow{{Token: 1, Local: local, Remote: remote, Established: true, First: true}}
	for _, address := range addresses {
		at := netip.AddrPortFrom(netip.MustParseAddr(address), local.Port())
		subflows = append(subflows, mptcpnl.Subflow{Token: 1, Local: at, Remote: remote, Established: true})
	}
	return subflows
}

func TestAddressesThatLeadToNoSubflowAreAnnouncedAgain(t *testing.T) {
	tests := map[string]struct {
		joined []string
		want   int
	}{
		"no further subflow came":             {nil, 2},
		"one came to one of them":             {[]string{"10.0.0.3"}, 1},
		"each has one":                        {[]string{"10.0.0.3", local6.Addr().String()}, 0},
		"only the first address has them all": {[]string{local.Addr().String()}, 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a := accepted()
			if first := pendingOf(a); len(first) != 2 {
				t.Fatalf("announced at first: %v, want both other addresses", first)
			}
			connections := []mptcpnl.Connection{{Token: 1, Local: local, Remote: remote}}
			a.replace(connections, subflowsAt(test.joined...), start.Add(firstPause-1))
			if early := pendingOf(a); len(early) != 0 {
				t.Errorf("announced again before the pause: %v", early)
			}
			a.replace(connections, subflowsAt(test.joined...), start.Add(firstPause))
			if again := pendingOf(a); len(again) != test.want {
				t.Errorf("announced again: %v, want %d", again, test.want)
			}
		})
	}
}

func TestTheSecondAnnouncementIsOfWhatEventsTellNoSubflowOf(t *testing.T) {
	a := accepted()
	for i := range a.pending { // as once they are made
		a.pending[i].made = true
	}
	at := netip.MustParseAddrPort("10.0.0.3:80")
	a.handle(mptcpnl.SubflowEvent{Kind: mptcpnl.SubflowPriority, Token: 1, Local: netip.AddrPortFrom(local6.Addr(), 80)}, start)
	a.handle(mptcpnl.SubflowEvent{Kind: mptcpnl.SubflowEstablished, Token: 2, Local: netip.AddrPortFrom(local6.Addr(), 80)}, start)
	a.handle(mptcpnl.SubflowEvent{Kind: mptcpnl.SubflowEstablished, Token: 1, Local: at}, start)
	a.dropJoined()
	if left := pendingOf(a); len(left) != 1 || left[0] != local6.Addr().String() || a.known[1].pending != 0 {
		t.Errorf("to be announced again: %v, want the address without a subflow; %d are counted after it", left, a.known[1].pending)
	}
}

func TestAnnouncementsToAPeerThatWantsNoneBecomeRare(t *testing.T) {
	a := accepted()
	count := len(pendingOf(a))
	for now := start; now.Before(start.Add(time.Hour)); now = now.Add(resync) {
		a.replace([]mptcpnl.Connection{{Token: 1}}, subflowsAt(), now)
		count += len(pendingOf(a))
	}
	if most := 2 * (8 + int(time.Hour/longestPause)); count > most || count < most/2 {
		t.Errorf("%d announcements in an hour, want at most %d", count, most)
	}
}

func TestNothingIsAnnouncedOnAConnectionThatIsGone(t *testing.T) {
	for name, end := range map[string]func(*announcer){
		"that closed":          func(a *announcer) { a.handle(mptcpnl.ConnectionEvent{Kind: mptcpnl.ConnectionClosed, Token: 1}, start) },
		"that is not there":    func(a *announcer) { a.replace(nil, nil, start) },
		"long after the pause": func(a *announcer) { a.replace(nil, nil, start.Add(time.Hour)) },
	} {
		t.Run(name, func(t *testing.T) {
			a := accepted()
			end(a)
			if pending := pendingOf(a); len(pending) != 0 || len(a.known) != 0 {
				t.Errorf("announcements %v and connections %v remain", pending, a.known)
			}
		})
	}
}
