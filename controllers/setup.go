// SPDX-License-Identifier: Apache-2.0

// Package controllers feeds the cluster's objects to the compile in package
// policy, writes the plans that change, and gathers what the agents report into
// the status of policies, paths and nodes.
//
// Three reconcilers do that, each with a single request for the cluster as a whole:
// the plan reconciler compiles and writes plans, the address reconciler confirms
// which addresses that agents report are their nodes', the status reconciler compares
// what was compiled with what the agents say. Events come together for a moment
// before a run, so that an apply of many objects is one run. A run compiles the
// plans of the nodes whose pods changed, and after other changes those of the nodes
// with pods that they concern. A third one gives each node's agent an identity of its
// own.
package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/throttle"
	"braid.dev/braid/policy"
)

// What the controller may do. The cluster's objects are only watched; of our own
// it writes plans, the spec of nodes and the status of the others, never the status
// of plans, which is the agents'. Leases: the agents' are watched, one of its own
// elects the leader; RBAC does not see the name of one that is created, and what is to
// be handed to agents has to be held (identity.go). ConfigMaps may hold the objects of
// programs. Events: events.k8s.io for
// objects, the core group for leader election.
//
// +kubebuilder:rbac:groups="",resources=namespaces;nodes;pods,verbs=list;watch
// +kubebuilder:rbac:groups=braid.dev,resources=clustermptcppolicies;mptcpendpoints;mptcpguardrails;mptcppaths;mptcppolicies,verbs=list;watch
// +kubebuilder:rbac:groups=braid.dev,resources=clustermptcppolicies/status;mptcpendpoints/status;mptcpguardrails/status;mptcpnodes/status;mptcppaths/status;mptcppolicies/status,verbs=patch
// +kubebuilder:rbac:groups=braid.dev,resources=mptcpnodes,verbs=list;watch;update;delete
// +kubebuilder:rbac:groups=braid.dev,resources=mptcpnodeplans,verbs=list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=braid-system,resources=leases,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups="",namespace=braid-system,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",namespace=braid-system,resources=configmaps,verbs=list;watch

// Names that the controller is known by.
const (
	// FieldOwner owns the fields that the controller applies. The spec and conditions
	// of an MPTCPNode are among them: the agent writes everything else there.
	FieldOwner = "braid-controller"
	// LeaderElectionID is the name of the Lease that elects the leader.
	LeaderElectionID = "braid-controller"
)

// Defaults of Options.
const (
	DefaultNamespace          = "braid-system"
	DefaultDebounce           = 5 * time.Millisecond
	DefaultPause              = 30 * time.Millisecond
	DefaultStatusDebounce     = 200 * time.Millisecond
	DefaultAddressDebounce    = 10 * time.Millisecond
	DefaultAgentLeaseDuration = 40 * time.Second
)

// Options are the settings of the controllers; the zero value means the defaults.
type Options struct {
	// Namespace holds the Leases of the agents and the ConfigMaps of programs.
	Namespace string
	// Debounce is how long events are gathered before plans are compiled.
	Debounce time.Duration
	// Pause is how long they are gathered at least after plans were compiled, so that a
	// new pod waits only where there are many.
	Pause time.Duration
	// StatusDebounce is how long they are gathered before statuses are written. It
	// leaves agents the time to carry out a change of few pods, so that policies do
	// not tell of each that it is pending.
	StatusDebounce time.Duration
	// AddressDebounce is how long they are gathered before addresses are confirmed.
	AddressDebounce time.Duration
	// PodRanges are ranges of pods' addresses beside the Nodes' podCIDRs; nothing else has any
	// of these.
	PodRanges []netip.Prefix
	// AgentLeaseDuration is how long an agent may be silent whose Lease does not
	// give a duration itself.
	AgentLeaseDuration time.Duration
}

func (o *Options) setDefaults() {
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.Debounce == 0 {
		o.Debounce = DefaultDebounce
	}
	if o.Pause == 0 {
		o.Pause = DefaultPause
	}
	if o.StatusDebounce == 0 {
		o.StatusDebounce = DefaultStatusDebounce
	}
	if o.AddressDebounce == 0 {
		o.AddressDebounce = DefaultAddressDebounce
	}
	if o.AgentLeaseDuration == 0 {
		o.AgentLeaseDuration = DefaultAgentLeaseDuration
	}
}

// ControllerConfig is what a manager's controllers need. Their queues are the plain ones: in
// controller-runtime 0.24 the one with priorities can stop for good when the manager ends
// (it hands an item to a worker that has left, and holds its lock), and the manager then
// waits for its grace period with the lease in its hands.
func ControllerConfig() config.Controller {
	return config.Controller{UsePriorityQueue: new(false)}
}

// Setup adds the reconcilers to a manager, whose cache must have been made with
// CacheOptions.
func Setup(mgr ctrl.Manager, o Options) error {
	o.setDefaults()
	compiled, confirmed := newShared[policy.Result](), newShared[confirmation]()
	if err := setupPlans(mgr, o, compiled); err != nil {
		return fmt.Errorf("set up the plan reconciler: %w", err)
	}
	if err := setupAddresses(mgr, o, confirmed); err != nil {
		return fmt.Errorf("set up the address reconciler: %w", err)
	}
	if err := setupStatus(mgr, o, compiled, confirmed); err != nil {
		return fmt.Errorf("set up the status reconciler: %w", err)
	}
	if err := setupIdentities(mgr, o); err != nil {
		return fmt.Errorf("set up the identity reconciler: %w", err)
	}
	return nil
}

