// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/internal/testutil"
)

// apiServer is the real API server that all tests of this package share.
var apiServer *rest.Config

func TestMain(m *testing.M) {
	ctrl.SetLogger(errorLogger)
	klog.SetLogger(errorLogger)
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	crds, err := apiserver.CRDDir()
	if err != nil {
		panic(err)
	}
	server, err := apiserver.Start(context.Background(), apiserver.Options{CRDDirs: []string{crds}})
	if err != nil {
		panic(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	apiServer = server.Config()
	apiServer.QPS = -1
	return m.Run()
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}

// errorLogger shows errors only. It does not log through a test, because
// goroutines of a manager may outlive it for a moment.
var errorLogger = funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) }, funcr.Options{Verbosity: -1})

// cluster is one test's view of the API server: objects of the cluster's scope
// are removed when the test ends, those of a namespace are in one of its own.
type cluster struct {
	client.Client
	t         *testing.T
	namespace string // of pods and policies
	system    string // of Leases and ConfigMaps
	options   Options
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c, err := client.New(apiServer, client.Options{Scheme: newScheme()})
	if err != nil {
		t.Fatal(err)
	}
	k := &cluster{Client: c, t: t}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	k.create(ns)
	k.namespace, k.system = ns.Name, ns.Name
	k.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns.Name + v1alpha1.AgentsNamespaceSuffix}})
	t.Cleanup(k.clean)
	return k
}

// clean removes what tests make, all at once, so that the next one begins empty.
func (k *cluster) clean() {
	ctx := context.Background()
	for _, object := range []client.Object{
		&v1alpha1.MPTCPPath{}, &v1alpha1.ClusterMPTCPPolicy{}, &v1alpha1.MPTCPGuardrail{}, &v1alpha1.MPTCPNode{}, &v1alpha1.MPTCPNodePlan{}, &corev1.Node{},
	} {
		if err := k.DeleteAllOf(ctx, object); err != nil {
			k.t.Errorf("clean up %T: %v", object, err)
		}
	}
	for _, object := range []client.Object{&v1alpha1.MPTCPPolicy{}, &v1alpha1.MPTCPEndpoint{}, &corev1.Pod{}} {
		if err := k.DeleteAllOf(ctx, object, client.InNamespace(k.namespace), client.GracePeriodSeconds(0)); err != nil {
			k.t.Errorf("clean up %T: %v", object, err)
		}
	}
	for _, object := range []client.Object{&coordinationv1.Lease{}, &corev1.ConfigMap{}} {
		if err := k.DeleteAllOf(ctx, object, client.InNamespace(k.system)); err != nil {
			k.t.Errorf("clean up %T: %v", object, err)
		}
	}
	for _, object := range identity("", k.system, nil) {
		if err := k.DeleteAllOf(ctx, object, client.InNamespace(object.GetNamespace()), client.MatchingLabels(object.GetLabels())); err != nil {
			k.t.Errorf("clean up %T: %v", object, err)
		}
	}
}

// requests counts what a client sends: writes other than of Leases, by which
// leaders are elected, and requests that were forbidden.
type requests struct {
	writes    atomic.Int64
	mu        sync.Mutex
	forbidden []string
}

// watched returns a configuration whose requests are counted.
func watched(cfg *rest.Config) (*rest.Config, *requests) {
	r := &requests{}
	counted := rest.CopyConfig(cfg)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			r.count(request, response)
			return response, err
		})
	})
	return counted, r
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

func (r *requests) count(request *http.Request, response *http.Response) {
	// The leader election's own Events are in the core group.
	isLeaderElection := strings.Contains(request.URL.Path, "/leases") || strings.HasPrefix(request.URL.Path, "/api/v1/")
	if request.Method != http.MethodGet && !isLeaderElection {
		r.writes.Add(1)
	}
	if response != nil && response.StatusCode == http.StatusForbidden {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.forbidden = append(r.forbidden, request.Method+" "+request.URL.Path)
	}
}

// elect makes controllers elect a leader, quickly.
func (k *cluster) elect(o *ctrl.Options) {
	o.LeaderElection, o.LeaderElectionID, o.LeaderElectionNamespace = true, LeaderElectionID, k.system
	o.LeaderElectionReleaseOnCancel = true
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = new(4*time.Second), new(3*time.Second), new(200*time.Millisecond)
}

// startController runs the controllers until the test ends or the returned
// function is called.
func (k *cluster) startController(cfg *rest.Config, change ...func(*ctrl.Options)) (stop func()) {
	k.t.Helper()
	controllers := ControllerConfig()
	controllers.SkipNameValidation = new(true)
	options := ctrl.Options{
		Scheme:     newScheme(),
		Cache:      CacheOptions(k.system),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: controllers,
		Logger:     errorLogger,
	}
	for _, f := range change {
		f(&options)
	}
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		k.t.Fatal(err)
	}
	k.options.Namespace = k.system
	if err := Setup(mgr, k.options); err != nil {
		k.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			k.t.Errorf("the manager ended with: %v; its goroutines:\n%s", err, goroutines())
		}
	}
	k.t.Cleanup(stop)
	return stop
}

