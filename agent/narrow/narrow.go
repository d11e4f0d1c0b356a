// SPDX-License-Identifier: Apache-2.0

// Package narrow has the subflows of a connection leave by one path where its receiver's
// window is too small for paths that differ. What came early on the good path fills the
// window then, until the other path has delivered what belongs before it, and the connection
// gets less than it would by the good path alone. The sender's buffer is full for the same reason
// where a path carries little.
//
// The programs of the uplinks tell which flows send much. Of connections that have several of
// those, on different paths, the agent asks the sending pod's kernel how fast each subflow
// delivers. Where the window is full it asks for the others too: that of the good path may send next
// to nothing then. Where all of them together get less than the best one alone would, they share its
// path for a while. If the connection gets more then, it stays so. Now and then, and when the
// window has grown, it tries the other way again.
//
// The same is done where a connection sends bursts, and one of its subflows has them late: see bursts.go.
package narrow

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/logonce"
)

const (
	// interval is how often is looked which flows send much: they count by slices of time.
	interval = datapath.LoadSlice
	// pause is how long no look is taken at the connections of a pod after one, for each subflow
	// that was asked for and each pod that has some: to ask for one takes some 10 µs. So a pod with
	// thousands takes nothing from others.
	pause = 200 * time.Microsecond
	// forget is how long a connection is remembered that does not send much.
	forget = 2 * time.Second
)

// Datapath knows the flows that send much, and by which paths they leave.
type Datapath interface {
	BusyFlows() ([]datapath.BusyFlow, error)
	Share(flow datapath.BusyFlow, path uint8) error
	Part(flow datapath.BusyFlow) error
	PathOf(local, remote netip.AddrPort) (path uint8, known bool, err error)
}

// Options of a Narrow.
type Options struct {
	Datapath Datapath
	// Off has all subflows leave by their own paths.
	Off bool
	Log logr.Logger
}

// Narrow is the node.Part that knows which connections' windows are too small.
type Narrow struct {
	options     Options
	connections map[identity]*connection
	outcomes    outcomes
	failed      logonce.Error // the last error
	rests       map[place]rest
	budget      budget

	mutex sync.Mutex
	pods  map[netip.Addr]place
	plans map[place]*v1alpha1.PlanEndpoint
	// changed are the places whose plan is another than at the last look, and versions counts how
	// often a place's was: a connection that sends nothing for a moment is not looked at then.
	changed  map[place]bool
	versions map[place]int
	opened   map[place]*pod
	shared   int // connections whose subflows share a path
	change   chan struct{}
}

// rest is how long no look is taken at a pod's connections, and until when.
type rest struct {
	lasts time.Duration
	until time.Time
}

// place is where a pod's network namespace is.
type place struct {
	path  string
	inode uint64
}

// identity tells a connection from all others of the node.
type identity struct {
	place
	token uint32
}

// New looks at nothing yet.
func New(options Options) *Narrow {
	return &Narrow{options: options, connections: map[identity]*connection{}, outcomes: outcomes{}, rests: map[place]rest{}, opened: map[place]*pod{}, changed: map[place]bool{}, versions: map[place]int{}, change: make(chan struct{}, 1)}
}

// Apply takes over which pods there are.
func (n *Narrow) Apply(_ context.Context, model *node.Model) node.Report {
	pods, plans := map[netip.Addr]place{}, map[place]*v1alpha1.PlanEndpoint{}
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		if n.options.Off || endpoint.Found == nil || endpoint.Found.Path == "" {
			continue
		}
		of := place{endpoint.Found.Path, endpoint.Found.Inode}
		plans[of] = endpoint.PlanEndpoint
		for _, address := range endpoint.Addresses {
			pods[address] = of
		}
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for of, plan := range plans {
		if before, known := n.plans[of]; known && !equality.Semantic.DeepEqual(before, plan) {
			n.changed[of] = true
			n.versions[of]++
		}
	}
	maps.DeleteFunc(n.versions, func(of place, _ int) bool { _, is := plans[of]; return !is })
	n.pods, n.plans = pods, plans
	select {
	case n.change <- struct{}{}:
	default:
	}
	return node.Report{Err: n.closeAllBut(plans)}
}

// closeAllBut lets go of the namespaces of other pods.
func (n *Narrow) closeAllBut(wanted map[place]*v1alpha1.PlanEndpoint) (failed error) {
	for of, pod := range n.opened {
		if _, is := wanted[of]; !is {
			delete(n.opened, of)
			failed = errors.Join(failed, pod.Close())
		}
	}
	return failed
}

// Remove has nothing to undo: what it said is in what others remove.
func (n *Narrow) Remove(context.Context) error { return nil }