func setupPlans(mgr ctrl.Manager, o Options, compiled *compilation) error {
	r := &planReconciler{
		client: mgr.GetClient(), namespace: o.Namespace, compiled: compiled, changes: newChanges(newDebouncer(o.Debounce, o.Pause)), teller: newHintTeller(mgr.GetClient()), held: newHeldPolicies(),
	}
	if err := mgr.Add(r.teller); err != nil {
		return fmt.Errorf("add the teller of refused hints: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.Pod{}, nodeNameField, nodeNameOf); err != nil {
		return fmt.Errorf("index pods by node: %w", err)
	}
	if err := indexAddresses(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return err
	}
	specChanged := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	endpointChanged := predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{})
	labelsChanged := builder.WithPredicates(predicate.LabelChangedPredicate{})
	return ctrl.NewControllerManagedBy(mgr).Named("plan").
		Watches(&v1alpha1.MPTCPPath{}, r.changes.ofCommon(), specChanged).
		Watches(&v1alpha1.MPTCPPolicy{}, r.changes.ofCommon(), specChanged).
		Watches(&v1alpha1.ClusterMPTCPPolicy{}, r.changes.ofCommon(), specChanged).
		Watches(&v1alpha1.MPTCPGuardrail{}, r.changes.ofCommon(), specChanged).
		Watches(&corev1.Namespace{}, r.changes.ofCommon(), labelsChanged).
		Watches(&corev1.Node{}, r.changes.ofCommon(), labelsChanged).
		Watches(&v1alpha1.MPTCPEndpoint{}, r.changes.ofCommon(), builder.WithPredicates(endpointChanged)).
		Watches(&corev1.Pod{}, r.podHandler(), builder.WithPredicates(podChanged{compiled: compiled})).
		Watches(&corev1.ConfigMap{}, r.changes.ofCommon(), builder.WithPredicates(programsChanged{})).
		Watches(&v1alpha1.MPTCPNodePlan{}, r.changes.of(planNode), builder.WithPredicates(planDrifted{compiled: compiled})).
		Complete(r)
}

func setupStatus(mgr ctrl.Manager, o Options, compiled *compilation, confirmed *shared[confirmation]) error {
	r := &statusReconciler{
		client:    mgr.GetClient(),
		compiled:  compiled,
		confirmed: confirmed,
		agents:    newLiveness(o.AgentLeaseDuration, time.Now),
		history:   planHistory{},
		judged:    judgements{},
		writer:    newStatusWriter(mgr.GetClient(), mgr.GetEventRecorder(FieldOwner)),
		runs:      newDebouncer(o.StatusDebounce, 0),
	}
	return ctrl.NewControllerManagedBy(mgr).Named("status").
		Watches(&v1alpha1.MPTCPNodePlan{}, r.runs.handler()).
		Watches(&v1alpha1.MPTCPNode{}, r.runs.handler()).
		Watches(&coordinationv1.Lease{}, r.leaseHandler()).
		WatchesRawSource(source.Channel(compiled.published, r.runs.handler())).
		WatchesRawSource(source.Channel(confirmed.published, r.runs.handler())).
		Complete(r)
}

// request is the single request of each reconciler.
var request = reconcile.Request{}

// maxDelay bounds how long a run waits because the last one took long.
const maxDelay = 5 * time.Second

// Updates of one object that are worked on at once: a few, and then one each interval. A
// new pod has four; whoever changes labels all the time would have plans written for each.
const (
	updatesAtOnce  = 8
	updateInterval = 250 * time.Millisecond
)

// debouncer puts a reconciler's request into its queue with a delay, so that
// events that come close together cause one run. The delay grows with the cost
// of a run, up to maxDelay, so that endless events take at most half of one processor
// where a run takes no longer than that. An object that changes all the time waits for
// longer; a run for others takes its changes along.
type debouncer struct {
	delay   time.Duration
	pause   time.Duration             // between two runs at least
	cost    atomic.Int64              // of the last run, in nanoseconds
	ended   atomic.Pointer[time.Time] // when that was; nil for never
	updates *throttle.Throttle[types.UID]
}

func newDebouncer(delay, pause time.Duration) *debouncer {
	return &debouncer{delay: delay, pause: pause, updates: throttle.New[types.UID](updatesAtOnce, updateInterval)}
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func (d *debouncer) enqueue(q queue) { d.enqueueAfter(q, 0) }

func (d *debouncer) enqueueAfter(q queue, wait time.Duration) {
	q.AddAfter(request, max(d.delay, wait, min(time.Duration(d.cost.Load()), maxDelay)))
}

// enqueueUpdate is for an object that was there before.
func (d *debouncer) enqueueUpdate(q queue, object client.Object) {
	d.enqueueAfter(q, d.updates.Delay(object.GetUID(), time.Now()))
}

// measure notes the cost of a run that began at start and ends now.
func (d *debouncer) measure(start time.Time) {
	now := time.Now()
	d.cost.Store(int64(now.Sub(start)))
	d.ended.Store(&now)
}

// rest is how much of the pause after the last run is left; 0 for nothing. It goes by the
// monotonic clock: one that is set back an hour must not hold up plans for an hour.
func (d *debouncer) rest(now time.Time) time.Duration {
	ended := d.ended.Load()
	if ended == nil {
		return 0
	}
	return max(0, d.pause-now.Sub(*ended))
}

func (d *debouncer) handler() handler.EventHandler {
	return handler.Funcs{
		CreateFunc:  func(_ context.Context, _ event.CreateEvent, q queue) { d.enqueue(q) },
		UpdateFunc:  func(_ context.Context, e event.UpdateEvent, q queue) { d.enqueueUpdate(q, e.ObjectNew) },
		DeleteFunc:  func(_ context.Context, _ event.DeleteEvent, q queue) { d.enqueue(q) },
		GenericFunc: func(_ context.Context, _ event.GenericEvent, q queue) { d.enqueue(q) },
	}
}
