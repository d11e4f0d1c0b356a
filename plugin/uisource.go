// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/plugin/ui"
)

// uiSource tells the page what the other commands tell.
type uiSource struct {
	plugin   *plugin
	system   *system
	follower *follower
	context  string
	nics     *nicWatch

	mutex  sync.Mutex
	events []Event
	// leftOut says which Events may not be read.
	leftOut string
	// since is when each thing that is wrong was seen first, by object and reason.
	since map[[2]string]time.Time
}

func (p *plugin) newUISource(ctx context.Context) (*uiSource, error) {
	c, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	s, err := p.system(p.systemNamespace)
	if err != nil {
		return nil, err
	}
	name, err := p.contextName()
	if err != nil {
		return nil, err
	}
	source := &uiSource{plugin: p, system: s, follower: newFollower(c), context: name, since: map[[2]string]time.Time{}}
	source.nics = newNICWatch(topperOf(topOptions{paths: true, every: uiEvery, nodes: map[string]bool{}}, s, source.follower, knownPlans{source.follower}))
	return source, nil
}

// contextName is that of the kubeconfig.
func (p *plugin) contextName() (string, error) {
	config, err := p.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	if chosen := p.flags.Context; chosen != nil && *chosen != "" {
		return *chosen, nil
	}
	return config.CurrentContext, nil
}

const (
	// uiEvery is the time between two readings of an agent.
	uiEvery = 2 * time.Second
	// uiGather is how long changes are gathered before they are shown, and uiAgain when the
	// cluster is judged again without any: Leases end by themselves.
	uiGather, uiAgain = 300 * time.Millisecond, 5 * time.Second
)

// read is the cluster as it is known.
func (s *uiSource) read(ctx context.Context) (*cluster, error) {
	reader, err := s.plugin.reader(s.follower)
	if err != nil {
		return nil, err
	}
	return reader.read(ctx)
}

