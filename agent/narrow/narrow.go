// SPDX-License-Identifier: Apache-2.0

// Package narrow has the subflows of a connection leave by one path where its receiver's
// window is too small for paths that differ. What came early on the good path fills the
// window then, until the other path has delivered what belongs before it, and the connection
// gets less than it would by the good path alone.
//
// The programs of the uplinks tell which flows send much. Of connections that have several of
// those, on different paths, the agent asks the sending pod's kernel how fast each subflow
// delivers. Where all of them together get less than the best one alone would, they share its
// path for a while. If the connection gets more then, it stays so. Now and then, and when the
// window has grown, it tries the other way again.
package narrow

import (
	"context"
	"errors"
	"maps"
	"net/netip"
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
	// pause is how long no look is taken after one, for each subflow that was asked for: to
	// ask for one takes some 10 µs.
	pause = 200 * time.Microsecond
	// forget is how long a connection is remembered that does not send much.
	forget = 2 * time.Second
)

// Datapath knows the flows that send much, and by which paths they leave.
type Datapath interface {
	BusyFlows() ([]datapath.BusyFlow, error)
	Share(flow datapath.BusyFlow, path uint8) error
	Part(flow datapath.BusyFlow) error
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
	next        time.Time     // not before that is looked again

	mutex sync.Mutex
	pods  map[netip.Addr]place
	plans map[place]*v1alpha1.PlanEndpoint
	// changed are the places whose plan is another than when their connections were looked at
	// last.
	changed map[place]bool
	opened  map[place]*pod
	shared  int // connections whose subflows share a path
	change  chan struct{}
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
	return &Narrow{options: options, connections: map[identity]*connection{}, outcomes: outcomes{}, opened: map[place]*pod{}, changed: map[place]bool{}, change: make(chan struct{}, 1)}
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
		}
	}
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
				n.next = time.Time{}
				n.report(n.look(time.Now()))
			}
		case <-tick:
			n.report(n.look(time.Now()))
		}
	}
}

// look looks at the connections that send much over several paths. The more these are, the
// later it looks again.
func (n *Narrow) look(now time.Time) error {
	if now.Before(n.next) {
		return nil
	}
	busy, err := n.options.Datapath.BusyFlows()
	if err != nil {
		return err
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	var failed error
	asked := 0
	for of, group := range suspects(busy) {
		asked += len(group)
		failed = errors.Join(failed, n.lookAt(now, of, group))
	}
	clear(n.changed)
	n.shared = 0
	for identity, c := range n.connections {
		if now.Sub(c.seen) > forget {
			delete(n.connections, identity)
		} else if c.state == together {
			n.shared++
		}
	}
	n.next = now.Add(time.Duration(asked) * pause)
	return failed
}

// suspects are the flows between two addresses that send much over several paths, or share
// one.
func suspects(busy []datapath.BusyFlow) map[addresses][]datapath.BusyFlow {
	groups := map[addresses][]datapath.BusyFlow{}
	for _, flow := range busy {
		of := addresses{flow.Local.Addr(), flow.Remote.Addr()}
		groups[of] = append(groups[of], flow)
	}
	maps.DeleteFunc(groups, func(_ addresses, group []datapath.BusyFlow) bool { return !differ(group) })
	return groups
}

type addresses struct{ local, remote netip.Addr }

func differ(group []datapath.BusyFlow) bool {
	for _, flow := range group {
		if flow.Shared || flow.Path != group[0].Path {
			return true
		}
	}
	return false
}

// lookAt looks at the connections between two addresses.
func (n *Narrow) lookAt(now time.Time, of addresses, flows []datapath.BusyFlow) error {
	where, here := n.pods[of.local]
	if !here {
		return n.part(flows)
	}
	pod, err := n.open(where)
	if err != nil || pod == nil {
		return err
	}
	byToken, ended, failed := pod.subflows(now, flows)
	failed = errors.Join(failed, n.part(ended))
	if n.changed[where] {
		delete(n.outcomes, of)
	}
	for token, found := range byToken {
		failed = errors.Join(failed, n.judge(now, of, identity{where, token}, found))
	}
	return failed
}

// open is nil where the pod has ended meanwhile.
func (n *Narrow) open(of place) (*pod, error) {
	if opened := n.opened[of]; opened != nil {
		return opened, nil
	}
	opened, err := openPod(of.path)
	if opened != nil {
		n.opened[of] = opened
	}
	return opened, err
}

// found are those of a connection's subflows that send much.
type found struct {
	flows    []datapath.BusyFlow
	subflows []subflow
	data     backlog
}

func (n *Narrow) judge(now time.Time, between addresses, of identity, found *found) error {
	c := n.connections[of]
	switch {
	case c != nil:
	case found.flows[0].Shared:
		c = adopt(now)
	case len(found.flows) < 2:
		return nil
	default:
		c = n.outcomes.begin(now, between, found.subflows)
	}
	n.connections[of] = c
	before := c.state
	order := c.look(now, found.subflows, found.data)
	n.outcomes.learn(now, between, before, c)
	if n.changed[of.place] {
		order = c.startOver(now)
	}
	if order != nothing || c.state != before {
		n.options.Log.V(1).Info("a connection's window", "token", of.token, "state", c.state, "path", c.path, "before", c.before)
	}
	switch order {
	case share:
		return n.share(found.flows, c.path)
	case part:
		return n.part(found.flows)
	}
	return nil
}

func (n *Narrow) share(flows []datapath.BusyFlow, path uint8) (failed error) {
	for _, flow := range flows {
		failed = errors.Join(failed, n.options.Datapath.Share(flow, path))
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
