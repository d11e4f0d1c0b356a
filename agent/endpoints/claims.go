// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Pod is a pod to be found, or a VM.
type Pod struct {
	UID string
	// GroupUID is the UID in the name of its cgroup, where that is another one.
	GroupUID  string
	Addresses []netip.Addr
	// Interface is the index of the host's end of its interface, as it was found
	// before; 0 for unknown.
	Interface int
	// Yields: it gets no interface that another pod has a right to as well. Where pods have
	// cgroups, its processes alone tell which is its own: its address may be another
	// pod's by now.
	Yields bool
	// Guest is there for a VM.
	Guest *Guest
}

// evidence is what the node shows of a pod. The pod can write none of it.
type evidence struct {
	// inside are the interfaces that lead to namespaces of the pod's processes.
	inside []int
	// routes are where the node sends what is for the pod's addresses.
	routes map[netip.Addr]route
	// guest is the interface that a VM names; 0 for pods, and where guestErr says why there
	// is none.
	guest    int
	guestErr error
}

// route is where the node sends to an address.
type route struct {
	index int
	// exact: it is a route to this address alone, and leads to no router.
	exact bool
	// fallback: it is a default route; local: the address is the node's own.
	fallback, local bool
}

// claim is what became of a pod's evidence.
type claim struct {
	interfaces []int // the first one is the pod's own interface
	disputed   []netip.Addr
	err        error
}

// judge says which interfaces belong to which pod. Each has one owner at most: the pod
// whose processes are behind it, else the one to whose address a route leads there, else
// the one that had it before. Where processes of several pods are behind it a route
// decides, then who had it before, and else nobody gets it.
type judge struct {
	pods   []Pod
	seen   map[string]evidence // by UID
	ends   map[int]HostEnd
	links  *links
	owners map[int]string // UIDs by interface
	claims map[string]*claim
}

func newJudge(pods []Pod, seen map[string]evidence, ends map[int]HostEnd) *judge {
	j := &judge{pods: pods, seen: seen, ends: ends, links: &links{}, owners: map[int]string{}, claims: map[string]*claim{}}
	for i := range pods {
		j.claims[pods[i].UID] = &claim{err: seen[pods[i].UID].guestErr}
	}
	return j
}

func (j *judge) decide() map[string]*claim {
	j.byProcesses()
	j.byRoutes()
	for i := range j.pods {
		if index := j.pods[i].Interface; j.isEnd(index) && j.owners[index] == "" && !j.isContested(index) {
			j.owners[index] = j.pods[i].UID
		}
	}
	j.byGuests()
	for i := range j.pods {
		j.claims[j.pods[i].UID].interfaces = j.interfacesOf(&j.pods[i])
	}
	for i := range j.pods {
		j.dispute(&j.pods[i])
	}
	return j.claims
}

func (j *judge) isEnd(index int) bool { _, ok := j.ends[index]; return ok }

// isContested: several pods have the same right to it.
func (j *judge) isContested(index int) bool {
	owner, known := j.owners[index]
	return known && owner == ""
}

// by lists the pods for which something holds, by interface.
func (j *judge) by(interfaces func(pod *Pod) []int) map[int][]*Pod {
	all := map[int][]*Pod{}
	for i := range j.pods {
		for _, index := range interfaces(&j.pods[i]) {
			if j.isEnd(index) && !slices.Contains(all[index], &j.pods[i]) {
				all[index] = append(all[index], &j.pods[i])
			}
		}
	}
	return all
}

func (j *judge) routesOf(pod *Pod) (indexes []int) {
	for _, route := range j.seen[pod.UID].routes {
		indexes = append(indexes, route.index)
	}
	return indexes
}

func (j *judge) exactRoutesOf(pod *Pod) (indexes []int) {
	for _, route := range j.seen[pod.UID].routes {
		if route.exact && pod.Guest == nil {
			indexes = append(indexes, route.index)
		}
	}
	return indexes
}