// Close leaves the flows as they are.
func (n *Narrow) Close() error {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.pods = nil
	return n.closeAllBut(nil)
}

func (n *Narrow) isWanted() bool {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return len(n.pods) > 0
}

// Run looks at the flows until the context ends.
func (n *Narrow) Run(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		tick := ticker.C
		if !n.isWanted() {
			tick = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.change:
			if !n.isWanted() { // for the last time: flows of pods that are gone part
				n.report(n.look(time.Now()))
			}
		case <-tick:
			n.report(n.look(time.Now()))
		}
	}
}

// look looks at the connections that send much over several paths.
func (n *Narrow) look(now time.Time) error {
	busy, err := n.options.Datapath.BusyFlows()
	if err != nil {
		return err
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if len(n.changed) > 0 {
		maps.DeleteFunc(n.outcomes, func(of addresses, _ *outcome) bool { return n.changed[n.pods[of.local]] })
		clear(n.changed)
	}
	flows, strangers := n.ofPods(busy)
	failed := n.part(strangers)
	for where, group := range flows {
		if now.Before(n.rests[where].until) {
			continue
		}
		asked, err := n.lookAt(now, where, group)
		failed = errors.Join(failed, err)
		n.restAfter(now, where, asked, len(flows))
	}
	n.forgetIdle(now)
	return failed
}

// ofPods are the flows of each pod, and those of none.
func (n *Narrow) ofPods(busy []datapath.BusyFlow) (flows map[place][]datapath.BusyFlow, strangers []datapath.BusyFlow) {
	flows = map[place][]datapath.BusyFlow{}
	for _, flow := range busy {
		if where, here := n.pods[flow.Local.Addr()]; here {
			flows[where] = append(flows[where], flow)
		} else {
			strangers = append(strangers, flow)
		}
	}
	return flows, strangers
}

// restAfter has the connections of a pod for whose subflows was asked so often not be looked at for
// a while: the longer, the more pods there are.
func (n *Narrow) restAfter(now time.Time, where place, asked, pods int) {
	lasts := time.Duration(asked*pods) * pause
	n.rests[where] = rest{lasts, now.Add(lasts)}
}

// forgetIdle forgets connections that no longer send much, and counts those that share a path.
func (n *Narrow) forgetIdle(now time.Time) {
	maps.DeleteFunc(n.rests, func(_ place, rest rest) bool { return now.Sub(rest.until) > forget })
	n.shared = 0
	for identity, c := range n.connections {
		if now.Sub(c.seen) > forget+n.rests[identity.place].lasts {
			delete(n.connections, identity)
		} else if c.hasSettled(true) {
			n.shared++
		}
	}
}

type addresses struct{ local, remote netip.Addr }

// lookAt looks at the connections of a pod that have flows on several paths, or on one that they
// share, and at those that had, and tells for how many subflows it asked.
func (n *Narrow) lookAt(now time.Time, where place, flows []datapath.BusyFlow) (asked int, failed error) {
	pod, err := n.open(where)
	if err != nil || pod == nil {
		return 0, err
	}
	byToken, others, asked, err := pod.connections(now, flows)
	failed = errors.Join(err, n.part(others))
	for token, busy := range byToken {
		of := identity{where, token}
		group, err := pod.withQuiet(now, token, busy, n.options.Datapath)
		failed = errors.Join(failed, err)
		if n.connections[of] == nil && !differ(group) && !pod.isDue(now, group[0]) {
			continue
		}
		asked += len(group)
		found, ended, err := pod.connection(token, group)
		failed = errors.Join(failed, err, n.part(ended))
		if found == nil {
			continue
		}
		failed = errors.Join(failed, n.take(now, of, found))
		if found.others > 0 && (n.isHeld(of, found) || found.mayBeLate()) {
			failed = errors.Join(failed, pod.findQuiet(now, token, group))
		}
	}
	return asked, failed
}

// isHeld tells whether something holds a connection back that its other subflows may explain: those
// that send too little to be told.
func (n *Narrow) isHeld(of identity, found *found) bool {
	c := n.connections[of]
	if c == nil {
		return seen(found.subflows, found.data).full
	}
	return c.hasSettled(false) && c.looks >= few && c.limits.isHeld()
}

// take takes in what was found of a connection. All of its subflows may have ended.
func (n *Narrow) take(now time.Time, of identity, found *found) error {
	backups := found.leaveBackupsOut()
	failed := n.part(backups)
	switch {
	case len(found.flows) > 0:
		failed = errors.Join(failed, n.judge(now, of, found))
	case len(backups) > 0:
		n.forgetShared(of, backups)
	}
	return failed
}

func differ(group []datapath.BusyFlow) bool {
	for _, flow := range group {
		if flow.Shared || flow.Path != group[0].Path {
			return true
		}
	}
	return false
}

// open is nil where the pod has ended meanwhile.
func (n *Narrow) open(of place) (*pod, error) {
	if opened := n.opened[of]; opened != nil {
		return opened, nil
	}
	opened, err := openPod(of.path, &n.budget)
	if opened != nil {
		n.opened[of] = opened
	}
	return opened, err
}

// found are those of a connection's subflows that send much.
type found struct {
	flows    []datapath.BusyFlow
	own      []int // their own paths, or noPath
	subflows []subflow
	data     backlog
	others   int // subflows that the connection has besides
}

// leaveBackupsOut returns the flows of those that are backups: nothing is to leave by their paths
// while others can send, and what leaves by another path may be no backup there.
func (f *found) leaveBackupsOut() (backups []datapath.BusyFlow) {
	var others found
	for i, subflow := range f.subflows {
		if subflow.backup {
			backups = append(backups, f.flows[i])
			continue
		}
		others.flows, others.own, others.subflows = append(others.flows, f.flows[i]), append(others.own, f.own[i]), append(others.subflows, subflow)
	}
	f.flows, f.own, f.subflows = others.flows, others.own, others.subflows
	return backups
}

// forgetShared has a connection begin anew whose subflows are all backups: a rule makes them so on
// the path that they share.
func (n *Narrow) forgetShared(of identity, flows []datapath.BusyFlow) {
	if c := n.connections[of]; c != nil && c.shared {
		delete(n.connections, of)
		for _, between := range pairs(flows) {
			delete(n.outcomes, between)
		}
	}
}

// pairs are the addresses of flows, each once.
func pairs(flows []datapath.BusyFlow) (all []addresses) {
	for _, flow := range flows {
		if of := (addresses{flow.Local.Addr(), flow.Remote.Addr()}); !slices.Contains(all, of) {
			all = append(all, of)
		}
	}
	return all
}

func (n *Narrow) judge(now time.Time, of identity, found *found) error {
	c := n.connections[of]
	if c == nil {
		shared := slices.IndexFunc(found.flows, func(flow datapath.BusyFlow) bool { return flow.Shared })
		if shared < 0 && len(found.flows) < 2 {
			return nil
		}
		c = &connection{version: n.versions[of.place]}
		if shared >= 0 {
			c.adopt(now, found.flows[shared].SharedPath, found.kept())
		}
	}
	n.connections[of] = c
	between := pairs(found.flows)
	for _, between := range between {
		n.outcomes.tell(now, between, c, found.subflows)
	}
	was, wasTrying := c.arrangement, c.trying
	order := c.look(now, found.subflows, found.data)
	for _, between := range between {
		n.outcomes.learn(now, between, wasTrying, c)
	}
	if version := n.versions[of.place]; c.version != version {
		c.version, order = version, c.startOver(now)
	}
	if c.arrangement != was || c.trying != wasTrying {
		n.options.Log.V(1).Info("a connection's window", "token", of.token, "shared", c.shared, "path", c.path, "keeps", c.keeps, "trying", c.trying, "before", c.before)
	}
	return n.follow(c, order, found)
}

// kept are the paths of flows that share none.
func (f *found) kept() (paths uint8) {
	for _, flow := range f.flows {
		if !flow.Shared {
			paths |= 1 << flow.Path
		}
	}
	return paths
}

// follow has the subflows leave as their connection says, those too that send much only now.
func (n *Narrow) follow(c *connection, order order, found *found) error {
	switch {
	case order == part:
		return n.part(found.flows)
	case !c.shared:
		return nil
	}
	var own, shared []datapath.BusyFlow
	for i, flow := range found.flows {
		if path := found.own[i]; path != noPath && c.keeps>>path&1 != 0 {
			own = append(own, flow)
		} else {
			shared = append(shared, flow)
		}
	}
	return errors.Join(n.part(own), n.share(shared, c.path))
}

func (n *Narrow) share(flows []datapath.BusyFlow, path uint8) (failed error) {
	for _, flow := range flows {
		if !flow.Shared || flow.SharedPath != path {
			failed = errors.Join(failed, n.options.Datapath.Share(flow, path))
		}
	}
	return failed
}

func (n *Narrow) part(flows []datapath.BusyFlow) (failed error) {
	for _, flow := range flows {
		if flow.Shared {
			failed = errors.Join(failed, n.options.Datapath.Part(flow))
		}
	}
	return failed
}

// report logs an error once, however often it comes.
func (n *Narrow) report(err error) {
	n.failed.Log(n.options.Log, err, "failed to look which connections' windows are too small for several paths")
}
