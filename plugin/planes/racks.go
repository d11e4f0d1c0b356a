// SPDX-License-Identifier: Apache-2.0

package planes

import (
	"fmt"
	"net/netip"
	"slices"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

// RackQuestions find out which NICs of several racks are on one plane: those of one name, in
// subnets of which no node has two, that reach each other over routers. There are none where
// all nodes' NICs are neighbours.
func RackQuestions(nodes []Node) map[string]Question {
	questions := map[string]Question{}
	for _, pair := range pairs(segments(nodes)) {
		question := questions[pair.from.Node]
		question.Ask = append(question.Ask, pair.asks()...)
		questions[pair.from.Node] = question
	}
	return questions
}

// segments are groups of NICs that share subnets, also of one node alone.
func segments(nodes []Node) (found []Plane) {
	items := itemsOf(nodes)
	shared := crowded(items)
	join(items, shared)
	for _, group := range grouped(items) {
		found = append(found, planeOf(group, nodes, shared))
	}
	return found
}

// pair are two segments of one name that may be racks of one plane, with a member of each
// that tells for all.
type pair struct {
	one, other int // places in the list of segments
	from, to   *Member
	subnets    []netip.Prefix // of the other
}

// pairs has each segment with a few others of its name, in a ring: all are asked about, and
// what is asked does not grow with the square of the racks.
func pairs(segments []Plane) (found []pair) {
	byName := map[string][]int{}
	var names []string
	for i := range segments {
		name := commonName(segments[i].Members)
		if name == "" || working(&segments[i]) == nil {
			continue
		}
		if byName[name] == nil {
			names = append(names, name)
		}
		byName[name] = append(byName[name], i)
	}
	for _, name := range names {
		ring := byName[name]
		for at, one := range ring {
			for n := 1; n <= neighbours && n < len(ring); n++ {
				other := ring[(at+n)%len(ring)]
				found = append(found, pair{one, other, working(&segments[one]), working(&segments[other]), segments[other].Subnets})
			}
		}
	}
	return found
}

// working is a member whose NIC works; nil where there is none. Bridges of one node are for
// what runs on it, and its subnet is behind it alone.
func working(segment *Plane) *Member {
	for i := range segment.Members {
		member := &segment.Members[i]
		if member.nic.SetUp && member.nic.Carrier && (len(segment.Members) > 1 || member.nic.Kind != "bridge") {
			return member
		}
	}
	return nil
}

func (p *pair) asks() (asks []string) {
	for _, address := range p.to.of(p.subnets) {
		asks = append(asks, address.String()+"%"+p.from.NIC)
	}
	return asks
}

// answer is what is known of the way from the one to the other: that of the address that is
// reached, if one is. Agents that do not tell of routers join nothing.
func (p *pair) answer(nodes []Node) (best *agentapi.Answer) {
	at := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == p.from.Node })
	if at < 0 || nodes[at].Survey == nil {
		return nil
	}
	for i := range nodes[at].Survey.Answers {
		answer := &nodes[at].Survey.Answers[i]
		if answer.NIC != p.from.NIC || !slices.Contains(p.to.of(p.subnets), answer.Address) {
			continue
		}
		if best == nil || leads(answer) {
			best = answer
		}
	}
	return best
}

func leads(answer *agentapi.Answer) bool { return answer.Answered && answer.Router.IsValid() }

// joinRacks makes one plane of the segments that routers join, and of those that an
// MPTCPPath over routers has.
func joinRacks(segments []Plane, nodes []Node, paths []v1alpha1.MPTCPPath) []Plane {
	planeOf := make([]int, len(segments))
	for i := range planeOf {
		planeOf[i] = i
	}
	unite := func(a, b int) {
		a, b = planeOf[a], planeOf[b]
		for i := range planeOf {
			if planeOf[i] == max(a, b) {
				planeOf[i] = min(a, b)
			}
		}
	}
	all := pairs(segments)
	for i := range all {
		if answer := all[i].answer(nodes); answer != nil && leads(answer) {
			unite(all[i].one, all[i].other)
		}
	}
	firstOf := map[string]int{}
	for i := range segments {
		path := pathOf(&segments[i], paths)
		if path == nil || path.Spec.Underlay != v1alpha1.UnderlayRouted {
			continue
		}
		if first, known := firstOf[path.Name]; known {
			unite(first, i)
		} else {
			firstOf[path.Name] = i
		}
	}
	tellApart(segments, all, nodes, planeOf)
	return united(segments, planeOf)
}

// tellApart notes why segments of one name are planes of their own.
func tellApart(segments []Plane, all []pair, nodes []Node, planeOf []int) {
	for i := range all {
		one, other := &segments[all[i].one], &segments[all[i].other]
		answer := all[i].answer(nodes)
		if planeOf[all[i].one] == planeOf[all[i].other] || answer == nil || len(one.Members) < 2 || len(other.Members) < 2 {
			continue
		}
		why := "has no route over a router to"
		if answer.Router.IsValid() {
			why = fmt.Sprintf("gets no answer over router %s from", answer.Router)
		}
		one.apart = append(one.apart, fmt.Sprintf("%s of %s %s %s of %s", all[i].from.NIC, all[i].from.Node, why, answer.Address, all[i].to.Node))
	}
}

func united(segments []Plane, planeOf []int) (found []Plane) {
	at := map[int]int{}
	for i := range segments {
		place, known := at[planeOf[i]]
		if !known {
			at[planeOf[i]] = len(found)
			found = append(found, segments[i])
			continue
		}
		found[place].add(&segments[i])
	}
	return found
}

// add adds the NICs of another rack.
func (p *Plane) add(rack *Plane) {
	p.Routed, p.ByName = true, p.ByName || rack.ByName
	for _, member := range rack.Members {
		if p.Member(member.Node) == nil {
			p.Members = append(p.Members, member)
		}
	}
	for _, subnet := range rack.Subnets {
		if !slices.Contains(p.Subnets, subnet) {
			p.Subnets = append(p.Subnets, subnet)
		}
	}
	p.apart = append(p.apart, rack.apart...)
	p.sort()
}

// racks: what looks like one plane of several racks and is not joined, and paths that say
// they are not.
func racks(_ []Node, found []Plane) Finding {
	var apart, switched, wide []string
	for i := range found {
		plane := &found[i]
		apart = append(apart, plane.apart...)
		if plane.Routed && plane.Exists && !plane.pathIsRouted {
			switched = append(switched, fmt.Sprintf("routers join the subnets of %s, and its underlay is Switched", plane.Name))
		}
		if !plane.Exists && len(plane.Subnets) > maxRanges {
			wide = append(wide, fmt.Sprintf("%s has %d subnets", plane.Name, len(plane.Subnets)))
		}
	}
	switch {
	case len(switched) > 0:
		return Finding{"racks", Failed, shorten(switched), "set spec.underlay: Routed and addressRanges of all racks: docs/routed.md"}
	case len(wide) > 0:
		return Finding{"racks", Failed, shorten(wide), fmt.Sprintf("a path takes %d ranges: write the manifest (-o yaml), and give it wider ones that contain those of all racks, and nothing else", maxRanges)}
	case len(apart) > 0:
		return Finding{"racks", Warning, shorten(apart), "if they are one plane, give the NIC on each node a route over its router to the plane's subnets in the other racks: docs/routed.md"}
	}
	return Finding{}
}
