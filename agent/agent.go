// SPDX-License-Identifier: Apache-2.0

// Package agent is the node's agent: it reads its node's plan, has its parts carry it
// out, and says what they did. It needs the API server for news alone; packets and
// pods' connections go on without it.
package agent

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/lease"
	"braid.dev/braid/agent/metrics"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/agent/saved"
	"braid.dev/braid/internal/throttle"
)

// The account that all agents share may get a token of the account of an agent's own
// node, and nothing else; what that one may do is written in controllers/identity.go.
//
// +kubebuilder:rbac:groups="",namespace=braid-system-agents,resources=serviceaccounts/token,verbs=create

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
	// SavedPath is a directory on the node's disk for what the agent last read from the
	// API server, to start from where that cannot be reached; empty where nothing is
	// kept.
	SavedPath string
	// NamespaceDirectories are where container runtimes mount the pods' network
	// namespaces, beside those of processes.
	NamespaceDirectories []string
	// ProcPath is where a proc file system with all processes of the machine is
	// mounted, whose sys/net can be written; empty means /proc.
	ProcPath string
	// CgroupPath is where the machine's cgroup file systems are mounted, as at
	// /sys/fs/cgroup: pods are found by their groups.
	CgroupPath string
	// ProgramDirectory holds programs of admins as files; empty where the agent takes
	// none from there.
	ProgramDirectory string
	// GuestAgentDirectory is that below which QEMU has the sockets of guests' agents, or libvirt
	// its own; empty where the agent is to use none.
	GuestAgentDirectory string
	// PodsDirectory is kubelet's of pods, below which KubeVirt's have the sockets of their libvirts;
	// empty where the agent is to use none.
	PodsDirectory string
	// Version of the agent, for its status.
	Version string
	// SpreadingInterval lies between two looks at what a pod's traffic does; 0 for the
	// default.
	SpreadingInterval time.Duration
	// ShareSmallWindows has the subflows of connections whose receivers' windows or send buffers are too small
	// for paths that differ leave by the best one.
	ShareSmallWindows bool
	// XDP says whether rules that only drop act at the XDP hook of NICs: XDPOff, also where it
	// is empty, or XDPNative.
	XDP string
	// HealthPort is the UDP port on which agents answer each other's probes of the
	// paths; 0 means 8478.
	HealthPort uint16
	// MetricsAddress and ProbeAddress are where to serve metrics, by HTTPS, and probes;
	// "0" serves none.
	MetricsAddress, ProbeAddress string
	// MetricsCertDir has tls.crt and tls.key for metrics; with an empty one the agent
	// makes a certificate of its own.
	MetricsCertDir string
	Log            logr.Logger
}

// Values of Options.XDP.
const (
	XDPOff    = "Off"
	XDPNative = "Native"
)

// MetricsSocket gives the metrics to root on the node.
func (o *Options) MetricsSocket() string { return filepath.Join(o.StatePath, "metrics.sock") }

func (o *Options) procPath() string { return cmp.Or(o.ProcPath, "/proc") }

// resync is how often drift is looked for when nothing reports a change, lookAtPins how often
// whether the pins are there: no message tells of that.
const (
	resync     = 30 * time.Second
	lookAtPins = time.Second
)

// Agent is the agent of one node.
type Agent struct {
	options Options
	log     logr.Logger
	client  client.Client

	source  *source
	store   *saved.Store
	network *paths.Node // the node's NICs and routes
	builder *node.Builder
	finder  *endpoints.Finder
	parts   *parts

	measured  *metrics.Rounds
	unsteered prometheus.Gauge // peers
	pathsHere *metrics.Paths
	changed   chan struct{}
	reports   *throttle.Throttle[string] // of other nodes
	published published
	// believed are nodes whose agents are believed; see peersOf.
	believed map[string]bool
	ready    readiness
	// What goes on beside the loop waits for its rounds.
	nodeRounds, podRounds latest[round]
	managed               managed
	rulesKnown            chan struct{} // what became of the pods' rules
	outcomes              latest[outcome]
}

