// SPDX-License-Identifier: Apache-2.0

package faults_test

// group has faults that are made at the same time.
type group struct {
	name   string
	faults []fault
}

var groups = []group{
	{"NICs that cannot be used", []fault{
		{name: "a NIC is set down", make: setDown("node1", "green"), told: map[channel]string{
			byStatus: `path green: InterfaceDown\s+the NIC is down on node1`, byExplain: `green.*is set down`,
			byEvent: `Warning InterfaceDown MPTCPPath/green: .*node1`, byAlert: `BraidPathDown node=node1 path=green`,
		}, remedy: `set it up|[Ss]et the NIC up`, do: "set it up"},
		{name: "a NIC loses its carrier", make: carrierLost("node1", "red"), told: map[channel]string{
			byStatus: `path red: InterfaceDown\s+the NIC is down on node1`, byExplain: `red.*has no carrier`,
			byEvent: `Warning InterfaceDown MPTCPPath/red: .*node1`, byAlert: `BraidPathDown node=node1 path=red`,
		}, remedy: `cable`, do: "see to its cable and the switch's port"},
		{name: "the MTU of a NIC is lowered", make: lowerMTU("node1", "gold"), told: map[channel]string{
			byStatus: `path gold: InterfaceNotUsable\s+.*node1 .*MTU of 1400`, byExplain: `gold.*MTU of 1400`,
			byEvent: `Warning InterfaceNotUsable MPTCPPath/gold: .*MTU of 1400`, byAlert: `BraidPathDown node=node1 path=gold`,
		}, remedy: `same MTU`, do: "give the NICs of all paths the same MTU"},
		{name: "rp_filter of a NIC is set to 1", make: filterStrictly("node1", "grey"), told: map[channel]string{
			byStatus: `path grey: InterfaceNotUsable\s+.*rp_filter`, byExplain: `grey.*rp_filter`,
			byEvent: `Warning InterfaceNotUsable MPTCPPath/grey: .*rp_filter`, byAlert: `BraidPathDown node=node1 path=grey`,
		}, remedy: `set net.ipv4.conf.grey.rp_filter to 2`, do: "set it to 0 or 2, as the message says"},
		{name: "a NIC loses its addresses", make: loseAddresses("node1", "pink"), told: map[channel]string{
			byStatus: `path pink: InterfaceNotUsable\s+.*has no global address`, byExplain: `pink.*has no global address`,
			byEvent: `Warning InterfaceNotUsable MPTCPPath/pink: .*no global address`, byAlert: `BraidPathDown node=node1 path=pink`,
		}, remedy: `[Gg]ive (it|the NIC) (one|an address)`, do: "give it one"},
	}},
	{"NICs that are not there, and paths that lose packets", []fault{
		{name: "a NIC is renamed", make: rename("node1", "green"), told: map[channel]string{
			byStatus: `path green: InterfaceNotFound\s+no NIC matches the path on node1`, byExplain: `green.*node1 has no NIC of it`,
			byEvent: `Warning InterfaceNotFound MPTCPPath/green: .*node1`, byAlert: `BraidPathDown node=node1 path=green`,
		}, remedy: `check spec.interfaces`, do: "`spec.interfaces` or `spec.addressRanges` of the MPTCPPath"},
		{name: "a NIC is pulled out", make: unplug("node1", "red"), told: map[channel]string{
			byStatus: `path red: InterfaceNotFound\s+no NIC matches the path on node1`, byExplain: `red.*node1 has no NIC of it`,
			byEvent: `Warning InterfaceNotFound MPTCPPath/red: .*node1`, byAlert: `BraidPathDown node=node1 path=red`,
		}, remedy: `check spec.interfaces`, do: "put it back, or leave the node out by `spec.nodeSelector`"},
		{name: "a switch loses everything on a path", make: block("node1", "gold"), told: map[channel]string{
			byStatus: `path gold: PeersUnreachable`, byExplain: `gold.*no other node answers probes over it`,
			byEvent: `Warning PeersUnreachable MPTCPPath/gold: `, byAlert: `BraidPathDead node=node\d path=gold`,
		}, remedy: `Look at cables, switches, VLANs`, do: "cables, switches, VLANs, firewalls"},
		{name: "a path loses a third of its packets", make: lose("node1", "grey"), lasting: true, told: map[channel]string{
			byStatus: `path grey: PathLossy\s+probes are lost: .*node1 \d+ %`, byExplain: `grey.*it loses \d+ %`,
			byAlert: `BraidPathLoss node=node\d path=grey`,
		}, remedy: `cable`, do: "errors of NIC and switch, cable, transceiver, load"},
		{name: "a firewall drops the probes on one path", make: dropProbes("node1", "pink"), pod: "server", told: map[channel]string{
			byStatus: `path pink: PeersUnreachable`, byExplain: `pink.*not to node1 now: probes over it are not answered`,
			byEvent: `Warning PeersUnreachable MPTCPPath/pink: `, byAlert: `BraidPathDead node=node\d path=pink`,
		}, remedy: `A firewall that drops UDP 8478`, do: "let UDP 8478 through"},
	}},
	{"mistakes in policies", mistakes},
	{"traffic that is not spread", traffics},
}
