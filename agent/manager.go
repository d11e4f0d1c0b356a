// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	collector "braid.dev/braid/agent/metrics"
	"braid.dev/braid/agent/saved"
	"braid.dev/braid/api/v1alpha1"
	braidmetrics "braid.dev/braid/internal/metricsserver"
)

// newScheme has the types that the agent uses and no others, which would take
// megabytes on each node.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("failed to register types: %w", err)
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
		MapperProvider:         func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return newMapper(), nil },
		Metrics:                metricsserver.Options{BindAddress: "0"}, // see internal/metricsserver
		HealthProbeBindAddress: options.ProbeAddress,
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.MPTCPNodePlan{}: own,
			&corev1.Node{}:            own,
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("failed to make the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, fmt.Errorf("failed to add the health check: %w", err)
	}
	return mgr, nil
}

// newMapper knows the resources of all objects that the agent reads or writes, so that
// it need not ask the API server, which may be away, before it can start.
func newMapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind, scope := range map[schema.GroupVersionKind]meta.RESTScope{
		corev1.SchemeGroupVersion.WithKind("Node"):          meta.RESTScopeRoot,
		corev1.SchemeGroupVersion.WithKind("ConfigMap"):     meta.RESTScopeNamespace,
		coordinationv1.SchemeGroupVersion.WithKind("Lease"): meta.RESTScopeNamespace,
		v1alpha1.GroupVersion.WithKind("MPTCPNode"):         meta.RESTScopeRoot,
		v1alpha1.GroupVersion.WithKind("MPTCPNodePlan"):     meta.RESTScopeRoot,
	} {
		mapper.Add(kind, scope)
	}
	return mapper
}

func (a *Agent) addReadyCheck(mgr manager.Manager) error {
	if err := mgr.AddReadyzCheck("node", func(*http.Request) error { return a.ready.check(a.source.ready()) }); err != nil {
		return fmt.Errorf("failed to add the readiness check: %w", err)
	}
	return nil
}

// serveMetrics waits for nothing of the API server's but to authorize who asks.
func (a *Agent) serveMetrics(ctx context.Context, mgr manager.Manager) error {
	server, err := braidmetrics.For(mgr, braidmetrics.Options{
		Address: a.options.MetricsAddress, CertDir: a.options.MetricsCertDir, Socket: a.options.MetricsSocket(), Log: a.log.WithName("metrics"),
	})
	if err != nil {
		return err
	}
	return server.Start(ctx)
}

// collectors are of everything that the agent measures.
func (a *Agent) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		collector.NewCollector(a.parts.rules.Pins(), a.log.WithName("metrics")), a.parts.health.Collector(), a.parts.datapath, a.parts.guard, a.parts.guests, a.parts.asking, a.parts.held, a.parts.crowd, a.parts.narrow, a.parts.slow, a.parts.pods, a.parts.relayed, a.parts.rules.AtNIC(), a.parts.transport, a.parts.spreading, a.measured, a.unsteered, a.pathsHere,
	}
}

func (a *Agent) offerMetrics() error {
	for _, collector := range a.collectors() {
		if err := metrics.Registry.Register(collector); err != nil {
			return fmt.Errorf("failed to register metrics: %w", err)
		}
	}
	return nil
}

func (a *Agent) withdrawMetrics() {
	for _, collector := range a.collectors() {
		metrics.Registry.Unregister(collector)
	}
}

// watchObjects makes every change of an object that concerns the node wake the loop.
func (a *Agent) watchObjects(mgr manager.Manager) error {
	for _, object := range []client.Object{&v1alpha1.MPTCPNodePlan{}, &v1alpha1.MPTCPNode{}, &corev1.Node{}} {
		informer, err := mgr.GetCache().GetInformer(context.Background(), object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("failed to watch %T: %w", object, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { a.wake() },
			UpdateFunc: func(before, after any) { a.wakeIfChanged(before, after) },
			DeleteFunc: func(any) { a.wake() },
		}); err != nil {
			return fmt.Errorf("failed to watch %T: %w", object, err)
		}
	}
	return nil
}

func (a *Agent) wakeIfChanged(before, after any) {
	if !concerns(before, after) {
		return
	}
	if wait := a.reportWaits(after, time.Now()); wait > 0 {
		time.AfterFunc(wait, a.wake)
		return
	}
	a.wake()
}

// Changes of another node's report that are seen to at once: a few, and then one each
// interval. An agent whose token was stolen could else keep all other nodes busy.
const (
	reportsAtOnce  = 4
	reportInterval = 500 * time.Millisecond
)

// reportWaits says how long what another node's agent reports waits for its turn. A round
// for anything else takes it along.
func (a *Agent) reportWaits(object any, now time.Time) time.Duration {
	report, ok := object.(*v1alpha1.MPTCPNode)
	if !ok || report.Name == a.options.NodeName {
		return 0
	}
	return a.reports.Delay(report.Name, now)
}

// concerns is false for a change that only this agent's own writes, or the
// server's bookkeeping, make.
func concerns(before, after any) bool {
	switch after := after.(type) {
	case *v1alpha1.MPTCPNodePlan:
		before, ok := before.(*v1alpha1.MPTCPNodePlan)
		return !ok || before.Generation != after.Generation || before.UID != after.UID
	case *v1alpha1.MPTCPNode:
		before, ok := before.(*v1alpha1.MPTCPNode)
		return !ok || !apiequality.Semantic.DeepEqual(before.Spec, after.Spec) ||
			!apiequality.Semantic.DeepEqual(saved.Ways(before.Status.Paths), saved.Ways(after.Status.Paths)) ||
			!apiequality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses)
	case *corev1.Node:
		before, ok := before.(*corev1.Node)
		return !ok || !apiequality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses)
	}
	return true
}
