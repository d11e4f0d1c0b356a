// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/simulate"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/policy"
)

const (
	controllerAccount = "braid-controller"
	controllerUser    = "system:serviceaccount:" + lab.SystemNamespace + ":" + controllerAccount

	// podChanges is how many pods are changed in all, one after the other, and
	// podPause how long it is from one's plan to the next change.
	podChanges = 200
	podPause   = 100 * time.Millisecond
	// quietFor is how long the controller asks nothing when it has done all.
	quietFor = 3 * time.Second
	// fleetPatience bounds what should happen within seconds: it ends a run that
	// hangs, and is no requirement.
	fleetPatience = 15 * time.Minute
)

// fullFleet is the cluster that the figures are about; those of other sizes have
// names of their own.
var fullFleet = simulate.Size{Nodes: 1000, Pods: 20_000, Namespaces: 200, Policies: 500}

// fleet is a simulated cluster at a real API server.
type fleet struct {
	client.Client
	size       simulate.Size
	directory  string
	server     *apiserver.Server
	kubeconfig string // the controller's
	objects    *simulate.Objects
	agents     *simulate.Agents
	requests   *requestLog
	random     *rand.Rand
	trials     map[string][]float64
	units      map[string]string
	close      []func() error
}

// measureController runs the controller as a process of its own, with a real API
// server and etcd and simulated nodes. Where another build of the controller is
// given, both are measured in turns.
func measureController(ctx context.Context, b *bench) (err error) {
	f := &fleet{size: b.fleet, random: rand.New(rand.NewPCG(1, 2)), trials: map[string][]float64{}, units: map[string]string{}}
	ctx, cancel := context.WithCancel(ctx)
	defer func() { cancel(); err = errors.Join(err, f.end()) }()
	builds, err := f.prepare(ctx, b.compared)
	if err != nil {
		return err
	}
	for trial := range b.trials {
		for _, build := range builds {
			say("trial %d of %d, %s", trial+1, b.trials, build.path)
			if err := f.trial(ctx, build, podChanges/b.trials); err != nil {
				return err
			}
		}
		slices.Reverse(builds)
	}
	for name, values := range f.trials {
		b.add(name, f.units[name], values)
	}
	return nil
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }

// build is a controller to be measured and what the names of its figures begin with.
type build struct{ path, prefix string }

// prepare makes the cluster and starts its agents.
func (f *fleet) prepare(ctx context.Context, compared string) (builds []build, err error) {
	if f.directory, err = os.MkdirTemp("", "braid-bench-"); err != nil {
		return nil, fmt.Errorf("making a directory: %w", err)
	}
	f.close = append(f.close, func() error { return os.RemoveAll(f.directory) })
	own := filepath.Join(f.directory, "braid-controller")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", own, "braid.dev/braid/cmd/braid-controller").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the controller: %w: %s", err, out)
	}
	builds = []build{{own, "controller."}}
	if compared != "" {
		builds = append(builds, build{compared, "controller.compared."})
	}
	if f.size != fullFleet {
		for i := range builds {
			builds[i].prefix += fmt.Sprintf("nodes%d.", f.size.Nodes)
		}
	}
	for _, step := range []func(context.Context) error{f.startServer, f.create, f.startAgents} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return builds, nil
}

func (f *fleet) startServer(ctx context.Context) (err error) {
	f.server, err = apiserver.Start(ctx, apiserver.Options{Dir: filepath.Join(f.directory, "server"), Audited: []string{controllerUser}})
	if err != nil {
		return err
	}
	f.close = append(f.close, f.server.Stop)
	if err := f.install(ctx); err != nil {
		return err
	}
	config := f.server.Config()
	config.QPS = -1
	if f.Client, err = client.New(config, client.Options{Scheme: simulate.NewScheme()}); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	limited, err := f.server.ServiceAccountConfig(ctx, lab.SystemNamespace, controllerAccount, "")
	if err != nil {
		return err
	}
	kubeconfig, err := apiserver.Kubeconfig(limited)
	if err != nil {
		return err
	}
	f.kubeconfig = filepath.Join(f.directory, "controller.kubeconfig")
	if err := os.WriteFile(f.kubeconfig, kubeconfig, 0o600); err != nil {
		return fmt.Errorf("writing the controller's kubeconfig: %w", err)
	}
	return nil
}

