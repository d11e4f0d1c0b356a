// SPDX-License-Identifier: Apache-2.0

package planes

import "net/netip"

// Question is what a node's agent is asked beside its NICs.
type Question struct {
	// Ask are addresses of other nodes by the NIC that has to reach them, as ADDRESS%NIC.
	Ask []string
	// Route are addresses of pods on other nodes.
	Route []netip.Addr
}

// neighbours is how many other nodes each is asked about: the next ones, so that all are
// asked about, and what is asked does not grow with the square of the nodes.
const neighbours = 3

// Questions are those to each node whose agent answers.
func Questions(nodes []Node, found []Plane) map[string]Question {
	questions := map[string]Question{}
	for i := range nodes {
		if nodes[i].Survey != nil {
			questions[nodes[i].Name] = Question{Route: podsOfOthers(nodes, i)}
		}
	}
	for i := range found {
		members := found[i].Members
		for j := range members {
			question := questions[members[j].Node]
			for _, other := range next(members, j) {
				for _, address := range other.of(found[i].Subnets) {
					question.Ask = append(question.Ask, address.String()+"%"+members[j].NIC)
				}
			}
			questions[members[j].Node] = question
		}
	}
	return questions
}

// of are the member's addresses of these subnets, the first of each.
func (m *Member) of(subnets []netip.Prefix) (addresses []netip.Addr) {
	for _, subnet := range subnets {
		for _, address := range m.Addresses {
			if subnet == address.Masked() {
				addresses = append(addresses, address.Addr())
				break
			}
		}
	}
	return addresses
}

// next are the members behind one, in a ring.
func next(members []Member, from int) (others []*Member) {
	for n := 1; n <= neighbours && n < len(members); n++ {
		others = append(others, &members[(from+n)%len(members)])
	}
	return others
}

// First is the member's first address of these subnets.
func (m *Member) First(subnets []netip.Prefix) string {
	for _, address := range m.of(subnets) {
		return address.String()
	}
	return ""
}

func podsOfOthers(nodes []Node, from int) (pods []netip.Addr) {
	for n := 1; n <= neighbours && n < len(nodes); n++ {
		pods = append(pods, nodes[(from+n)%len(nodes)].Pods...)
	}
	return pods
}
