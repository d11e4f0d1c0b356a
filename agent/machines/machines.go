// SPDX-License-Identifier: Apache-2.0

// Package machines tells of pods in which a virtual machine seems to run and that nobody
// said so of: what is set in the pod's network namespace then reaches no connection of the
// guest's. Of those that are said to hold one it tells where there is no sign of it.
package machines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// ErrSeen is what is told of such a pod. It is no verdict about the guest: a tap can also be
// a tunnel's, and then the pod's own sockets count.
var ErrSeen = errors.New("a tap is in use in the pod's network namespace, so a virtual machine seems to run there, and what the policy sets for the pod's sockets " +
	"does not reach the guest's: annotate the pod " + v1alpha1.AnnotationVirtualMachine + `: "true", or "false" if its connections are its own`)

// Unseen is what is told of a pod that is said to hold a virtual machine: nothing else tells
// passt, whose sockets are the pod's, from other bindings of KubeVirt's.
const Unseen = "the pod is said to hold a virtual machine, and no tap is in use in its network namespace: where the machine runs by passt, " +
	"its connections are the pod's own, so annotate the pod " + v1alpha1.AnnotationVirtualMachine + `: "false"`

// recheck is how long a look holds: every new pod has all others looked at again.
const recheck = 15 * time.Second

// Part is the node.Part that looks into the namespaces of pods. It changes nothing.
type Part struct {
	node.Idle
	log    logr.Logger
	looked map[uint64]looked // by the namespace's inode number
}

var _ node.Part = (*Part)(nil)

type looked struct {
	at         time.Time
	known, tap bool
}

// New makes one that has not looked yet.
func New(log logr.Logger) *Part { return &Part{log: log, looked: map[uint64]looked{}} }

// Apply looks at pods whose sockets the plan asks something of, and nothing tells whether
// they hold VMs, and at those of which somebody says so.
func (p *Part) Apply(_ context.Context, model *node.Model) (report node.Report) {
	now := map[uint64]looked{}
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		if !isOfInterest(endpoint) {
			continue
		}
		look := p.look(endpoint)
		now[endpoint.Found.Inode] = look
		switch held := endpoint.HoldsVirtualMachine(); {
		case look.known && look.tap && !held:
			report.Fail(endpoint.UID, ErrSeen)
		case look.known && !look.tap && held:
			report.Describe(endpoint.UID, func(status *v1alpha1.EndpointStatus) { node.AddMessage(status, Unseen) })
		}
	}
	p.looked = now
	return report
}

func isOfInterest(endpoint *node.Endpoint) bool {
	if endpoint.Guest != nil || endpoint.Found == nil || endpoint.Found.Path == "" {
		return false
	}
	return endpoint.HoldsVirtualMachine() || endpoint.VirtualMachine == nil && asksOfSockets(endpoint)
}

func asksOfSockets(endpoint *node.Endpoint) bool {
	manager := endpoint.Subflows.Manager
	return manager == v1alpha1.SubflowManagerKernel || manager == v1alpha1.SubflowManagerAgent ||
		endpoint.UpgradeSockets || endpoint.Transport != nil || endpoint.Incast != nil
}

// look looks again where the last look is old. Who cannot be looked at is told of by those
// who configure it.
func (p *Part) look(endpoint *node.Endpoint) looked {
	if before, ok := p.looked[endpoint.Found.Inode]; ok && time.Since(before.at) < recheck {
		return before
	}
	tap, err := usesTap(endpoint.Found.Path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.log.V(1).Info("failed to look for a virtual machine in a pod", "pod", endpoint.FullName(), "error", fmt.Sprint(err))
	}
	return looked{time.Now(), err == nil, tap}
}

// Close has nothing to let go of.
func (*Part) Close() error { return nil }

// Remove has nothing to remove.
func (*Part) Remove(context.Context) error { return nil }