// install applies Braid's manifests and waits until its objects can be used.
func (f *fleet) install(ctx context.Context) error {
	kubectl, err := lab.Kubectl()
	if err != nil {
		return err
	}
	repository, err := lab.Repository()
	if err != nil {
		return err
	}
	for _, arguments := range [][]string{
		{"apply", "--server-side", "--kustomize", filepath.Join(repository, "config")},
		{"wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"},
	} {
		command := exec.CommandContext(ctx, kubectl, arguments...)
		command.Env = append(os.Environ(), "KUBECONFIG="+f.server.KubeconfigPath())
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl %s: %w: %s", arguments[0], err, out)
		}
	}
	return nil
}

func (f *fleet) create(ctx context.Context) error {
	begin := time.Now()
	say("creating %d nodes, %d pods in %d namespaces, and %d policies", f.size.Nodes, f.size.Pods, f.size.Namespaces, f.size.Policies)
	f.objects = f.size.Objects()
	if err := f.objects.Create(ctx, f, say); err != nil {
		return err
	}
	say("created within %s", time.Since(begin).Round(time.Second))
	return nil
}

func (f *fleet) startAgents(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	f.close = append(f.close, func() error { cancel(); return nil })
	if f.agents, err = simulate.StartAgents(ctx, f.server.Config(), lab.SystemNamespace, f.nodes(), say); err != nil {
		return err
	}
	f.close = append(f.close, func() error { cancel(); f.agents.Wait(); return nil })
	return nil
}

// end undoes what was begun, the last thing first.
func (f *fleet) end() error {
	var errs []error
	for _, undo := range slices.Backward(f.close) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}

func (f *fleet) nodes() []string {
	names := make([]string, 0, f.size.Nodes)
	for i := range f.size.Nodes {
		names = append(names, simulate.Node(i))
	}
	return names
}

func (f *fleet) note(name, unit string, value float64) {
	say("%s: %.3f %s", name, value, unit)
	f.trials[name] = append(f.trials[name], value)
	f.units[name] = unit
}

// trial runs a controller from its start without plans to its end.
func (f *fleet) trial(ctx context.Context, b build, changes int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	if err := f.deletePlans(ctx); err != nil {
		return err
	}
	if f.requests == nil {
		if err := f.openRequests(); err != nil {
			return err
		}
	}
	run := &controllerRun{fleet: f, prefix: b.prefix}
	f.agents.Late() // what was before this trial does not count
	begin := time.Now()
	if run.program, err = startProgram(filepath.Join(f.directory, "controller.log"), b.path,
		"--kubeconfig", f.kubeconfig, "--namespace", lab.SystemNamespace, "--health-probe-bind-address", "0", "--leader-elect=false"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, run.program.stop()) }()
	go func() { // without the controller nothing is to be waited for
		<-run.program.ended
		cancel()
	}()
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return run.sync(ctx, begin) },
		func(ctx context.Context) error { return run.changePods(ctx, changes) },
		run.changePolicies,
		run.readMemory,
		run.countLate,
	} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("%w (log: %s)", err, run.lastWords())
		}
	}
	return nil
}

func (f *fleet) openRequests() (err error) {
	path := f.server.AuditPath()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600) // nobody asked for anything yet
	if err != nil {
		return fmt.Errorf("opening the audit log: %w", err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("opening the audit log: %w", err)
	}
	if f.requests, err = openRequestLog(path); err != nil {
		return err
	}
	f.close = append(f.close, f.requests.close)
	return nil
}

// deletePlans removes all plans, and waits until every agent knows.
func (f *fleet) deletePlans(ctx context.Context) error {
	if err := simulate.Persist(ctx, say, func(bool) error { return f.DeleteAllOf(ctx, &v1alpha1.MPTCPNodePlan{}) }); err != nil {
		return fmt.Errorf("deleting the plans: %w", err)
	}
	_, err := f.agents.Expect(f.nodes(), func(plan *v1alpha1.MPTCPNodePlan) bool { return plan == nil }).Wait(ctx)
	return err
}

// controllerRun is one controller while it runs.
type controllerRun struct {
	*fleet
	program *program
	prefix  string
}

