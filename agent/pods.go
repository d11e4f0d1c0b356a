// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/agent/pathmanager/conntrack"
	"braid.dev/braid/api/v1alpha1"
)

// errUnfinished says that pods are to be looked at again soon: their statuses tell
// why.
var errUnfinished = errors.New("not every pod is programmed")

// pods are the pods of this node that the agent manages, in their own network
// namespaces.
type pods struct {
	log       logr.Logger
	finder    *endpoints.Finder
	statePath string
	procPath  string
	upgrade   *upgrade
	tracked   *conntrack.Table                  // of the node; nil where it has none
	managed   map[uint64]*pathmanager.Namespace // by inode number
	last      map[uint64]configured             // by the same
}

// configured is what a pod's path manager was set to, and when.
type configured struct {
	settings pathmanager.Settings
	at       time.Time
}

// recheck is how long a pod that nothing happened to is taken for configured: every
// new pod has all others looked at again, which takes milliseconds for each.
// It is shorter than resync, by which drift is found.
const recheck = resync / 2

func openPods(options Options) *pods {
	p := &pods{
		log:       options.Log,
		finder:    endpoints.NewFinder(options.NamespaceDirectories, options.procPath()),
		statePath: podStates(options),
		procPath:  options.procPath(),
		upgrade:   newUpgrade(filepath.Join(options.PinPath, "sockets")),
		managed:   map[uint64]*pathmanager.Namespace{},
		last:      map[uint64]configured{},
	}
	var err error
	if p.tracked, err = conntrack.Dial(0); err != nil {
		p.log.Error(err, "backends of Services are found by their announcements alone")
	}
	return p
}

// apply programs the endpoints, and puts the pods that are no longer among them
// back as they were. It returns one result for each endpoint, those that were
// found, and errUnfinished while one of them is not programmed.
func (p *pods) apply(ctx context.Context, wanted []v1alpha1.PlanEndpoint) ([]v1alpha1.EndpointStatus, map[types.UID]endpoints.Endpoint, error) {
	snapshot, err := p.finder.Look()
	if err != nil {
		p.log.Error(err, "some network namespaces cannot be looked at")
	}
	p.release(ctx, wanted, snapshot, err == nil)
	if err := p.upgrade.keep(upgraded(wanted, snapshot)); err != nil {
		p.log.Error(err, "sockets are upgraded that no policy asks for")
	}
	var unfinished error
	results := make([]v1alpha1.EndpointStatus, 0, len(wanted))
	found := map[types.UID]endpoints.Endpoint{}
	for i := range wanted {
		if endpoint, err := snapshot.Find(endpointAddresses(&wanted[i])); err == nil {
			found[wanted[i].UID] = endpoint
		}
		result := p.program(ctx, &wanted[i], snapshot)
		if result.State != v1alpha1.EndpointProgrammed {
			unfinished = errUnfinished
		}
		results = append(results, result)
	}
	return results, found, unfinished
}

// upgraded are the namespaces whose sockets are to be upgraded, by inode number.
func upgraded(wanted []v1alpha1.PlanEndpoint, snapshot endpoints.Snapshot) map[uint64]bool {
	inodes := map[uint64]bool{}
	for i := range wanted {
		if found, err := snapshot.Find(endpointAddresses(&wanted[i])); err == nil && wanted[i].UpgradeSockets {
			inodes[found.Inode] = true
		}
	}
	return inodes
}

func (p *pods) program(ctx context.Context, wanted *v1alpha1.PlanEndpoint, snapshot endpoints.Snapshot) v1alpha1.EndpointStatus {
	result := v1alpha1.EndpointStatus{
		UID: wanted.UID, Namespace: wanted.Namespace, Name: wanted.Name, PolicyGeneration: wanted.Policy.Generation,
	}
	found, err := snapshot.Find(endpointAddresses(wanted))
	if err != nil {
		result.State, result.Message = v1alpha1.EndpointPending, shorten(err.Error())
		return result
	}
	result.HostInterface = found.HostInterface
	if managesSubflows(wanted) {
		if err := p.configure(ctx, found, settingsOf(wanted)); err != nil {
			result.State, result.Message = v1alpha1.EndpointFailed, shorten(err.Error())
			return result
		}
	}
	result.State = v1alpha1.EndpointProgrammed
	if !wanted.UpgradeSockets {
		return result
	}
	if result.SocketUpgrade, err = p.upgrade.enable(found.Inode); err != nil {
		result.Message = shorten(err.Error())
	}
	return result
}

