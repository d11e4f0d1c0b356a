// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/crowd"
	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pathmanager/conntrack"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/room"
)

// PodsOptions are those of Pods.
type PodsOptions struct {
	// StatePath is the directory of the records of what pods were like before.
	StatePath string
	// ProcPath is where a proc file system with all processes of the machine is
	// mounted, whose sys/net can be written.
	ProcPath string
	// NamespaceDirectories are where container runtimes mount network namespaces.
	// Remove looks for pods there; Apply is told where they are.
	NamespaceDirectories []string
	// Crowd knows whether the node's paths have room for further subflows of a tenant; nil
	// for always.
	Crowd *crowd.Rooms
	// Watcher tells of pods to whose events nobody listens; nil has all be listened to.
	Watcher Watcher
	Log     logr.Logger
}

// Pods are the path managers of this node's pods: the node.Part that opens subflows.
type Pods struct {
	node.Idle
	options   PodsOptions
	namespace Options               // of each pod's Namespace
	tracked   *conntrack.Table      // of the node; nil where it has none
	managed   map[uint64]*Namespace // by inode number
	last      map[uint64]configured // by the same

	mu     sync.Mutex
	counts map[string]*Counts // by tenant; mu guards the map
}

// configured is what a pod's path manager was set to, and when.
type configured struct {
	settings Settings
	at       time.Time
	// lacks says what the kernel cannot; nil where all holds.
	lacks error
}

// recheck is how long a pod that nothing happened to is taken for configured: every
// new pod has all others looked at again, which takes milliseconds for each. The
// agent looks for drift every 30 seconds, and is to find some.
const recheck = 15 * time.Second

// NewPods changes nothing.
func NewPods(options PodsOptions) *Pods {
	options.Log = options.Log.WithName("pathmanager")
	p := &Pods{
		options:   options,
		namespace: Options{StatePath: options.StatePath, Proc: options.ProcPath, Crowd: options.Crowd, Watcher: options.Watcher, Log: options.Log},
		managed:   map[uint64]*Namespace{},
		last:      map[uint64]configured{},
		counts:    map[string]*Counts{},
	}
	p.namespace.Room = room.New(MostConnections)
	tracked, err := conntrack.Dial(0)
	if err != nil {
		options.Log.Error(err, "failed to open connection tracking: the backends of Services are known by their announcements alone")
		return p
	}
	p.tracked, p.namespace.Destination = tracked, tracked.Destination
	return p
}

// Apply configures the path managers of the model's endpoints, and restores pods that
// are no longer among them, also those of an earlier agent.
func (p *Pods) Apply(ctx context.Context, model *node.Model) (report node.Report) {
	wanted := map[uint64]bool{}
	for _, endpoint := range managed(model) {
		wanted[endpoint.Found.Inode] = true
	}
	report.Err = p.release(ctx, wanted, model.Look, model.LookComplete)
	for _, endpoint := range managed(model) {
		report.Fail(endpoint.UID, p.configure(ctx, endpoint, settingsOf(endpoint)))
		p.describe(&report, endpoint)
	}
	p.forgetTenants(model)
	return report
}

// describe tells how many connections of a pod are left as they are.
func (p *Pods) describe(report *node.Report, endpoint *node.Endpoint) {
	opened := p.managed[endpoint.Found.Inode]
	if opened == nil {
		return
	}
	if unmanaged := opened.Unmanaged(); unmanaged > 0 {
		report.Describe(endpoint.UID, func(status *v1alpha1.EndpointStatus) {
			status.UnmanagedConnections = unmanaged
			node.AddMessage(status, fmt.Sprintf("%d connections of the pod keep the subflows that they have: "+
				"the agent manages %d on a node, shared by tenants and pods, and the pod's share is used", unmanaged, MostConnections))
		})
	}
}

// managed are the endpoints that were found, without those whose own MPTCP settings
// stay as they are: a VM's always do.
func managed(model *node.Model) (all []*node.Endpoint) {
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		manager := endpoint.Subflows.Manager
		if endpoint.Found != nil && manager != v1alpha1.SubflowManagerNone && manager != v1alpha1.SubflowManagerHost {
			all = append(all, endpoint)
		}
	}
	return all
}

// configure sets a pod's path manager up. Its namespace stays open, because its
// connections are followed from here.
func (p *Pods) configure(ctx context.Context, endpoint *node.Endpoint, settings Settings) error {
	found := endpoint.Found
	if last := p.last[found.Inode]; time.Since(last.at) < recheck && reflect.DeepEqual(last.settings, settings) {
		return last.lacks
	}
	delete(p.last, found.Inode)
	opened, err := p.open(found.Inode, found.Path, endpoint.Interfaces())
	if err != nil {
		return err
	}
	opened.share(p.countsOf(endpoint.Namespace), endpoint.Namespace, endpoint.FullName())
	if err := opened.Configure(ctx, settings); err != nil {
		return err
	}
	lacks := opened.SetInactivityTimeout(settings.InactivityTimeout)
	if lacks != nil && !errors.Is(lacks, ErrNoCloseTimeout) {
		return lacks
	}
	if err := opened.SetReceiveBuffer(settings.ReceiveBuffer); err != nil {
		return err
	}
	p.last[found.Inode] = configured{settings, time.Now(), lacks}
	return lacks
}

