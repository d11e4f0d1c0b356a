// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"cmp"
	"fmt"
	"slices"

	"braid.dev/braid/agent/node"
)

// mostPods is how many interfaces of pods that hold VMs are announced to on a node. Whoever
// makes a pod can say that it holds one, and each has a table that the agent's memory pays
// for. VMs that are no pods are an admin's to make, and do not count.
const mostPods = 128

// errShare is of pods beyond that.
var errShare = fmt.Errorf("further subflows of the guest: the node has tables for %d pods that hold VMs, shared by their namespaces, and this pod's namespace has used its part", mostPods)

// share takes from wants what goes beyond.
func (p *Part) share(wants map[uint32]want, report *node.Report) {
	Share(wants, mostPods, func(one want) string { return one.pod }, p.has, func(one want) { report.Fail(one.owner, errShare) })
}

// has tells whether a guest has a table already.
func (p *Part) has(index uint32) bool {
	var id uint32
	return p.loaded.Value.from.GuestFlows.Lookup(index, &id) == nil
}

// Share takes from the interfaces of pods those that get no table, where a node has so many,
// and has each refused. pod is the namespace of a pod; empty of what is none, which stays.
func Share[Want any](wants map[uint32]Want, most int, pod func(Want) string, has func(index uint32) bool, refuse func(Want)) {
	pods := map[uint32]string{}
	for index, one := range wants {
		if of := pod(one); of != "" {
			pods[index] = of
		}
	}
	for _, index := range beyond(pods, most, has) {
		refuse(wants[index])
		delete(wants, index)
	}
}

// beyond are those of the interfaces of pods that get no table, where a node has so many.
// pods has their namespaces, which take turns; within one, those come first that have a table.
func beyond(pods map[uint32]string, most int, has func(index uint32) bool) []uint32 {
	if len(pods) <= most {
		return nil
	}
	byNamespace := map[string][]uint32{}
	for index, namespace := range pods {
		byNamespace[namespace] = append(byNamespace[namespace], index)
	}
	type turn struct {
		number, place int
		index         uint32
	}
	place := func(index uint32) int {
		if has(index) {
			return 0
		}
		return 1
	}
	var turns []turn
	for _, indexes := range byNamespace {
		slices.SortFunc(indexes, func(a, b uint32) int { return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b)) })
		for number, index := range indexes {
			turns = append(turns, turn{number, place(index), index})
		}
	}
	slices.SortFunc(turns, func(a, b turn) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.place, b.place), cmp.Compare(a.index, b.index))
	})
	var left []uint32
	for _, turn := range turns[most:] {
		left = append(left, turn.index)
	}
	return left
}