// Run runs an agent until the context ends. It leaves programs, maps and pods as
// they are. One whose pins somebody removed begins anew, as if it had just been started.
func Run(ctx context.Context, config *rest.Config, options Options) error {
	for {
		err := runOnce(ctx, config, options)
		if !errors.Is(err, node.ErrPinsRemoved) || ctx.Err() != nil {
			return err
		}
		options.Log.Error(err, "programs are detached and limits do not hold; beginning anew", "pinPath", options.PinPath)
	}
}

func runOnce(ctx context.Context, config *rest.Config, options Options) error {
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
			a.log.Error(err, "failed to close the agent's parts")
		}
	}()
	if err := a.prepare(mgr); err != nil {
		return err
	}
	return a.run(ctx, mgr)
}

// run runs everything that the agent does. Only what concerns the API server waits for
// that: the manager's caches do, so nothing else is run by the manager.
func (a *Agent) run(ctx context.Context, mgr manager.Manager) error {
	holder := &lease.Holder{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Namespace: a.options.Namespace, Node: a.options.NodeName, Log: a.log}
	group, running := errgroup.WithContext(ctx)
	all := []func(context.Context) error{mgr.Start, holder.Run, a.awaitServer, a.store.Run, a.follow, a.publishNodes, a.managePods, a.publishPlans}
	all = append(all, func(ctx context.Context) error { return a.serveMetrics(ctx, mgr) })
	for _, part := range a.parts.all() {
		all = append(all, part.Run)
	}
	for _, run := range all {
		group.Go(func() error { return run(running) })
	}
	err := group.Wait()
	if ctx.Err() != nil {
		return nil // caches that still waited for the API server say that they were stopped
	}
	return err
}

func newAgent(mgr manager.Manager, options Options) (*Agent, error) {
	a := &Agent{
		options: options, log: options.Log, client: mgr.GetClient(),
		builder:  node.NewBuilder(node.OpenRegistry(options.PinPath, options.Log.WithName("registry"))),
		finder:   endpoints.NewFinder(endpoints.Options{NamespaceDirectories: options.NamespaceDirectories, ProcPath: options.procPath(), CgroupPath: options.CgroupPath}),
		measured: metrics.NewRounds(), unsteered: metrics.NewUnsteeredPeers(), changed: make(chan struct{}, 1),
		reports:    throttle.New[string](reportsAtOnce, reportInterval),
		nodeRounds: make(latest[round], 1), podRounds: make(latest[round], 1), rulesKnown: make(chan struct{}, 1), outcomes: make(latest[outcome], 1),
	}
	a.store = saved.NewStore(options.SavedPath, options.NodeName, options.Log, a.wake)
	a.source = newSource(options, mgr.GetCache(), a.store.Keep)
	var err error
	if a.network, err = paths.Open(netns.None()); err != nil {
		return nil, err
	}
	a.pathsHere = metrics.NewPaths(a.network.NICBytes, options.Log.WithName("metrics"))
	if a.parts, err = openParts(options, a.network, mgr.GetAPIReader(), wires{a.wake, func() { signal(a.rulesKnown) }, a.measured}); err != nil {
		return nil, errors.Join(err, a.network.Close())
	}
	return a, nil
}

// prepare offers metrics and the readiness check, and says what is watched.
func (a *Agent) prepare(mgr manager.Manager) error {
	return errors.Join(a.offerMetrics(), a.addReadyCheck(mgr), a.watchObjects(mgr))
}

// awaitServer has what was saved used while the API server does not answer.
func (a *Agent) awaitServer(ctx context.Context) error { return a.source.wait(ctx, a.wake) }

func (a *Agent) close() error {
	a.withdrawMetrics()
	return errors.Join(a.parts.close(), a.builder.Close(), a.network.Close())
}

// wake makes the loop run once more; wakes that come together count as one.
func (a *Agent) wake() { signal(a.changed) }

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