func (p *Pods) open(inode uint64, path string, interfaces []int) (*Namespace, error) {
	if opened, ok := p.managed[inode]; ok {
		return opened, nil
	}
	if path == "" {
		return nil, errors.New("nothing opens the network namespace that the pod's interface is in")
	}
	options := p.namespace
	options.Interfaces = interfaces
	opened, err := Open(path, options)
	if err != nil {
		return nil, err
	}
	if opened.Identity().Inode != inode {
		return nil, errors.Join(fmt.Errorf("%s is another network namespace now", path), opened.Close())
	}
	p.managed[inode] = opened
	return opened, nil
}

func settingsOf(endpoint *node.Endpoint) Settings {
	subflows := endpoint.Subflows
	// A backup needs no subflow of its own: those of the other paths move to it.
	eachPair := len(endpoint.Paths) - len(endpoint.Backup)
	settings := Settings{
		Manager:            subflows.Manager,
		Count:              int(subflows.Count),
		FirstAnnouncedPort: uint16(subflows.FirstAnnouncedPort),
		Addresses:          endpoint.Addresses,
		Mode:               subflows.Mode,
		EachPair:           eachPair,
		Reopen:             subflows.Reopen,
		OpenAfter: OpenAfter{
			Bytes: uint64(subflows.OpenAfterBytes + subflows.AnnounceAfterBytes),
			Time:  time.Duration(subflows.OpenAfterMillis+subflows.AnnounceAfterMillis) * time.Millisecond,
		},
	}
	if t := endpoint.Transport; t != nil && t.InactivityTimeout != nil {
		settings.InactivityTimeout = t.InactivityTimeout.Duration
	}
	if t := endpoint.Transport; t != nil && t.ReceiveBuffer != nil {
		settings.ReceiveBuffer = t.ReceiveBuffer.Value()
	}
	return settings
}

// release restores the pods that have a record and are not wanted, and drops the
// records of those that are gone. A look that was not complete does not tell which
// are gone: what they were like before must not be forgotten then.
func (p *Pods) release(ctx context.Context, wanted map[uint64]bool, look endpoints.Snapshot, complete bool) error {
	recorded, failed := Recorded(p.options.StatePath, wanted)
	for _, identity := range recorded {
		path, exists := look.Path(identity.Inode)
		if !exists && !complete {
			continue
		}
		if err := p.releaseOne(ctx, identity, path, exists); err != nil {
			failed = errors.Join(failed, fmt.Errorf("failed to restore %s, which no policy selects: %w", identity, err))
		}
	}
	return errors.Join(failed, p.closeUnchanged(wanted))
}

// closeUnchanged lets go of the pods that have no record, because they could not be
// configured: nothing is to be restored there.
func (p *Pods) closeUnchanged(wanted map[uint64]bool) (failed error) {
	for inode, opened := range p.managed {
		if !wanted[inode] && !opened.changed() {
			failed = errors.Join(failed, p.close(inode))
		}
	}
	return failed
}

func (p *Pods) releaseOne(ctx context.Context, identity namespace.Identity, path string, exists bool) error {
	delete(p.last, identity.Inode)
	if exists {
		opened, err := p.open(identity.Inode, path, nil)
		if err != nil {
			return err
		}
		if opened.Identity() == identity { // not another that has the number now
			if err := opened.Restore(ctx); err != nil {
				return err
			}
		}
	}
	return errors.Join(p.close(identity.Inode), Forget(p.options.StatePath, identity))
}

// close lets go of a pod's network namespace.
func (p *Pods) close(inode uint64) error {
	delete(p.last, inode)
	opened, ok := p.managed[inode]
	if !ok {
		return nil
	}
	delete(p.managed, inode)
	return opened.Close()
}

// Close leaves all pods so that their connections get subflows while no agent is there.
func (p *Pods) Close() (failed error) {
	failed = p.leave()
	for inode := range p.managed {
		failed = errors.Join(failed, p.close(inode))
	}
	if p.tracked != nil {
		failed = errors.Join(failed, p.tracked.Close())
	}
	return failed
}

// Remove restores all pods.
func (p *Pods) Remove(ctx context.Context) error {
	look, err := endpoints.NewFinder(endpoints.Options{NamespaceDirectories: p.options.NamespaceDirectories, ProcPath: p.options.ProcPath}).Look(nil)
	err = errors.Join(err, p.release(ctx, nil, look, err == nil))
	left, recordErr := Recorded(p.options.StatePath, nil)
	if len(left) > 0 {
		recordErr = errors.Join(recordErr, fmt.Errorf("the MPTCP settings of %d pods are not restored", len(left)))
	}
	return errors.Join(err, recordErr)
}

// leave has all pods announce their addresses, at the same time: each takes a while.
func (p *Pods) leave() error {
	all := slices.Collect(maps.Values(p.managed))
	failed := make([]error, len(all))
	var leaving sync.WaitGroup
	for i, opened := range all {
		leaving.Go(func() { failed[i] = opened.Leave() })
	}
	leaving.Wait()
	return errors.Join(failed...)
}