// state is what is to be shown now.
func (s *uiSource) state(ctx context.Context) (ui.State, error) {
	found, err := s.read(ctx)
	if err != nil {
		return ui.State{}, err
	}
	namespace, _, err := s.plugin.namespace()
	if err != nil {
		return ui.State{}, err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.leftOut != "" {
		found.leftOut = append(slices.Clone(found.leftOut), s.leftOut)
	}
	head := uiHead{Context: s.context, Namespace: namespace, Stale: s.follower.stale()}
	times, seen := found.times(), map[[2]string]time.Time{}
	state := found.uiState(head, s.events, func(problem Problem) time.Time {
		key := [2]string{problem.Object, problem.Reason}
		at, known := s.since[key]
		if !known {
			if at = times[key]; at.IsZero() {
				at = s.plugin.clock.now().Truncate(time.Second)
			}
		}
		seen[key] = at
		return at
	})
	s.since = seen // what is right again is forgotten
	return state, nil
}

// Follow implements ui.Source.
func (s *uiSource) Follow(ctx context.Context, show func(ui.State)) error {
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	if _, err := s.read(ctx); err != nil { // what is to be followed
		return err
	}
	parts.Go(func() { s.follower.follow(ctx) })
	parts.Go(func() { s.followEvents(ctx) })
	parts.Go(func() { s.nics.run(ctx) })
	ticker := time.NewTicker(uiAgain)
	defer ticker.Stop()
	for {
		state, err := s.state(ctx)
		if err != nil {
			return err
		}
		show(state)
		select {
		case <-ctx.Done():
			return nil
		case <-s.follower.changed:
		case <-ticker.C:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(uiGather):
		}
	}
}

// maxEvents bounds how many are kept, which are the newest.
const maxEvents = 300

// followEvents keeps the latest Events.
func (s *uiSource) followEvents(ctx context.Context) {
	for ctx.Err() == nil {
		reader := &eventReader{system: s.system}
		found, version, err := reader.list(ctx)
		if apierrors.IsForbidden(err) {
			reader.options.namespace, _, _ = s.plugin.namespace()
			s.leaveOut("Events of namespaces other than " + reader.options.namespace)
			found, version, err = reader.list(ctx)
			if apierrors.IsForbidden(err) {
				s.leaveOut("Events")
			}
		}
		if err == nil {
			s.takeEvents(found, true)
			incoming, done := make(chan Event), make(chan struct{})
			go func() { defer close(done); _ = reader.watch(ctx, version, incoming) }()
			s.receive(incoming, done)
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

func (s *uiSource) receive(incoming <-chan Event, done <-chan struct{}) {
	for {
		select {
		case event := <-incoming:
			s.takeEvents([]Event{event}, false)
		case <-done:
			return
		}
	}
}

func (s *uiSource) leaveOut(what string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.leftOut = what
}

// takeEvents adds events; one that happened again takes the place of the one before.
func (s *uiSource) takeEvents(more []Event, all bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if all {
		s.events = nil
	}
	for i := range more {
		e := &more[i]
		s.events = slices.DeleteFunc(s.events, func(known Event) bool {
			return known.object() == e.object() && known.Reason == e.Reason && known.Message == e.Message
		})
		s.events = append(s.events, *e)
	}
	sortEvents(s.events)
	s.events = slices.Clone(s.events[max(0, len(s.events)-maxEvents):])
	s.follower.wake()
}

// NICs implements ui.Source.
func (s *uiSource) NICs(ctx context.Context, nodes []string, show func(any)) error {
	return s.nics.look(ctx, nodes, func(found *PathUses) { show(found) })
}

// uiSubflows bounds how many subflows an agent tells of.
const uiSubflows = 200

// Subflows implements ui.Source.
func (s *uiSource) Subflows(ctx context.Context, node, namespace, pod string, show func(any)) error {
	t := topperOf(topOptions{node: node, namespace: namespace, pod: pod, every: uiEvery, limit: uiSubflows}, s.system, s.follower, knownPlans{s.follower})
	ctx, cancel := context.WithCancel(ctx)
	defer t.streams.Wait()
	defer cancel()
	if err := t.look(ctx); err != nil {
		return err
	}
	if len(t.nodes) == 0 {
		show(t.snapshot()) // nobody is to be asked
	}
	failed := make(chan error, 1)
	t.streams.Go(func() {
		t.follow(ctx, func(err error) {
			select {
			case failed <- err:
			default:
			}
		})
	})
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed: // and goes on
			found := t.snapshot()
			found.Problems = append(found.Problems, Problem{"agents", "NotRead", err.Error()})
			show(found)
		case <-t.changed:
			found := t.snapshot()
			sortSubflows(found.Subflows, rateColumn, false)
			show(found)
		}
	}
}

var rateColumn, _ = columnNamed("rate")

// uiNodePage is what the page shows of a node.
type uiNodePage struct {
	Pods    []uiPod  `json:"pods"`
	LeftOut []string `json:"leftOut,omitempty"`
}

// Node implements ui.Source.
func (s *uiSource) Node(ctx context.Context, name string) (any, error) {
	found, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	page := uiNodePage{Pods: []uiPod{}, LeftOut: found.leftOut}
	if plan := found.plan(name); plan != nil {
		page.Pods = found.podsOfPlan(plan)
	}
	slices.SortFunc(page.Pods, func(a, b uiPod) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	return page, nil
}

// uiPodPage is what the page shows of a pod.
type uiPodPage struct {
	*Explanation
	// Told is the explanation as `explain` prints it.
	Told string `json:"told"`
	// Unknown is why it is not known what the pod's connections do.
	Unknown string `json:"unknown,omitempty"`
}

// Pod implements ui.Source.
func (s *uiSource) Pod(ctx context.Context, namespace, name string) (any, error) {
	found, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	namespaces, err := readNamespaces(ctx, s.follower.WithWatch, namespace)
	if err != nil {
		return nil, err
	}
	var pod corev1.Pod
	var page uiPodPage
	err = s.follower.WithWatch.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &pod)
	switch {
	case err == nil:
		page.Explanation = found.explain(&pod, namespaces)
	case apierrors.IsNotFound(err):
		guest, guestErr := found.explainGuest(namespace, name, namespaces)
		if guestErr != nil {
			return nil, err
		}
		page.Explanation = guest[0]
	default:
		return nil, fmt.Errorf("reading pod %s/%s: %w", namespace, name, err)
	}
	if err := s.plugin.addTraffic(ctx, page.Explanation); err != nil {
		page.Unknown = err.Error()
	}
	page.Told = page.text()
	return page, nil
}

// maxFound bounds how many pods a text finds.
const maxFound = 20

// uiFound are pods that have a text in their names.
type uiFound struct {
	Pods []uiPod `json:"pods"`
	More int     `json:"more,omitempty"`
}

// Find implements ui.Source. Who may not read plans is shown the pods of a namespace.
func (s *uiSource) Find(ctx context.Context, text string) (any, error) {
	found, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	result := uiFound{Pods: []uiPod{}}
	add := func(pod uiPod) {
		switch {
		case !strings.Contains(pod.Namespace+"/"+pod.Name, text):
		case len(result.Pods) < maxFound:
			result.Pods = append(result.Pods, pod)
		default:
			result.More++
		}
	}
	for i := range found.plans.Items {
		plan := &found.plans.Items[i]
		for j := range plan.Spec.Endpoints {
			e := &plan.Spec.Endpoints[j]
			add(uiPod{Namespace: e.Namespace, Name: e.Name, VM: e.Guest != nil, Node: plan.Name})
		}
	}
	if found.unread(unreadPlans) {
		return &result, s.findOwn(ctx, add)
	}
	return &result, nil
}

// findOwn goes through the pods of the namespace.
func (s *uiSource) findOwn(ctx context.Context, visit func(uiPod)) error {
	namespace, _, err := s.plugin.namespace()
	if err != nil {
		return err
	}
	var pods corev1.PodList
	if err := s.follower.WithWatch.List(ctx, &pods, client.InNamespace(namespace), client.Limit(1000)); err != nil {
		return fmt.Errorf("reading the pods of namespace %s: %w", namespace, err)
	}
	for i := range pods.Items {
		visit(uiPod{Namespace: namespace, Name: pods.Items[i].Name, Node: pods.Items[i].Spec.NodeName})
	}
	return nil
}

// nicWatch asks agents for their NICs, each once for all pages that look at it.
type nicWatch struct {
	topper *topper
	// again has the nodes looked for anew.
	again chan struct{}

	mutex   sync.Mutex
	lookers map[*looker]bool
	// lately is when somebody ceased to look at a node: who scrolls comes back.
	lately map[string]time.Time
	failed error
}

// looker is a page that looks at nodes.
type looker struct {
	nodes []string
	wake  chan struct{}
}

func newNICWatch(t *topper) *nicWatch {
	return &nicWatch{topper: t, again: make(chan struct{}, 1), lookers: map[*looker]bool{}, lately: map[string]time.Time{}}
}

// look shows what the NICs of nodes carry, until the context ends.
func (w *nicWatch) look(ctx context.Context, nodes []string, show func(*PathUses)) error {
	me := &looker{nodes, make(chan struct{}, 1)}
	w.mutex.Lock()
	w.lookers[me] = true
	w.mutex.Unlock()
	defer w.turnAway(me)
	w.lookAgain()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-me.wake:
			show(w.of(nodes))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(uiGather): // many agents answer at about the same time
		}
	}
}