func (r *controllerRun) add(name, unit string, value float64) { r.note(r.prefix+name, unit, value) }

func (r *controllerRun) lastWords() string {
	content, err := os.ReadFile(filepath.Join(r.directory, "controller.log"))
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-1000):])
}

// sync waits until every plan is there and right, and then until the controller
// has written all that follows from the agents' answers.
func (r *controllerRun) sync(ctx context.Context, begin time.Time) error {
	want := policy.Compile(r.objects.Input()).Plans
	last, err := r.agents.Expect(r.nodes(), func(plan *v1alpha1.MPTCPNodePlan) bool {
		return plan != nil && equality.Semantic.DeepEqual(plan.Spec, want[plan.Name])
	}).Wait(ctx)
	if err != nil {
		return fmt.Errorf("waiting for the first plans: %w", err)
	}
	r.add(fmt.Sprintf("sync%d_s", r.size.Nodes), "s", last.Sub(begin).Seconds())
	settled, err := r.requests.settle(ctx, quietFor)
	if err != nil {
		return err
	}
	r.add("settled_s", "s", settled.Sub(begin).Seconds())
	processor, err := r.program.processor()
	if err != nil {
		return err
	}
	r.add("sync_processor_s", "s", processor)
	counts, err := r.requests.take()
	if err != nil {
		return err
	}
	r.addRequests("sync_requests.", counts, 1)
	return nil
}

// addRequests notes what was asked, by verb and in all, for each of some changes.
func (r *controllerRun) addRequests(name string, counts map[request]int, changes int) {
	byVerb, all := map[string]float64{"get": 0, "create": 0, "update": 0, "patch": 0, "delete": 0}, 0.0
	for asked, count := range counts {
		byVerb[asked.verb] += float64(count) / float64(changes)
		all += float64(count) / float64(changes)
	}
	r.add(name+"all", "requests", all)
	for verb, count := range byVerb {
		r.add(name+verb, "requests", count)
	}
}

// changePods changes an annotation of pods, one after the other.
func (r *controllerRun) changePods(ctx context.Context, changes int) error {
	before, err := r.program.processor()
	if err != nil {
		return err
	}
	var times []float64
	for range changes {
		took, err := r.changePod(ctx)
		if err != nil {
			return fmt.Errorf("changing a pod: %w", err)
		}
		times = append(times, float64(took.Microseconds())/1000)
		time.Sleep(podPause)
	}
	if _, err := r.requests.settle(ctx, quietFor); err != nil {
		return err
	}
	after, err := r.program.processor()
	if err != nil {
		return err
	}
	counts, err := r.requests.take()
	if err != nil {
		return err
	}
	slices.Sort(times)
	r.add("pod_plan_p50_ms", "ms", times[len(times)/2])
	r.add("pod_plan_p99_ms", "ms", times[len(times)*99/100])
	r.add("pod_processor_ms", "ms", (after-before)*1000/float64(changes))
	r.add("writes_per_pod_change", "plans", float64(counts[request{"update", "mptcpnodeplans"}])/float64(changes))
	r.addRequests("pod_requests.", counts, changes)
	return nil
}

// changePod makes one pod prefer another path, and waits for its node's plan.
func (r *controllerRun) changePod(ctx context.Context) (time.Duration, error) {
	pod := &r.objects.Pods[r.random.IntN(len(r.objects.Pods))]
	wish := simulate.Paths[0]
	if pod.Annotations[v1alpha1.AnnotationPreferredPaths] == wish {
		wish = simulate.Paths[1]
	}
	seen := r.agents.Expect([]string{pod.Spec.NodeName}, func(plan *v1alpha1.MPTCPNodePlan) bool { return prefers(plan, pod.UID, wish) })
	changed := pod.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}
	changed.Annotations[v1alpha1.AnnotationPreferredPaths] = wish
	begin := time.Now()
	if err := r.patch(ctx, changed, pod); err != nil {
		return 0, err
	}
	pod.Annotations = changed.Annotations
	last, err := seen.Wait(ctx)
	if err != nil {
		return 0, fmt.Errorf("pod %s/%s, which prefers %s: %w", pod.Namespace, pod.Name, wish, err)
	}
	return last.Sub(begin), nil
}

