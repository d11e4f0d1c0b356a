// SPDX-License-Identifier: Apache-2.0

// Package agent is the node's agent: it reads its node's plan, carries it out
// through its sub-packages, and says what it did. It needs the API server for
// news alone; packets and pods' connections go on without it.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/health"
	collector "braid.dev/braid/agent/metrics"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/agent/programs"
	"braid.dev/braid/api/v1alpha1"
)

// +kubebuilder:rbac:groups=braid.dev,resources=mptcpnodeplans,verbs=get;list;watch
// +kubebuilder:rbac:groups=braid.dev,resources=mptcpnodeplans/status,verbs=patch
// +kubebuilder:rbac:groups=braid.dev,resources=mptcpnodes,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=braid.dev,resources=mptcpnodes/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=braid-system,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups="",namespace=braid-system,resources=configmaps,verbs=get

// Options of an agent.
type Options struct {
	// NodeName is the name of the agent's Node.
	NodeName string
	// Namespace holds the agent's Lease.
	Namespace string
	// PinPath is the agent's directory on a BPF file system.
	PinPath string
	// StatePath is a directory for what must be known after a restart to put
	// pods' network namespaces back as they were.
	StatePath string
	// NamespaceDirectories are where container runtimes mount the pods' network
	// namespaces, beside those of processes.
	NamespaceDirectories []string
	// ProcPath is where a proc file system with all processes of the machine is
	// mounted, whose sys/net can be written; empty means /proc.
	ProcPath string
	// ProgramDirectory holds blocks of one's own as files; empty where the agent takes
	// none from there.
	ProgramDirectory string
	// Version of the agent, for its status.
	Version string
	// HealthPort is the UDP port on which agents answer each other's probes of the
	// paths; 0 means 8478.
	HealthPort uint16
	// MetricsAddress and ProbeAddress are where to serve metrics and probes; "0"
	// serves none.
	MetricsAddress, ProbeAddress string
	Log                          logr.Logger
}

func (o *Options) procPath() string { return cmp.Or(o.ProcPath, "/proc") }

// resync is how often drift is looked for when nothing reports a change.
const resync = 30 * time.Second

// Agent is the agent of one node.
type Agent struct {
	options Options
	log     logr.Logger
	client  client.Client
	reader  client.Reader // of the API server itself

	node     *paths.Node
	detours  *paths.Detours
	datapath *datapath.Datapath
	hints    *hints
	health   *pathHealth
	pods     *pods
	rules    *rules
	guarding *guarding
	origins  origins

	collectors []prometheus.Collector
	measured   *collector.Rounds
	changed    chan struct{}
	published  published
	ready      readiness
	// What goes on beside the loop waits for its rounds.
	nodeRounds, podRounds latest
}

// Run runs an agent until the context ends. It leaves programs, maps and pods as
// they are.
func Run(ctx context.Context, config *rest.Config, options Options) error {
	mgr, err := newManager(config, options)
	if err != nil {
		return err
	}
	a, err := newAgent(mgr, options)
	if err != nil {
		return err
	}
	defer func() {
		if err := errors.Join(a.close(), removeEmpty(options)); err != nil {
			a.log.Error(err, "closing")
		}
	}()
	for _, run := range []manager.RunnableFunc{
		a.renewLease, a.follow, a.health.run, a.hints.run, a.publishNodes, a.managePods,
		a.rules.pacer.Run, a.rules.scheduler.Run, a.rules.probes.Run, a.rules.serve,
		a.guarding.guard.Run,
	} {
		if err := mgr.Add(run); err != nil {
			return fmt.Errorf("adding to the manager: %w", err)
		}
	}
	return mgr.Start(ctx)
}

// Remove undoes everything that agents did on this node: programs, maps, routes,
// rules and settings of pods.
func Remove(ctx context.Context, options Options) error {
	node, err := paths.Open(netns.None())
	if err != nil {
		return err
	}
	defer node.Close()
	detours, err := paths.NewDetours(node)
	if err != nil {
		return err
	}
	defer detours.Close()
	pods := openPods(options)
	err = errors.Join(
		openRules(options, nil).remove(),
		openGuarding(options).guard.Remove(),
		pods.removeAll(ctx),
		pods.close(),
		detours.Remove(),
		datapath.Open(datapathOptions(options)).Remove(),
	)
	return errors.Join(err, removeEmpty(options))
}

// removeEmpty removes the directories that an agent made and that nothing is in.
func removeEmpty(options Options) (failed error) {
	for _, directory := range []string{options.PinPath, podStates(options)} {
		err := os.Remove(directory)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY) {
			continue // EBUSY: a file system is mounted there
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("removing an empty directory: %w", err))
		}
	}
	return failed
}

// podStates is the directory of what pods were like before.
func podStates(options Options) string { return filepath.Join(options.StatePath, "pods") }