// goroutines tells what does not end.
func goroutines() string {
	var all strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
	return all.String()
}

func (k *cluster) create(object client.Object) {
	k.t.Helper()
	if err := k.Create(context.Background(), object); err != nil {
		k.t.Fatalf("create %T %s: %v", object, object.GetName(), err)
	}
}

func (k *cluster) delete(object client.Object) {
	k.t.Helper()
	if err := k.Delete(context.Background(), object, client.GracePeriodSeconds(0)); err != nil {
		k.t.Fatalf("delete %T %s: %v", object, object.GetName(), err)
	}
}

// change reads an object anew, changes and updates it.
func change[O client.Object](k *cluster, object O, f func(O)) {
	k.t.Helper()
	k.eventually(func() error {
		if err := k.Get(context.Background(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		f(object)
		return k.Update(context.Background(), object)
	})
}

// patience is how long a test waits for what must happen. It bounds a failing
// test; it is no requirement.
const patience = time.Minute

func (k *cluster) eventually(check func() error) {
	k.t.Helper()
	testutil.Retry(k.t, patience, check)
}

func (k *cluster) node(name string, labels map[string]string) *corev1.Node {
	k.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	k.create(node)
	return node
}

func (k *cluster) path(name string) *v1alpha1.MPTCPPath {
	k.t.Helper()
	path := &v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: name}}
	path.Spec.Interfaces = []v1alpha1.InterfacePattern{"eth-" + v1alpha1.InterfacePattern(name)}
	k.create(path)
	return path
}

func (k *cluster) pod(name, node, address string, labels map[string]string) *corev1.Pod {
	k.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: name, Labels: labels}}
	pod.Spec.NodeName = node
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "example.invalid/none"}}
	pod.Spec.TerminationGracePeriodSeconds = new(int64(0))
	k.create(pod)
	k.setPodStatus(pod, corev1.PodRunning, address)
	return pod
}

func (k *cluster) setPodStatus(pod *corev1.Pod, phase corev1.PodPhase, address string) {
	k.t.Helper()
	pod.Status.Phase = phase
	pod.Status.PodIP, pod.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	if err := k.Status().Update(context.Background(), pod); err != nil {
		k.t.Fatal(err)
	}
}

func (k *cluster) policy(name string, f func(*v1alpha1.MPTCPPolicy)) *v1alpha1.MPTCPPolicy {
	k.t.Helper()
	p := &v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: name}}
	if f != nil {
		f(p)
	}
	k.create(p)
	return p
}

// plan is the plan of a node as the API has it; nil when there is none.
func (k *cluster) plan(node string) (*v1alpha1.MPTCPNodePlan, error) {
	plan := &v1alpha1.MPTCPNodePlan{}
	err := k.Get(context.Background(), client.ObjectKey{Name: node}, plan)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return plan, err
}

// waitForPods waits until a node's plan lists just these pods.
func (k *cluster) waitForPods(node string, names ...string) *v1alpha1.MPTCPNodePlan {
	k.t.Helper()
	var plan *v1alpha1.MPTCPNodePlan
	k.eventually(func() (err error) {
		if plan, err = k.plan(node); err != nil || plan == nil {
			return fmt.Errorf("no plan for node %s: %w", node, err)
		}
		var got []string
		for _, e := range plan.Spec.Endpoints {
			got = append(got, e.Name)
		}
		if !slices.Equal(got, names) {
			return fmt.Errorf("the plan of node %s lists %v, want %v", node, got, names)
		}
		return nil
	})
	return plan
}

// waitForCondition waits until an object has a condition with this reason, and
// returns it.
func (k *cluster) waitForCondition(object client.Object, kind, reason string) metav1.Condition {
	k.t.Helper()
	var found metav1.Condition
	k.eventually(func() error {
		if err := k.Get(context.Background(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		c := meta.FindStatusCondition(conditionsOf(object), kind)
		switch {
		case c == nil:
			return fmt.Errorf("%T %s has no condition %s", object, object.GetName(), kind)
		case c.Reason != reason:
			return fmt.Errorf("%T %s: %s is %s with reason %s (%s), want %s", object, object.GetName(), kind, c.Status, c.Reason, c.Message, reason)
		case c.ObservedGeneration != object.GetGeneration():
			return fmt.Errorf("%T %s: %s is of generation %d, want %d", object, object.GetName(), kind, c.ObservedGeneration, object.GetGeneration())
		}
		found = *c
		return nil
	})
	return found
}

func conditionsOf(object client.Object) []metav1.Condition {
	switch o := object.(type) {
	case *v1alpha1.MPTCPPolicy:
		return o.Status.Conditions
	case *v1alpha1.ClusterMPTCPPolicy:
		return o.Status.Conditions
	case *v1alpha1.MPTCPGuardrail:
		return o.Status.Conditions
	case *v1alpha1.MPTCPPath:
		return o.Status.Conditions
	case *v1alpha1.MPTCPEndpoint:
		return o.Status.Conditions
	case *v1alpha1.MPTCPNode:
		return o.Status.Conditions
	}
	panic(fmt.Sprintf("no conditions in %T", object))
}

// waitForEvent waits for an Event about an object.
func (k *cluster) waitForEvent(object client.Object, eventType, reason string) eventsv1.Event {
	k.t.Helper()
	var found eventsv1.Event
	k.eventually(func() error {
		events, err := k.events(object)
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.Type == eventType && e.Reason == reason {
				found = e
				return nil
			}
		}
		return fmt.Errorf("no %s Event %s about %s, but %s", eventType, reason, object.GetName(), reasonsOf(events))
	})
	return found
}

func (k *cluster) events(object client.Object) ([]eventsv1.Event, error) {
	var list eventsv1.EventList
	if err := k.List(context.Background(), &list); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool { return e.Regarding.UID != object.GetUID() }), nil
}