// configure sets the pod's path manager up. The namespace stays open, because its
// connections are followed from here.
func (p *pods) configure(ctx context.Context, found endpoints.Endpoint, settings pathmanager.Settings) error {
	if last := p.last[found.Inode]; time.Since(last.at) < recheck && reflect.DeepEqual(last.settings, settings) {
		return nil
	}
	delete(p.last, found.Inode)
	opened, err := p.open(found.Inode, found.Path)
	if err != nil {
		return err
	}
	if err := opened.Configure(ctx, settings); err != nil {
		return err
	}
	p.last[found.Inode] = configured{settings, time.Now()}
	return nil
}

func (p *pods) open(inode uint64, path string) (*pathmanager.Namespace, error) {
	if opened, ok := p.managed[inode]; ok {
		return opened, nil
	}
	options := pathmanager.Options{StatePath: p.statePath, Proc: p.procPath, Log: p.log.WithName("pathmanager")}
	if p.tracked != nil {
		options.Destination = p.tracked.Destination
	}
	opened, err := pathmanager.Open(path, options)
	if err != nil {
		return nil, err
	}
	p.managed[inode] = opened
	return opened, nil
}

func settingsOf(wanted *v1alpha1.PlanEndpoint) pathmanager.Settings {
	return pathmanager.Settings{
		Manager:            wanted.Subflows.Manager,
		Count:              int(wanted.Subflows.Count),
		FirstAnnouncedPort: uint16(wanted.Subflows.FirstAnnouncedPort),
		Addresses:          endpointAddresses(wanted),
		Mode:               wanted.Subflows.Mode,
		EachPair:           len(wanted.Paths),
		Reopen:             wanted.Subflows.Reopen,
		OpenAfter: pathmanager.OpenAfter{
			Bytes: uint64(wanted.Subflows.OpenAfterBytes),
			Time:  time.Duration(wanted.Subflows.OpenAfterMillis) * time.Millisecond,
		},
	}
}

// managesSubflows is false for pods whose own MPTCP settings stay as they are.
func managesSubflows(wanted *v1alpha1.PlanEndpoint) bool {
	return wanted.Subflows.Manager != v1alpha1.SubflowManagerNone
}

// release puts the pods back that are no longer wanted, also those of an earlier
// agent, and lets go of those that are gone. A look that was not complete does not
// tell which are gone: what they were like before must not be forgotten then.
func (p *pods) release(ctx context.Context, wanted []v1alpha1.PlanEndpoint, snapshot endpoints.Snapshot, complete bool) {
	keep := map[uint64]bool{}
	for i := range wanted {
		if found, err := snapshot.Find(endpointAddresses(&wanted[i])); err == nil && managesSubflows(&wanted[i]) {
			keep[found.Inode] = true
		}
	}
	recorded, err := pathmanager.Recorded(p.statePath, keep)
	if err != nil {
		p.log.Error(err, "some pods keep settings of an earlier agent")
	}
	for _, identity := range recorded {
		_, exists := snapshot.Path(identity.Inode)
		if !exists && !complete {
			continue
		}
		if err := p.releaseOne(ctx, identity, snapshot); err != nil {
			p.log.Error(err, "a pod keeps settings that no policy asks for", "networkNamespace", identity.String())
		}
	}
}

func (p *pods) releaseOne(ctx context.Context, identity namespace.Identity, snapshot endpoints.Snapshot) error {
	delete(p.last, identity.Inode)
	path, exists := snapshot.Path(identity.Inode)
	if !exists {
		return errors.Join(p.forget(identity.Inode), pathmanager.Forget(p.statePath, identity))
	}
	opened, err := p.open(identity.Inode, path)
	if err != nil {
		return err
	}
	if opened.Identity() != identity { // another namespace has the number now
		return errors.Join(p.forget(identity.Inode), pathmanager.Forget(p.statePath, identity))
	}
	if err := opened.Restore(ctx); err != nil {
		return err
	}
	return p.forget(identity.Inode)
}

// forget lets go of a pod's network namespace.
func (p *pods) forget(inode uint64) error {
	delete(p.last, inode)
	opened, ok := p.managed[inode]
	if !ok {
		return nil
	}
	delete(p.managed, inode)
	return opened.Close()
}

// close leaves everything as it is.
func (p *pods) close() error {
	failed := p.upgrade.close()
	for inode := range p.managed {
		failed = errors.Join(failed, p.forget(inode))
	}
	if p.tracked != nil {
		failed = errors.Join(failed, p.tracked.Close())
	}
	return failed
}

// removeAll puts all pods back, also those of an earlier agent.
func (p *pods) removeAll(ctx context.Context) error {
	snapshot, err := p.finder.Look()
	p.release(ctx, nil, snapshot, err == nil)
	left, recordErr := pathmanager.Recorded(p.statePath, nil)
	if len(left) > 0 {
		recordErr = errors.Join(recordErr, fmt.Errorf("%d pods could not be put back as they were", len(left)))
	}
	return errors.Join(err, recordErr, p.upgrade.keep(nil))
}
