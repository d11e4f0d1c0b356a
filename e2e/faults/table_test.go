// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

// group has faults that are made at the same time.
type group struct {
	name   string
	faults []fault
	// overlay says that these are made in the lab whose network encapsulates.
	overlay bool
}

var groups = []group{
	{name: "NICs that cannot be used", faults: []fault{
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
	{name: "NICs that are not there, and paths that lose packets", faults: []fault{
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
	{name: "mistakes in policies", faults: mistakes},
	{name: "traffic that is not spread", faults: traffics},
	{name: "the cluster network", faults: []fault{
		{name: "the cluster network's route to a node is lost", make: inTurn(sending("cut", "third", network.MPTCP, ""), whenSpread("cut", loseRoute("node1", "node3"))), pod: "cut",
			told: notSpread("cut", v1alpha1.ReasonNotAnswered), remedy: `ip route get`, do: "the cluster network's own pod on that node (`ip route get ADDRESS`)"},
		{name: "a switch has a smaller MTU than the NICs", make: inTurn(sending("large", "server", network.MPTCP, ""), whenSpread("large", loseLarge("node2", "gold"))), pod: "large", told: map[channel]string{
			byStatus: `path gold: PeersUnreachable\s+.*node1 to node2 \(only large packets are lost`, byExplain: `gold.*not to node2 now: only large packets are lost`,
			byEvent: `Warning PeersUnreachable MPTCPPath/gold: .*only large packets are lost`, byAlert: `BraidPathDead node=node\d path=gold`,
		}, remedy: `look at the MTU of switches`, do: "the MTU of switch ports and routers"},
		{name: "a NIC becomes a port of a bridge", make: bridge("node1", "green"), told: map[channel]string{
			byStatus: `path green: InterfaceNotUsable\s+.*node1 .*belongs to br7`, byExplain: `green.*belongs to br7 \(bridge\)`,
			byEvent: `Warning InterfaceNotUsable MPTCPPath/green: .*belongs to br7`, byAlert: `BraidPathDown node=node1 path=green`,
		}, remedy: `name br7 in the MPTCPPath`, do: "name the bridge or bond in `spec.interfaces`, or take the NIC out of it"},
	}},
	{name: "the overlay", overlay: true, faults: []fault{
		{name: "a firewall drops the overlay's packets", make: inTurn(sending("inner", "server", network.MPTCP, ""), whenSpread("inner", firewall("node1", "overlay", "udp dport 8472"))), pod: "inner",
			told: map[channel]string{
				byStatus: `policy shop/inner: NotAnswered\s+.*flannel.1`, byExplain: `traffic: not spread: NotAnswered: .*flannel.1`, byEvent: `Warning NotAnswered MPTCPPolicy/inner`,
			}, remedy: `UDP 8472 of VXLAN`, do: "let the overlay's port through between nodes"},
	}},
	{name: "nodes", faults: []fault{
		{name: "a node's agent dies", make: killAgent("node3"), pod: "third", told: map[channel]string{
			byStatus: `node node3: AgentNotReporting\s+its agent renewed its Lease last`, byExplain: `on the node: not known.*renewed its Lease last`,
			byAlert: `BraidAgentDown node=node3`,
		}, remedy: `check that the node is up, and that the agent runs`, do: "the node, the agent's pod there, and whether it reaches the API server"},
		{name: "a node's kubelet is down", make: setCondition("node2", corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown"}), pod: "server", told: map[channel]string{
			byStatus: `node node2: NodeNotReady\s+its kubelet has not reported since`, byExplain: `node node2: NodeNotReady: its kubelet has not reported since`,
		}, remedy: `systemctl status kubelet`, do: "`systemctl status kubelet` on the node"},
		{name: "a node's disk is full", make: inTurn(fillDisk("node1"), apply(policy("late", "plain", "")), setCondition("node1", corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue})), told: map[channel]string{
			byStatus: `(?s)node node1: DiskPressure\s+its disk is full.*node node1: PlanNotSaved\s+[^\n]*no space left`, byExplain: `node node1: DiskPressure: its disk is full`,
		}, remedy: `Make room`, do: "make room: `df -h`, images that nobody needs"},
		{name: "a node's clock jumps", make: jump("node2"), pod: "server", told: map[channel]string{
			byStatus: `node node2: ClockOff\s+its clock is \S+ ahead of the API server's`, byExplain: `node node2: ClockOff: its clock is \S+ ahead`,
		}, remedy: `timedatectl`, do: "set it by NTP"},
	}},
	{name: "the controller", faults: []fault{
		{name: "no controller runs", make: killController, told: map[channel]string{
			byStatus: `controller: NoLeader\s+its Lease was renewed last`, byAlert: `BraidControllerDown`,
		}, remedy: `see that they can be scheduled and reach the API server`, do: "its pods' events and logs"},
	}},
	{name: "the API server", faults: []fault{
		{name: "the API server is away", make: stopServer, told: map[channel]string{
			byStatus: `error: .*The API server does not answer`, byExplain: `error: .*The API server does not answer`, byAlert: `BraidControllerDown`,
		}, remedy: `kubectl get --raw /readyz`, do: "[above](#the-api-server-is-away); nothing changes for connections"},
	}},
}