// patch makes an object in the API that was as before what it is now.
func (f *fleet) patch(ctx context.Context, object, before client.Object) error {
	change := client.MergeFrom(before)
	return simulate.Persist(ctx, say, func(bool) error { return f.Patch(ctx, object, change) })
}

func prefers(plan *v1alpha1.MPTCPNodePlan, pod types.UID, path string) bool {
	if plan == nil {
		return false
	}
	for i := range plan.Spec.Endpoints {
		if e := &plan.Spec.Endpoints[i]; e.UID == pod {
			return slices.Equal(e.Preferred, []v1alpha1.PathName{v1alpha1.PathName(path)})
		}
	}
	return false
}

// changePolicies changes a policy of one pod, one of a namespace and one for a pod
// of each node.
func (r *controllerRun) changePolicies(ctx context.Context) error {
	namespace := &r.objects.Policies[1]
	for _, change := range []struct {
		name   string
		object client.Object
		rules  *v1alpha1.PolicyRules
		kind   string
	}{
		{"last_plan.one_node", r.objects.Only, &r.objects.Only.Spec.PolicyRules, policy.KindPolicy},
		{"last_plan.one_namespace", namespace, &namespace.Spec.PolicyRules, policy.KindPolicy},
		{"last_plan", r.objects.Everywhere, &r.objects.Everywhere.Spec.PolicyRules, policy.KindClusterPolicy},
	} {
		if err := r.changePolicy(ctx, change.name, change.kind, change.object, change.rules); err != nil {
			return fmt.Errorf("changing the policy %s: %w", change.object.GetName(), err)
		}
	}
	return nil
}

func (r *controllerRun) changePolicy(ctx context.Context, name, kind string, object client.Object, rules *v1alpha1.PolicyRules) error {
	nodes := r.nodesOf(kind, object)
	next := object.GetGeneration() + 1
	seen := r.agents.Expect(nodes, func(plan *v1alpha1.MPTCPNodePlan) bool {
		return plan != nil && !slices.ContainsFunc(plan.Spec.Endpoints, func(e v1alpha1.PlanEndpoint) bool {
			return decides(&e, kind, object) && e.Policy.Generation != next
		})
	})
	before, _ := object.DeepCopyObject().(client.Object) // what is copied is one
	if count := rules.Subflows.Count; count == nil || *count == 2 {
		rules.Subflows.Count = new(int32(3))
	} else {
		rules.Subflows.Count = new(int32(2))
	}
	begin := time.Now()
	if err := r.patch(ctx, object, before); err != nil {
		return err
	}
	last, err := seen.Wait(ctx)
	if err != nil {
		return err
	}
	r.add(name+"_ms", "ms", float64(last.Sub(begin).Microseconds())/1000)
	if _, err := r.requests.settle(ctx, quietFor); err != nil {
		return err
	}
	counts, err := r.requests.take()
	if err != nil {
		return err
	}
	r.add(name+".nodes", "nodes", float64(len(nodes)))
	r.add(name+".plans_written", "plans", float64(counts[request{"update", "mptcpnodeplans"}]))
	return nil
}

// nodesOf are the nodes for whose pods a policy decides.
func (r *controllerRun) nodesOf(kind string, object client.Object) []string {
	var nodes []string
	for node, plan := range r.agents.Plans() {
		if slices.ContainsFunc(plan.Spec.Endpoints, func(e v1alpha1.PlanEndpoint) bool { return decides(&e, kind, object) }) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

func decides(e *v1alpha1.PlanEndpoint, kind string, object client.Object) bool {
	return e.Policy.Kind == kind && e.Policy.Namespace == object.GetNamespace() && e.Policy.Name == object.GetName()
}

func (r *controllerRun) readMemory(context.Context) error {
	now, peak, err := r.program.memory()
	if err != nil {
		return err
	}
	r.add("rss_mib", "MiB", now)
	r.add("rss_peak_mib", "MiB", peak)
	return nil
}

// countLate says whether the machine kept up: figures of a run in which agents seemed
// silent tell of that.
func (r *controllerRun) countLate(context.Context) error {
	late := r.agents.Late()
	if late > 0 {
		say("%d Leases were renewed after their time: the machine did not keep up, and the controller took agents for silent", late)
	}
	r.add("late_leases", "renewals", float64(late))
	return nil
}
