// SPDX-License-Identifier: Apache-2.0

package product

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
	"braid.dev/braid/hack/bench/rig"
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

// FullFleet is the cluster that the figures are about; those of other sizes have
// names of their own.
var FullFleet = simulate.Size{Nodes: 1000, Pods: 20_000, Namespaces: 200, Policies: 500}

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
	close      []func() error
}

// Fleet is what a user may choose of the experiment with the controller: the simulated
// cluster, and the path of another build of the controller to compare with this one.
type Fleet struct {
	simulate.Size
	Compared string
}

// newFleet makes the cluster and starts its agents.
func newFleet(size *simulate.Size) func(context.Context) (*fleet, error) {
	return func(ctx context.Context) (*fleet, error) {
		f := &fleet{size: *size, random: rand.New(rand.NewPCG(1, 2))}
		for _, step := range []func(context.Context) error{f.makeDirectory, f.startServer, f.create, f.startAgents} {
			if err := step(ctx); err != nil {
				return nil, errors.Join(err, f.Close())
			}
		}
		return f, nil
	}
}

// Close undoes what was begun, the last thing first.
func (f *fleet) Close() (err error) {
	for _, undo := range slices.Backward(f.close) {
		err = errors.Join(err, undo())
	}
	return err
}

// measureController runs the controller as a process of its own, with a real API
// server and etcd and simulated nodes. Where another build of the controller is
// given, both are measured in turns.
func measureController(compared *string) func(context.Context, *rig.Measurement, *fleet) error {
	return func(ctx context.Context, m *rig.Measurement, f *fleet) error {
		builds, err := f.builds(ctx, *compared)
		if err != nil {
			return err
		}
		for trial := range m.Trials {
			for _, build := range builds {
				rig.Say("trial %d of %d, %s", trial+1, m.Trials, build.path)
				if err := f.trial(ctx, m, build, podChanges/m.Trials); err != nil {
					return err
				}
			}
			slices.Reverse(builds)
		}
		return nil
	}
}

// build is a controller to be measured and what the names of its figures begin with.
type build struct{ path, prefix string }

func (f *fleet) makeDirectory(context.Context) (err error) {
	if f.directory, err = os.MkdirTemp("", "braid-bench-"); err != nil {
		return fmt.Errorf("making a directory: %w", err)
	}
	f.close = append(f.close, func() error { return os.RemoveAll(f.directory) })
	return nil
}

// builds are this tree's controller, and the one that it is compared with, if any.
func (f *fleet) builds(ctx context.Context, compared string) ([]build, error) {
	own := filepath.Join(f.directory, "braid-controller")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", own, "braid.dev/braid/cmd/braid-controller").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the controller: %w: %s", err, out)
	}
	builds := []build{{own, "controller."}}
	if compared != "" {
		builds = append(builds, build{compared, "controller.compared."})
	}
	for i := range builds {
		if f.size != FullFleet {
			builds[i].prefix += fmt.Sprintf("nodes%d.", f.size.Nodes)
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
	rig.Say("creating %d nodes, %d pods in %d namespaces, and %d policies", f.size.Nodes, f.size.Pods, f.size.Namespaces, f.size.Policies)
	f.objects = f.size.Objects()
	if err := f.objects.Create(ctx, f, rig.Say); err != nil {
		return err
	}
	rig.Say("created within %s", time.Since(begin).Round(time.Second))
	return nil
}

func (f *fleet) startAgents(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	f.close = append(f.close, func() error { cancel(); return nil })
	if f.agents, err = simulate.StartAgents(ctx, f.server.Config(), lab.SystemNamespace, f.nodes(), rig.Say); err != nil {
		return err
	}
	f.close = append(f.close, func() error { cancel(); f.agents.Wait(); return nil })
	return nil
}

func (f *fleet) nodes() []string {
	names := make([]string, 0, f.size.Nodes)
	for i := range f.size.Nodes {
		names = append(names, simulate.Node(i))
	}
	return names
}

// trial runs a controller from its start without plans to its end.
func (f *fleet) trial(ctx context.Context, m *rig.Measurement, b build, changes int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	if err := f.deletePlans(ctx); err != nil {
		return err
	}
	if f.requests == nil {
		if f.requests, err = openRequestLog(f.server.AuditPath()); err != nil {
			return err
		}
		f.close = append(f.close, f.requests.close)
	}
	run := &controllerRun{fleet: f, measurement: m, prefix: b.prefix, changes: changes, begin: time.Now()}
	f.agents.Late() // what was before this trial does not count
	if run.process, err = startProcess(ctx, filepath.Join(f.directory, "controller.log"), b.path,
		"--kubeconfig", f.kubeconfig, "--namespace", lab.SystemNamespace, "--health-probe-bind-address", "0", "--leader-elect=false"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, run.process.stop()) }()
	go func() { // without the controller nothing is to be waited for
		<-run.process.ended
		cancel()
	}()
	for _, step := range []func(context.Context) error{run.sync, run.changePods, run.changePolicies, run.readMemory, run.countLate} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("%w (log: %s)", err, run.lastWords())
		}
	}
	return nil
}