// newScheme has the types that the agent uses and no others, which would take
// megabytes on each node.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering types: %w", err)
		}
	}
	return scheme, nil
}

// newManager caches no more than the agent may know: its own plan and Node, and
// everybody's MPTCPNode.
func newManager(config *rest.Config, options Options) (manager.Manager, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	own := cache.ByObject{Field: fields.OneTermEqualSelector("metadata.name", options.NodeName)}
	mgr, err := ctrl.NewManager(config, manager.Options{
		Scheme:                 scheme,
		Logger:                 options.Log,
		Metrics:                metricsserver.Options{BindAddress: options.MetricsAddress},
		HealthProbeBindAddress: options.ProbeAddress,
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.MPTCPNodePlan{}: own,
			&corev1.Node{}:            own,
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, fmt.Errorf("adding the health check: %w", err)
	}
	return mgr, nil
}

func newAgent(mgr manager.Manager, options Options) (*Agent, error) {
	a := &Agent{
		options: options, log: options.Log, client: mgr.GetClient(), reader: mgr.GetAPIReader(),
		datapath: datapath.Open(datapathOptions(options)),
		measured: collector.NewRounds(), changed: make(chan struct{}, 1), nodeRounds: make(latest, 1), podRounds: make(latest, 1),
	}
	var err error
	if a.health, err = openPathHealth(options, a.datapath.ActivePeers, a.wake); err != nil {
		return nil, err
	}
	a.hints = &hints{
		log: options.Log.WithName("hints"), setHealth: a.datapath.SetHealth, prober: a.health.prober, wake: a.wake, now: time.Now,
	}
	if a.node, err = paths.Open(netns.None()); err != nil {
		return nil, errors.Join(err, a.health.close())
	}
	if a.detours, err = paths.NewDetours(a.node); err != nil {
		return nil, errors.Join(err, a.health.close(), a.node.Close())
	}
	a.pods = openPods(options)
	a.rules = openRules(options, programs.ConfigMapsOf(a.reader, options.Namespace))
	a.guarding = openGuarding(options)
	a.collectors = []prometheus.Collector{
		collector.NewCollector(a.rules.shown, options.Log.WithName("metrics")),
		health.NewCollector(a.health.prober, a.health.responder),
		a.guarding.guard,
		a.measured,
	}
	for _, collector := range a.collectors {
		if err := metrics.Registry.Register(collector); err != nil {
			return nil, errors.Join(fmt.Errorf("offering metrics: %w", err), a.close())
		}
	}
	if err := mgr.AddReadyzCheck("node", a.ready.check); err != nil {
		return nil, errors.Join(fmt.Errorf("adding the readiness check: %w", err), a.close())
	}
	return a, a.watchObjects(mgr)
}

func datapathOptions(options Options) datapath.Options {
	return datapath.Options{PinPath: filepath.Join(options.PinPath, "datapath"), Log: options.Log}
}

func (a *Agent) close() error {
	for _, collector := range a.collectors {
		metrics.Registry.Unregister(collector)
	}
	a.detours.Close()
	return errors.Join(a.health.close(), a.guarding.guard.Close(), a.rules.close(), a.pods.close(), a.datapath.Close(), a.node.Close())
}

// watchObjects makes every change of an object that concerns the node wake the loop.
func (a *Agent) watchObjects(mgr manager.Manager) error {
	for _, object := range []client.Object{&v1alpha1.MPTCPNodePlan{}, &v1alpha1.MPTCPNode{}, &corev1.Node{}} {
		informer, err := mgr.GetCache().GetInformer(context.Background(), object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { a.wake() },
			UpdateFunc: func(before, after any) { a.wakeIfChanged(before, after) },
			DeleteFunc: func(any) { a.wake() },
		}); err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
	}
	return nil
}

func (a *Agent) wakeIfChanged(before, after any) {
	if concerns(before, after) {
		a.wake()
	}
}

// wake makes the loop run once more; wakes that come together count as one.
func (a *Agent) wake() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// follow is the agent's loop: everything that happens leads to one and the same
// comparison of what is with what should be. Here is only what packets wait for;
// for what takes its time, or waits for others, see rounds.go.
func (a *Agent) follow(ctx context.Context) error {
	nics, err := a.node.Watch(ctx)
	if err != nil {
		return fmt.Errorf("watching the node's NICs: %w", err)
	}
	ticker := time.NewTicker(resync)
	defer ticker.Stop()
	for {
		if err := a.measured.Measure(ctx, collector.LoopNode, func() error { return a.sync(ctx) }); err != nil && ctx.Err() == nil {
			a.log.Error(err, "the node is not as its plan says; trying again", "within", resync)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.changed:
		case <-nics:
		case <-ticker.C:
		}
	}
}
