// SPDX-License-Identifier: Apache-2.0

package attacks_test

// attempts are all that are made, in this order.
var attempts = []attempt{
	{"a pod floods by UDP to many ports to exceed its ceiling", byPod, floodManyPorts},
	{"a pod changes its labels to leave its guardrail", byTenant, leaveByLabels},
	{"a pod that is being deleted, with an hour of grace, sends without its ceiling", byTenant, leaveByDeletion},
	{"a pod that takes the name and address of one that ended sends without its ceiling", byTenant, leaveByReplacement},
	{"a pod moves its address to lo before it is found, and sends without its ceiling", byPod, moveToLo},
	{"a pod moves its address to lo, and sends without its ceiling once the agent is started again", byPod, moveToLoThenRestart},
	{"a pod takes another's address to free that one of its ceiling", byPod, takeToFree},
	{"a pod takes another's address to free that one of its ceiling once the agent is started again", byPod, takeToFreeThenRestart},
	{"a pod takes the victim's address to send as the victim", byPod, takeToSend},
	{"a pod's address comes and goes, so that it is not found", byPod, flapAddress},
	{"a pod moves its interface to a network namespace of its own, and sends without its ceiling", byPod, moveInterface},
	{"a pod avoids a rule by extension headers and fragments of IPv6", byPod, avoidRule},
	{"forged SYNs in the victim's name fill its part of the table of flows", byPod, fillOthersFlows},
	{"a pod answers for the addresses of others by ARP and NDP", byPod, spoofNeighbours},
	{"a pod forges ICMP errors to lower the victim's MTU, and redirects to change its route", byPod, forgeICMP},
	{"a pod scans all ports of its node to reach the agent", byPod, scanNode},
	{"a pod sends the agents forged probes and garbage as fast as it can", byPod, floodProbes},
	{"a pod fills its network namespace with hundreds of interfaces to slow the agent", byPod, manyInterfaces},
	{"a pod announces addresses of nodes and of others by its own path manager", byPod, announceOthers},
	{"a pod sends every packet back by an XDP program of its own", byPod, reflectByXDP},
	{"a pod sends packets of every TTL, ECN mark and traffic class", byPod, floodMarks},
	{"a pod opens and resets connections to the victim's server as fast as it can", byPod, churnConnections},
	{"a pod floods the victim's server with MP_JOINs of unknown tokens", byPod, floodJoins},

	{"a tenant writes what only admins may", byTenant, writeAsAdmin},
	{"a tenant changes hints as fast as it can, most of them refused", byTenant, flapHints},
	{"a tenant annotates a pod with a quarter of a megabyte", byTenant, annotateMuch},
	{"a tenant changes labels so that plans are written again and again", byTenant, flapLabels},
	{"a tenant writes hundreds of policies with large selectors", byTenant, manyPolicies},
	{"a tenant writes a policy of as many rules as it may, and changes it again and again", byTenant, manyRules},
	{"a tenant creates and deletes pods as fast as it can", byTenant, churnPods},
	{"a tenant creates events as fast as it can", byTenant, floodEvents},
	{"a tenant has rules for a pod of the host's network to drop its node's packets", byTenant, ruleTheHost},

	{"an agent's token claims the addresses of other nodes to get what is sent to them", byToken, claimAddresses},
	{"an agent's token writes objects of other nodes, and what no agent writes", byToken, writeAsOtherNode},
	{"an agent's token reads secrets, and pods, and rights", byToken, readSecrets},
	{"an agent's token reads the plans of other nodes, ConfigMaps that it does not need, and other agents' tokens", byToken, readPlans},
	{"an agent's token fills its own MPTCPNode with as much as it takes", byToken, fillNode},
	{"an agent's token changes its own MPTCPNode as fast as it can", byToken, flapNode},
	{"an agent's token reports the pods of other nodes as failed", byToken, reportOthersPods},

	{"a neighbour sends the agents probes and replies in the name of other nodes", byNeighbour, forgeProbes},
	{"a neighbour sends a node's probes again", byNeighbour, replayProbes},
	{"a neighbour forges segments of the victim's connection behind VLAN tags", byNeighbour, forgeTagged},
	{"a neighbour forges resets, ends and SYNs of the victim's connection", byNeighbour, forgeSegments},
}
