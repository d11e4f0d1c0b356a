// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"braid.dev/braid/agent/paths"
)

// claiming is a peer with these addresses, on the path blue too. A mark in front says
// what proves an address: = its Node, + a controller; nothing but its agent otherwise.
func claiming(name string, marked ...string) paths.Peer {
	peer := paths.Peer{Name: name, Paths: map[string]paths.PeerPath{}}
	for _, text := range marked {
		address := netip.MustParseAddr(strings.TrimLeft(text, "=+"))
		peer.Addresses = append(peer.Addresses, address)
		peer.Confirmed = peer.Confirmed || text[0] == '=' || text[0] == '+'
		if text[0] == '=' {
			peer.OfNode = append(peer.OfNode, address)
		}
	}
	peer.Paths["blue"] = paths.PeerPath{Addresses: slices.Clone(peer.Addresses), Up: true}
	return peer
}

// here is a node with 192.0.2.1 whose way out of the cluster is 192.0.2.254.
var here = paths.Resolution{
	Paths: []paths.Path{{NIC: paths.NIC{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}}}, WaysOut: []netip.Addr{netip.MustParseAddr("192.0.2.254")},
}

func TestAnAddressIsOnePeersAtMost(t *testing.T) {
	type rounds [][]paths.Peer
	for name, c := range map[string]struct {
		rounds rounds
		want   string // of the last round, sorted
	}{
		"one each":                                  {rounds{{claiming("b", "192.0.2.2"), claiming("c", "192.0.2.3")}}, "b 192.0.2.2, c 192.0.2.3"},
		"claimed by two from the start":             {rounds{{claiming("b", "192.0.2.7"), claiming("c", "192.0.2.7")}}, ""},
		"claimed by three":                          {rounds{{claiming("b", "192.0.2.7"), claiming("c", "192.0.2.7"), claiming("d", "192.0.2.7")}}, ""},
		"had by the second":                         {rounds{{claiming("c", "192.0.2.7")}, {claiming("b", "192.0.2.7"), claiming("c", "192.0.2.7")}}, "c 192.0.2.7"},
		"had by the last of three":                  {rounds{{claiming("d", "192.0.2.7")}, {claiming("b", "192.0.2.7"), claiming("c", "192.0.2.7"), claiming("d", "192.0.2.7")}}, "d 192.0.2.7"},
		"given up":                                  {rounds{{claiming("b", "192.0.2.7")}, {claiming("c", "192.0.2.7")}}, "c 192.0.2.7"},
		"confirmed against what an agent says":      {rounds{{claiming("b", "192.0.2.7")}, {claiming("b", "192.0.2.7"), claiming("c", "+192.0.2.7")}}, "c 192.0.2.7"},
		"of a Node against what is confirmed":       {rounds{{claiming("b", "+192.0.2.7")}, {claiming("b", "+192.0.2.7"), claiming("c", "=192.0.2.7")}}, "c 192.0.2.7"},
		"this node's own":                           {rounds{{claiming("b", "192.0.2.1", "192.0.2.2")}}, "b 192.0.2.2"},
		"this node's own, of a Node":                {rounds{{claiming("b", "=192.0.2.1")}}, ""},
		"the way out of the cluster":                {rounds{{claiming("b", "192.0.2.254", "192.0.2.2")}}, "b 192.0.2.2"},
		"the way out of the cluster, confirmed":     {rounds{{claiming("b", "+192.0.2.254")}}, ""},
		"the way out of the cluster, and of a Node": {rounds{{claiming("b", "=192.0.2.254")}}, "b 192.0.2.254"},
	} {
		t.Run(name, func(t *testing.T) {
			var o owners
			var got []string
			for _, peers := range c.rounds {
				got = nil
				for _, peer := range o.settle(Sources{Resolution: here, Peers: peers}) {
					if diff := cmp.Diff(fmt.Sprint(peer.Addresses), fmt.Sprint(peer.Paths["blue"].Addresses)); diff != "" {
						t.Errorf("%s has others on its path: %s", peer.Name, diff)
					}
					for _, address := range peer.Addresses {
						got = append(got, peer.Name+" "+address.String())
					}
				}
			}
			if diff := cmp.Diff(c.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// A peer whose addresses are all refused is still one, and keeps its number.
func TestAPeerWithoutAddressesIsAPeer(t *testing.T) {
	var o owners
	if settled := o.settle(Sources{Resolution: here, Peers: []paths.Peer{claiming("b", "192.0.2.254")}}); len(settled) != 1 || settled[0].Name != "b" {
		t.Errorf("got %v", settled)
	}
}

func BenchmarkSettle(b *testing.B) {
	from := Sources{Resolution: here}
	for i := range 1000 {
		from.Peers = append(from.Peers, claiming(fmt.Sprint("node", i), fmt.Sprintf("=10.0.%d.%d", i/250, i%250), fmt.Sprintf("+10.1.%d.%d", i/250, i%250)))
	}
	var o owners
	for b.Loop() {
		o.settle(from)
	}
}
