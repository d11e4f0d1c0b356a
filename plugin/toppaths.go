// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/api/v1alpha1"
)

// PathUses are what the NICs of nodes and paths carried in one interval.
type PathUses struct {
	Paths []PathUse `json:"paths"`
	// NotAsked is how many of the nodes were not asked, because there are many.
	NotAsked int `json:"notAsked,omitempty"`
	// Problems are nodes that could not be read.
	Problems []Problem `json:"problems,omitempty"`
}

// PathUse is one path on one node.
type PathUse struct {
	Node string `json:"node"`
	Path string `json:"path"`
	// NIC is empty while the node has none on the path.
	NIC string `json:"nic,omitempty"`
	// State is Up or Down, and Unknown while the agent tells nothing.
	State string `json:"state"`
	// PeersAlive of PeersProbed other nodes answer on the path.
	PeersAlive  int32 `json:"peersAlive"`
	PeersProbed int32 `json:"peersProbed"`
	// CapacityBitsPerSecond is the path's or else the rate of the NIC's link; 0 while
	// neither is known.
	CapacityBitsPerSecond uint64 `json:"capacityBitsPerSecond,omitempty"`
	// Now is missing where the NIC could not be read.
	Now *PathTraffic `json:"now,omitempty"`
}

// PathTraffic is what a NIC carries, of whomever, and what of it is payload of subflows of
// pods that a policy selects.
type PathTraffic struct {
	SentBitsPerSecond             uint64 `json:"sentBitsPerSecond"`
	ReceivedBitsPerSecond         uint64 `json:"receivedBitsPerSecond"`
	Subflows                      int    `json:"subflows"`
	SubflowsSentBitsPerSecond     uint64 `json:"subflowsSentBitsPerSecond"`
	SubflowsReceivedBitsPerSecond uint64 `json:"subflowsReceivedBitsPerSecond"`
}

// lookAtPaths finds out which nodes have paths, and which NICs these are.
func (t *topper) lookAtPaths(ctx context.Context) error {
	var members v1alpha1.MPTCPNodeList
	var paths v1alpha1.MPTCPPathList
	var agents map[string]*corev1.Pod
	group, all := errgroup.WithContext(ctx)
	group.Go(func() error { return wrap(t.client.List(all, &members), "reading the nodes' paths") })
	group.Go(func() error { return wrap(t.client.List(all, &paths), "reading the paths") })
	group.Go(func() (err error) {
		agents, err = t.system.agents(all)
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	before := t.nodes
	t.agents, t.nodes, t.uses = agents, map[string]nodeTop{}, t.usesOf(members.Items, capacities(paths.Items))
	for i := range t.uses {
		t.nodes[t.uses[i].Node] = before[t.uses[i].Node]
	}
	t.limit(nil)
	for node, stream := range t.following {
		if !slices.Equal(stream.nics, t.nicsOf(node)) {
			stream.stop()
			t.asked[node] = false // one of the NICs that there are now takes its place
		}
	}
	return nil
}

// capacities are those that are declared, in bits a second.
func capacities(paths []v1alpha1.MPTCPPath) map[v1alpha1.PathName]uint64 {
	declared := map[v1alpha1.PathName]uint64{}
	for i := range paths {
		if capacity := paths[i].Spec.Capacity; capacity != nil {
			declared[v1alpha1.PathName(paths[i].Name)] = uint64(max(0, capacity.Value()))
		}
	}
	return declared
}

// usesOf are those that are asked for, by node and path.
func (t *topper) usesOf(members []v1alpha1.MPTCPNode, declared map[v1alpha1.PathName]uint64) (uses []PathUse) {
	for i := range members {
		for _, path := range members[i].Status.Paths {
			if o := &t.options; !o.wantsNode(members[i].Name) || o.path != "" && o.path != string(path.Name) {
				continue
			}
			uses = append(uses, PathUse{
				Node: members[i].Name, Path: string(path.Name), NIC: path.Interface, State: string(path.State),
				PeersAlive: path.PeersAlive, PeersProbed: path.PeersProbed, CapacityBitsPerSecond: declared[path.Name],
			})
		}
	}
	slices.SortFunc(uses, func(a, b PathUse) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Path, b.Path))
	})
	return uses
}

// nicsOf asks for the NICs of a node. The caller has the mutex.
func (t *topper) nicsOf(node string) (flags []string) {
	for i := range t.uses {
		if use := &t.uses[i]; use.Node == node && use.NIC != "" {
			flags = append(flags, "--nic="+use.NIC)
		}
	}
	return flags
}

// pathSnapshot is the latest of all nodes, by node and path.
func (t *topper) pathSnapshot() *PathUses {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	all := &PathUses{Paths: append([]PathUse{}, t.uses...), NotAsked: t.notAsked}
	for i := range all.Paths {
		use := &all.Paths[i]
		use.read(t.nodes[use.Node])
	}
	for name, node := range t.nodes {
		if node.problem != "" {
			all.Problems = append(all.Problems, Problem{"node " + name, "NotRead", node.problem})
		}
	}
	sortProblems(all.Problems)
	return all
}