func (w *nicWatch) turnAway(l *looker) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	delete(w.lookers, l)
	for _, node := range l.nodes {
		w.lately[node] = time.Now()
	}
}

func (w *nicWatch) lookAgain() {
	select {
	case w.again <- struct{}{}:
	default:
	}
}

// stillLooked is for how long a node is asked that nobody looks at.
const stillLooked = 5 * time.Second

// wanted are the nodes to ask, not more than may be asked at once: those that somebody looks
// at come first.
func (w *nicWatch) wanted() map[string]bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	nodes := map[string]bool{}
	add := func(node string) {
		if len(nodes) < askedAtOnce {
			nodes[node] = true
		}
	}
	for l := range w.lookers {
		for _, node := range l.nodes {
			add(node)
		}
	}
	for node, at := range w.lately {
		if time.Since(at) > stillLooked {
			delete(w.lately, node)
			continue
		}
		add(node)
	}
	return nodes
}

// run asks until the context ends.
func (w *nicWatch) run(ctx context.Context) {
	defer w.topper.streams.Wait()
	ticker := time.NewTicker(stillLooked)
	defer ticker.Stop()
	var before map[string]bool
	var looked time.Time
	for {
		if nodes := w.wanted(); !maps.Equal(nodes, before) || time.Since(looked) > lookAgain {
			before, looked = nodes, time.Now()
			w.ask(ctx, nodes)
		}
		select {
		case <-ctx.Done():
			w.ask(ctx, nil) // which asks nobody
			return
		case <-w.topper.changed:
			w.wake()
		case <-w.again:
			w.wake()
		case <-ticker.C:
		}
	}
}

// ask opens the streams to nodes, and ends those to others.
func (w *nicWatch) ask(ctx context.Context, nodes map[string]bool) {
	w.topper.mutex.Lock()
	w.topper.options.nodes = nodes
	if nodes == nil {
		w.topper.options.nodes = map[string]bool{}
	}
	w.topper.mutex.Unlock()
	var err error
	if len(nodes) > 0 {
		err = w.topper.look(ctx)
	} else {
		w.topper.forget()
	}
	w.mutex.Lock()
	w.failed = err
	w.mutex.Unlock()
	if err == nil && ctx.Err() == nil {
		w.topper.startAll(ctx, fmt.Sprintf("--count=%d", followCount))
	}
	w.wake()
}

// forget ends all streams.
func (t *topper) forget() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, stream := range t.following {
		stream.stop()
	}
	clear(t.nodes)
	clear(t.asked)
	t.uses = nil
}

func (w *nicWatch) wake() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for l := range w.lookers {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// of is what is known of some nodes.
func (w *nicWatch) of(nodes []string) *PathUses {
	all := w.topper.pathSnapshot()
	all.Paths = slices.DeleteFunc(all.Paths, func(use PathUse) bool { return !slices.Contains(nodes, use.Node) })
	all.Problems = slices.DeleteFunc(all.Problems, func(problem Problem) bool {
		return !slices.Contains(nodes, strings.TrimPrefix(problem.Object, "node "))
	})
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.failed != nil && !errors.Is(w.failed, context.Canceled) {
		all.Problems = append(all.Problems, Problem{"agents", "NotRead", w.failed.Error()})
	}
	return all
}

var _ ui.Source = (*uiSource)(nil)