func (j *judge) byProcesses() {
	for index, pods := range j.by(func(pod *Pod) []int { return j.seen[pod.UID].inside }) {
		j.award(index, pods, func(pod *Pod) bool { return slices.Contains(j.routesOf(pod), index) }, "processes of several pods are behind")
	}
}

// byRoutes gives what no pod's processes are behind.
func (j *judge) byRoutes() {
	for index, pods := range j.by(j.exactRoutesOf) {
		if _, decided := j.owners[index]; !decided {
			j.award(index, pods, func(*Pod) bool { return false }, "routes to addresses of several pods lead to")
		}
	}
}

// dispute notes the addresses of a pod whose routes lead to what is another's. Both are
// told, unless the pod has no interface any more: its address may be the other's now.
func (j *judge) dispute(pod *Pod) {
	mine := j.claims[pod.UID]
	if pod.Guest != nil {
		return // see proveGuest
	}
	for address, route := range j.seen[pod.UID].routes {
		owner, decided := j.owners[route.index]
		if !decided || owner == pod.UID {
			continue
		}
		mine.disputed = append(mine.disputed, address)
		if owner != "" && len(mine.interfaces) > 0 {
			j.contradict([]string{pod.UID, owner}, fmt.Errorf("the node's route to %s leads to %s, which belongs to another pod", address, j.ends[route.index].Name))
		}
	}
}

// award gives an interface to its only claimant, to the one that is better, or to the
// one that had it. The others are told, all of them where nobody gets it.
func (j *judge) award(index int, pods []*Pod, better func(*Pod) bool, why string) {
	if slices.ContainsFunc(pods, func(pod *Pod) bool { return !pod.Yields }) {
		pods = slices.DeleteFunc(pods, func(pod *Pod) bool { return pod.Yields })
	}
	for _, decides := range []func(*Pod) bool{func(*Pod) bool { return true }, better, func(pod *Pod) bool { return pod.Interface == index }} {
		if chosen := only(pods, decides); chosen != nil {
			j.owners[index] = chosen.UID
			return
		}
	}
	j.owners[index] = ""
	var uids []string
	for _, pod := range pods {
		uids = append(uids, pod.UID)
	}
	j.contradict(uids, fmt.Errorf("%s %s, and nothing tells whose it is", why, j.ends[index].Name))
}

func only(pods []*Pod, decides func(*Pod) bool) (chosen *Pod) {
	for _, pod := range pods {
		if decides(pod) {
			if chosen != nil {
				return nil
			}
			chosen = pod
		}
	}
	return chosen
}

func (j *judge) contradict(uids []string, err error) {
	for _, uid := range uids {
		j.claims[uid].err = errors.Join(j.claims[uid].err, err)
	}
}

// interfacesOf are those of a pod that its addresses can be behind. A route decides
// among several, directly or by the bridge that has one; else those count that no
// bridge has, as no route leads to one, and else all.
func (j *judge) interfacesOf(pod *Pod) []int {
	var own []int
	for index, owner := range j.owners {
		if owner == pod.UID {
			own = append(own, index)
		}
	}
	slices.SortFunc(own, func(a, b int) int {
		inside := j.seen[pod.UID].inside
		return cmp.Or(-compareBools(slices.Contains(inside, a), slices.Contains(inside, b)), cmp.Compare(a, b))
	})
	routes := j.routesOf(pod)
	for _, belongs := range []func(index int) bool{
		func(index int) bool { return slices.Contains(routes, index) },
		func(index int) bool {
			return j.ends[index].MasterIndex != 0 && slices.Contains(routes, j.ends[index].MasterIndex)
		},
		func(index int) bool { return len(routes) > 0 && j.ends[index].MasterIndex == 0 },
	} {
		if chosen := slices.DeleteFunc(slices.Clone(own), func(index int) bool { return !belongs(index) }); len(chosen) > 0 {
			return chosen
		}
	}
	return own
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