// read takes in what the node's agent said last, which is newer than its status.
func (u *PathUse) read(node nodeTop) {
	if !node.read {
		u.State = "Unknown"
		return
	}
	nic, there := node.nics[u.NIC]
	if !there || !nic.Up {
		u.State = string(v1alpha1.LinkDown)
	}
	if !there {
		return
	}
	u.CapacityBitsPerSecond = cmp.Or(u.CapacityBitsPerSecond, uint64(nic.SpeedMbit)*1e6)
	of := node.paths[u.Path]
	u.Now = &PathTraffic{
		SentBitsPerSecond: nic.SentBitsPerSecond, ReceivedBitsPerSecond: nic.ReceivedBitsPerSecond, Subflows: of.Subflows,
		SubflowsSentBitsPerSecond: of.SentBitsPerSecond, SubflowsReceivedBitsPerSecond: of.ReceivedBitsPerSecond,
	}
}

func (p *plugin) printPathUses(found *PathUses) error {
	if err := p.print(found, found.text); err != nil {
		return err
	}
	if len(found.Problems) > 0 {
		return ErrNotFine
	}
	return nil
}

var pathUseTitles = []string{"NODE", "PATH", "NIC", "STATE", "PEERS", "SENT", "OF CAPACITY", "BRAID", "RECEIVED", "OF CAPACITY", "BRAID", "SUBFLOWS"}

func (u *PathUses) text() string {
	rows := [][]string{pathUseTitles}
	for i := range u.Paths {
		rows = append(rows, u.Paths[i].cells())
	}
	text := table(rows...)
	if len(u.Paths) == 0 {
		text = "no node has such a path: is there an MPTCPPath, and a policy that selects a pod?\n"
	}
	return text + notAskedLine(u.NotAsked) + list("Not read", u.Problems)
}

func (u *PathUse) cells() []string {
	peers := "-"
	if u.PeersProbed > 0 && u.Now != nil {
		peers = fmt.Sprintf("%d/%d", u.PeersAlive, u.PeersProbed)
	}
	cells := []string{u.Node, u.Path, cmp.Or(u.NIC, "-"), u.State, peers}
	if u.Now == nil {
		return append(cells, "-", "-", "-", "-", "-", "-", "-")
	}
	n := u.Now
	return append(cells,
		rateText(n.SentBitsPerSecond), bar(n.SentBitsPerSecond, u.CapacityBitsPerSecond), share(n.SubflowsSentBitsPerSecond, n.SentBitsPerSecond),
		rateText(n.ReceivedBitsPerSecond), bar(n.ReceivedBitsPerSecond, u.CapacityBitsPerSecond), share(n.SubflowsReceivedBitsPerSecond, n.ReceivedBitsPerSecond),
		fmt.Sprint(n.Subflows))
}

// barWidth is how many signs stand for the whole capacity.
const barWidth = 10

// bar draws a share of a capacity; a little is no nothing.
func bar(rate, capacity uint64) string {
	if capacity == 0 {
		return "-"
	}
	full := min(1, float64(rate)/float64(capacity))
	signs := int(full*barWidth + 0.5)
	return strings.Repeat("#", signs) + strings.Repeat(".", barWidth-signs) + fmt.Sprintf(" %3.0f%%", 100*float64(rate)/float64(capacity))
}

// share is at most the whole: payload and counters are not read in the same instant.
func share(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", min(100, 100*float64(part)/float64(whole)))
}

// pathScreen shows what a topper knows of paths.
type pathScreen struct {
	screen
	source interface{ pathSnapshot() *PathUses }
	uses   *PathUses
}

func (v *pathScreen) refresh() { v.uses, v.read = v.source.pathSnapshot(), true }

// press leaves out what is for columns.
func (v *pathScreen) press(key string) {
	switch {
	case v.typing, key == "q", key == "/", len(key) > 1 && key != keyLeft && key != keyRight:
		v.screen.press(key)
	}
}

func (v *pathScreen) draw(width, height int) string {
	if v.uses == nil {
		v.uses = v.source.pathSnapshot()
	}
	matching := v.matching()
	footer := v.footerOf(v.uses.Problems, v.uses.NotAsked, "q quit  / filter  ↑↓ scroll")
	visible := matching[v.scroll(len(matching), height-2-len(footer)):]
	rows := [][]string{pathUseTitles}
	for i := range visible[:min(len(visible), v.shown)] {
		rows = append(rows, visible[i].cells())
	}
	return paint(v.header(matching), rows, footer, width, height)
}

// matching are the paths that the filter lets through.
func (v *pathScreen) matching() (matching []PathUse) {
	for i := range v.uses.Paths {
		use := &v.uses.Paths[i]
		if strings.Contains(strings.ToLower(strings.Join([]string{use.Node, use.Path, use.NIC, use.State}, " ")), strings.ToLower(v.filter)) {
			matching = append(matching, *use)
		}
	}
	return matching
}

func (v *pathScreen) header(matching []PathUse) string {
	if !v.read {
		return "kubectl braid top --paths: measuring …"
	}
	var sent, received uint64
	for i := range matching {
		if now := matching[i].Now; now != nil {
			sent += now.SentBitsPerSecond
			received += now.ReceivedBitsPerSecond
		}
	}
	text := fmt.Sprintf("%d of %d NICs, sent %s, received %s", len(matching), len(v.uses.Paths), rateText(sent), rateText(received))
	if v.filter != "" && !v.typing {
		text += ", with " + v.filter
	}
	return text
}