// deletePlans removes all plans, and waits until every agent knows.
func (f *fleet) deletePlans(ctx context.Context) error {
	if err := simulate.Persist(ctx, rig.Say, func(bool) error { return f.DeleteAllOf(ctx, &v1alpha1.MPTCPNodePlan{}) }); err != nil {
		return fmt.Errorf("deleting the plans: %w", err)
	}
	_, err := f.agents.Expect(f.nodes(), func(plan *v1alpha1.MPTCPNodePlan) bool { return plan == nil }).Wait(ctx)
	return err
}

// controllerRun is one controller while it runs.
type controllerRun struct {
	*fleet
	measurement *rig.Measurement
	process     *process
	prefix      string
	changes     int // of pods
	begin       time.Time
}

func (r *controllerRun) add(name string, value float64) { r.measurement.Add(r.prefix+name, value) }

// asked are the requests since the last call, once no more are made.
func (r *controllerRun) asked(ctx context.Context) (counts map[request]int, last time.Time, err error) {
	if last, err = r.requests.settle(ctx, quietFor); err != nil {
		return nil, last, err
	}
	counts, err = r.requests.take()
	return counts, last, err
}

func (r *controllerRun) lastWords() string {
	content, err := os.ReadFile(filepath.Join(r.directory, "controller.log"))
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-1000):])
}

// sync waits until every plan is there and right, and then until the controller
// has written all that follows from the agents' answers.
func (r *controllerRun) sync(ctx context.Context) error {
	want := policy.Compile(r.objects.Input()).Plans
	last, err := r.agents.Expect(r.nodes(), func(plan *v1alpha1.MPTCPNodePlan) bool {
		return plan != nil && equality.Semantic.DeepEqual(plan.Spec, want[plan.Name])
	}).Wait(ctx)
	if err != nil {
		return fmt.Errorf("waiting for the first plans: %w", err)
	}
	r.add(fmt.Sprintf("sync%d_s", r.size.Nodes), last.Sub(r.begin).Seconds())
	counts, settled, err := r.asked(ctx)
	if err != nil {
		return err
	}
	processor, err := r.process.processor()
	r.add("settled_s", settled.Sub(r.begin).Seconds())
	r.add("sync_processor_s", processor)
	r.addRequests("sync_requests.", counts, 1)
	return err
}

// addRequests notes what was asked, by verb and in all, for each of some changes.
func (r *controllerRun) addRequests(name string, counts map[request]int, changes int) {
	byVerb, all := map[string]float64{"get": 0, "create": 0, "update": 0, "patch": 0, "delete": 0}, 0.0
	for asked, count := range counts {
		byVerb[asked.verb] += float64(count) / float64(changes)
		all += float64(count) / float64(changes)
	}
	r.add(name+"all", all)
	for verb, count := range byVerb {
		r.add(name+verb, count)
	}
}

// changePods changes an annotation of pods, one after the other.
func (r *controllerRun) changePods(ctx context.Context) error {
	before, err := r.process.processor()
	if err != nil {
		return err
	}
	var times []float64
	for range r.changes {
		took, err := r.changePod(ctx)
		if err != nil {
			return fmt.Errorf("changing a pod: %w", err)
		}
		times = append(times, milliseconds(took))
		time.Sleep(podPause)
	}
	counts, _, err := r.asked(ctx)
	if err != nil {
		return err
	}
	after, err := r.process.processor()
	slices.Sort(times)
	r.add("pod_plan_p50_ms", times[len(times)/2])
	r.add("pod_plan_p99_ms", times[len(times)*99/100])
	r.add("pod_processor_ms", (after-before)*1000/float64(r.changes))
	r.add("writes_per_pod_change", float64(counts[request{"update", "mptcpnodeplans"}])/float64(r.changes))
	r.addRequests("pod_requests.", counts, r.changes)
	return err
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
	return simulate.Persist(ctx, rig.Say, func(bool) error { return f.Patch(ctx, object, change) })
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
	r.add(name+"_ms", milliseconds(last.Sub(begin)))
	counts, _, err := r.asked(ctx)
	r.add(name+".nodes", float64(len(nodes)))
	r.add(name+".plans_written", float64(counts[request{"update", "mptcpnodeplans"}]))
	return err
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
	status, err := memoryOf(r.process.command.Process.Pid)
	r.add("rss_mib", mib(status.VmRSS))
	r.add("rss_peak_mib", mib(status.VmHWM))
	return err
}

// countLate says whether the machine kept up: figures of a run in which agents seemed
// silent tell of that.
func (r *controllerRun) countLate(context.Context) error {
	late := r.agents.Late()
	if late > 0 {
		rig.Say("%d Leases were renewed after their time: the machine did not keep up, and the controller took agents for silent", late)
	}
	r.add("late_leases", float64(late))
	return nil
}
