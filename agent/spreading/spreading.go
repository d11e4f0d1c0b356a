// SPDX-License-Identifier: Apache-2.0

// Package spreading tells what the traffic of pods does: whether it is on several paths
// and, where it is not, why. It looks now and then at what there is anyway, the flows of
// the uplinks and the pods' own sockets, and costs no packet anything.
package spreading

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pathmanager/conntrack"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/room"
)

// Interval lies between two looks at a pod, unless looking takes long.
const Interval = 30 * time.Second

// lookShare of the time is spent on looking at most: one part in so many. A look goes
// through the sockets of all namespaces, however few are the pod's.
const lookShare = 50

// Options of Spreading.
type Options struct {
	// Interval between two looks at a pod; 0 for the default.
	Interval time.Duration
	// Flows opens the flows of the uplinks; it must be safe for concurrent use.
	Flows func() (*datapath.FlowTable, error)
	// Dead are the paths that probes call so, by peer.
	Dead func() map[string]map[string]bool
	// Crowded is true while a tenant's connections wait because its others fill the node's
	// paths; nil for never.
	Crowded func(tenant string) bool
	// Upgrade is what is known of the kernel's upgrade of sockets; nil for nothing.
	Upgrade func() *v1alpha1.KernelFeature
	// Notify has the plan's status published. It must not wait for that.
	Notify func()
	Log    logr.Logger
}

// Spreading is the node.Part that looks at what pods' traffic does.
type Spreading struct {
	options Options
	find    func(local, remote netip.AddrPort) (conntrack.Ends, bool, error)
	tracked *conntrack.Table // of the node; nil where it has none
	room    *room.Room

	mu    sync.Mutex
	model *node.Model
	pods  map[types.UID]*pod
	// totals are what was carried, by namespace and path.
	totals map[string]map[string]carried
}

// pod is what is kept of an endpoint from one look to the next.
type pod struct {
	namespace string
	// kept is what its sockets had carried; nil before the first look.
	kept    map[ends]keptSocket
	partly  bool
	held    int       // places in the room
	first   time.Time // of the looks
	at      time.Time // of the last one
	settled settled
	shown   agentapi.Spreading
}

// New looks at nothing yet.
func New(options Options) *Spreading {
	options.Log = options.Log.WithName("spreading")
	if options.Interval == 0 {
		options.Interval = Interval
	}
	s := &Spreading{options: options, room: room.New(mostKept), model: &node.Model{}, pods: map[types.UID]*pod{}, totals: map[string]map[string]carried{}}
	if tracked, err := conntrack.Dial(0); err != nil {
		options.Log.Error(err, "failed to open connection tracking: where connections to Services go is not known")
	} else {
		s.tracked, s.find = tracked, tracked.Find
	}
	return s
}

// Apply tells what was seen last, and has the model's endpoints looked at.
func (s *Spreading) Apply(_ context.Context, model *node.Model) (report node.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.model = model
	kept := map[types.UID]*pod{}
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		if kept[endpoint.UID] = s.pods[endpoint.UID]; kept[endpoint.UID] == nil {
			kept[endpoint.UID] = &pod{namespace: endpoint.Namespace, settled: settled{told: toldBefore(model, endpoint.UID)}}
		}
		if told := kept[endpoint.UID].settled.told; told != (verdict{}) {
			report.Describe(endpoint.UID, func(status *v1alpha1.EndpointStatus) { status.Spreading = told.status() })
		}
	}
	s.replace(kept)
	return report
}

// replace forgets the pods that are gone, and namespaces without any.
func (s *Spreading) replace(kept map[types.UID]*pod) {
	here := map[string]bool{}
	for _, p := range kept {
		here[p.namespace] = true
	}
	for uid, gone := range s.pods {
		if kept[uid] == nil {
			s.room.Give(gone.held, gone.namespace, string(uid))
		}
	}
	maps.DeleteFunc(s.totals, func(namespace string, _ map[string]carried) bool { return !here[namespace] })
	s.pods = kept
}

// toldBefore is what the last agent told of an endpoint: this one knows nothing better yet.
func toldBefore(model *node.Model, uid types.UID) verdict {
	if model.Plan == nil {
		return verdict{}
	}
	for i := range model.Plan.Status.Endpoints {
		if of := &model.Plan.Status.Endpoints[i]; of.UID == uid && of.Spreading != nil {
			return verdict{of.Spreading.State, of.Spreading.Reason, of.Spreading.Message}
		}
	}
	return verdict{}
}

// messageLimit is the schema's, in bytes, but for the sign that it was cut.
const messageLimit = 256 - len("…")

func (v verdict) status() *v1alpha1.SpreadingStatus {
	return &v1alpha1.SpreadingStatus{State: v.state, Reason: v.reason, Message: node.Shorten(messageLimit, v.message)}
}

// Remove has nothing to undo.
func (s *Spreading) Remove(context.Context) error { return nil }

// Close lets go of connection tracking.
func (s *Spreading) Close() error {
	if s.tracked == nil {
		return nil
	}
	return s.tracked.Close()
}