func reasonsOf(events []eventsv1.Event) string {
	var reasons []string
	for _, e := range events {
		reasons = append(reasons, e.Reason)
	}
	return strings.Join(reasons, ",")
}

// agent plays a node's agent.
type agent struct {
	k    *cluster
	node string
	// guestSubflows is what it says of VMs.
	guestSubflows v1alpha1.GuestSubflows
	guestAgent    *v1alpha1.GuestAgentStatus
}

// agent starts an agent on a node: it reports, and has a NIC for each path.
func (k *cluster) agent(node string, paths ...v1alpha1.PathName) *agent {
	k.t.Helper()
	a := &agent{k: k, node: node}
	a.renew(time.Hour)
	k.create(&v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: node}})
	a.publish(v1alpha1.LinkUp, paths...)
	return a
}

// renew renews the agent's Lease for a duration of whole seconds.
func (a *agent) renew(duration time.Duration) {
	a.k.t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: a.k.system, Name: v1alpha1.AgentLeasePrefix + a.node}}
	err := a.k.Get(context.Background(), client.ObjectKeyFromObject(lease), lease)
	if client.IgnoreNotFound(err) != nil {
		a.k.t.Fatal(err)
	}
	lease.Spec.RenewTime = new(metav1.NowMicro())
	lease.Spec.LeaseDurationSeconds = new(int32(duration.Seconds()))
	if apierrors.IsNotFound(err) {
		a.k.create(lease)
	} else if err := a.k.Update(context.Background(), lease); err != nil {
		a.k.t.Fatal(err)
	}
}

// publish writes the node's NICs, as an agent does: it applies the fields that
// it owns.
func (a *agent) publish(state v1alpha1.LinkState, paths ...v1alpha1.PathName) {
	a.k.t.Helper()
	node := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: a.node}}
	node.Status.KernelRelease = "6.18.0"
	for _, p := range paths {
		node.Status.Paths = append(node.Status.Paths, v1alpha1.NodePath{Name: p, Interface: "eth-" + string(p), State: state})
	}
	a.apply(node, "MPTCPNode")
}

// report answers the node's present plan with a state for each of its pods.
func (a *agent) report(state v1alpha1.EndpointState, message string) {
	a.k.t.Helper()
	plan, err := a.k.plan(a.node)
	if err != nil || plan == nil {
		a.k.t.Fatalf("no plan for node %s: %v", a.node, err)
	}
	a.reportFor(plan, state, message)
}

// reportFor answers a plan, which may be outdated.
func (a *agent) reportFor(plan *v1alpha1.MPTCPNodePlan, state v1alpha1.EndpointState, message string) {
	a.k.t.Helper()
	answer := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: a.node}}
	answer.Status.ObservedGeneration = plan.Generation
	for _, e := range plan.Spec.Endpoints {
		answer.Status.Endpoints = append(answer.Status.Endpoints, v1alpha1.EndpointStatus{
			UID: e.UID, Namespace: e.Namespace, Name: e.Name, PolicyGeneration: e.Policy.Generation, State: state, Message: message, Chain: e.Chain, GuestSubflows: a.guestSubflows, GuestAgent: a.guestAgent,
		})
	}
	a.apply(answer, "MPTCPNodePlan")
}

func (a *agent) apply(object client.Object, kind string) {
	a.k.t.Helper()
	object.GetObjectKind().SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	//nolint:staticcheck // the typed object is the configuration
	err := a.k.Status().Patch(context.Background(), object, client.Apply, client.FieldOwner("braid-agent"), client.ForceOwnership)
	if err != nil {
		a.k.t.Fatal(err)
	}
}

var errStillThere = errors.New("still there")

// waitUntilGone waits until an object does not exist.
func (k *cluster) waitUntilGone(object client.Object) {
	k.t.Helper()
	k.eventually(func() error {
		err := k.Get(context.Background(), client.ObjectKeyFromObject(object), object)
		if err == nil {
			return errStillThere
		}
		return client.IgnoreNotFound(err)
	})
}
