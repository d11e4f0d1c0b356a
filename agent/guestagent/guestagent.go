// SPDX-License-Identifier: Apache-2.0

// Package guestagent raises the MPTCP limits of VMs' kernels by QEMU's guest agent, where
// policies ask for it, and puts them back. What a guest answers is its tenant's: it is bounded
// in bytes and in time, and no round of the agent waits for it.
package guestagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// Options of a Part.
type Options struct {
	// Sockets is the directory below which guests' agents, or libvirt's daemons, have their
	// sockets; empty where the node's admin gives none.
	Sockets string
	// Pods is kubelet's directory of pods, in which KubeVirt's have a libvirt each; empty where
	// the node's admin gives none.
	Pods string
	// Records is the directory of what limits were before.
	Records string
	// Notify is called when there is something else to say of a guest.
	Notify func()
	Log    logr.Logger
}

// A guest that has been rebooted has its kernel's limits again; one that does not answer may
// do so later.
const (
	recheck = time.Minute
	retry   = 30 * time.Second
	tick    = 5 * time.Second
	// atOnce is how many guests are asked at a time, ofOneNamespace how many of a namespace, and
	// ofTheSilent how many of those that did not answer last: they do not hold up others.
	atOnce         = 32
	ofOneNamespace = 8
	ofTheSilent    = 16
)

// Part is the node.Part that asks guests' agents.
type Part struct {
	options  Options
	patience time.Duration // with one exchange
	now      func() time.Time
	woken    chan struct{}

	asking sync.WaitGroup

	mutex   sync.Mutex
	applied bool // the plan is known
	targets map[types.UID]target
	guests  map[types.UID]*guest
	busy    map[types.UID]*turn
	records map[types.UID]*record // as the files have them; nil until they were read
}

// guest is what is known of a guest of the plan, or of one that is to be put back.
type guest struct {
	status *v1alpha1.GuestAgentStatus
	at     place // of which that is
	next   time.Time
	logged string // what was last logged of putting back
}

var _ node.Part = (*Part)(nil)

// New makes one that has asked nobody yet.
func New(options Options) *Part {
	return &Part{
		options: options, patience: mostTime, now: time.Now, woken: make(chan struct{}, 1),
		targets: map[types.UID]target{}, guests: map[types.UID]*guest{}, busy: map[types.UID]*turn{},
	}
}

// Apply notes whose limits are to be raised, and tells what became of those before. It asks
// nobody: Run does.
func (p *Part) Apply(_ context.Context, model *node.Model) (report node.Report) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	clear(p.targets)
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		at, wanted := placeOf(endpoint.PlanEndpoint)
		if !wanted {
			continue
		}
		who := target{UID: endpoint.UID, Name: endpoint.FullName(), place: at}
		p.targets[who.UID] = who
		if known := p.guests[who.UID]; known != nil && known.status != nil && known.at == at {
			status := *known.status
			report.Describe(who.UID, func(of *v1alpha1.EndpointStatus) { of.GuestAgent = &status })
		}
	}
	p.applied = true
	p.wake()
	return report
}

func (p *Part) wake() {
	select {
	case p.woken <- struct{}{}:
	default:
	}
}

// Run asks the guests whose turn it is, until the context ends.
func (p *Part) Run(ctx context.Context) error {
	defer p.asking.Wait()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-p.woken:
		}
		p.begin(ctx)
	}
}

// note keeps what became of a guest, and returns whether that is something else than before.
func (p *Part) note(who target, err error) (changed bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	status, again := &v1alpha1.GuestAgentStatus{State: v1alpha1.GuestAgentLimitsSet}, recheck
	if err != nil {
		status.State, again = v1alpha1.GuestAgentUnreachable, retry
		if errors.As(err, new(*refusal)) {
			status.State = v1alpha1.GuestAgentRefused
		}
		status.Message = node.Shorten(mostMessage, err.Error())
	}
	before := p.guests[who.UID]
	changed = before == nil || before.status == nil || before.at != who.place || *before.status != *status
	p.guests[who.UID] = &guest{status: status, at: who.place, next: p.now().Add(again)}
	return changed
}

// mostMessage is what the status has room for.
const mostMessage = 512

// noteBack notes when to try again what failed to be put back, and logs it once.
func (p *Part) noteBack(r *record, err error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	known := p.guests[r.UID]
	if known == nil || known.status != nil {
		known = &guest{}
		p.guests[r.UID] = known
	}
	known.at, known.next = r.place, p.now().Add(retry)
	if err != nil && err.Error() != known.logged {
		known.logged = err.Error()
		p.options.Log.Error(err, "failed to put a guest's MPTCP limits back; trying again", "guest", r.Name)
	}
}

// Close leaves the guests as they are: the next agent goes on.
func (*Part) Close() error { return nil }

// Remove puts limits back, in guests that answer. What a tenant keeps a node from must not
// keep Braid on it: others stay as they are, which is logged.
func (p *Part) Remove(ctx context.Context) error {
	all, failed := p.recorded()
	var group sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for _, r := range all {
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			if err := p.restore(ctx, r); err != nil {
				p.options.Log.Error(err, "the limits of a guest stay as they are", "guest", r.Name, "before", r.Before)
			}
		})
	}
	group.Wait()
	if err := os.RemoveAll(p.options.Records); err != nil {
		failed = errors.Join(failed, fmt.Errorf("removing the records of guests' limits: %w", err))
	}
	return failed
}
