// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/health"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

const (
	// settling is how long what an earlier agent knew of the paths is better than
	// what the probes of this one have found so far.
	settling = time.Second
	// tellAgain lies between two messages about paths that are given up.
	tellAgain = 2 * time.Second
	// peersShown keeps messages short.
	peersShown = 3
	// hintMessage is the schema's limit to the message of a hint, in bytes.
	hintMessage = 512
)

// pathProber is what is used of health.Prober.
type pathProber interface {
	View() health.View
	Changed() <-chan struct{}
}

// hints makes the datapath follow what pods prefer, as long as the paths are good
// enough for it, and keeps it off dead paths. It says what became of the hints.
type hints struct {
	log       logr.Logger
	setHealth func(map[string]datapath.PeerHealth) error
	prober    pathProber // nil: nothing is known of any path
	wake      func()     // has the statuses published
	now       func() time.Time

	mu      sync.Mutex
	judge   health.Judge
	settled bool
	classes classes
	scene   scene
	lost    map[verdict]string // what is given up, and why
	told    map[verdict]string // and what the published statuses say
	toldAt  time.Time
}

// scene is what the last round of the agent saw.
type scene struct {
	paths []paths.Path
	peers []paths.Peer
}

// verdict names a path to a peer that is not good for a class of preferences.
type verdict struct {
	peer, path string
	class      int
}

// classes are the distinct preferences of the node's endpoints. One that stays keeps
// its index, because endpoints in the kernel refer to it.
type classes [datapath.MaxClasses]*class

type class struct {
	preference v1alpha1.PlanPreference
	paths      map[v1alpha1.PathName]bool // that endpoints of it prefer
}

// withoutWeight is what says which paths are good.
func withoutWeight(p v1alpha1.PlanPreference) v1alpha1.PlanPreference {
	p.Weight = v1alpha1.DefaultPreferenceWeight
	return p
}

// assign gives each preference of these endpoints a class. Those that find none free
// share the last one.
func (c classes) assign(endpoints []v1alpha1.PlanEndpoint) (after classes) {
	var fresh []v1alpha1.PlanPreference
	for i := range endpoints {
		if endpoints[i].Preference == nil {
			continue
		}
		wanted := withoutWeight(*endpoints[i].Preference)
		if known := c.find(wanted); known >= 0 {
			after[known] = newClass(wanted)
		} else if !slices.Contains(fresh, wanted) {
			fresh = append(fresh, wanted)
		}
	}
	for _, wanted := range fresh {
		if free := slices.Index(after[:], nil); free >= 0 {
			after[free] = newClass(wanted)
		}
	}
	for i := range endpoints {
		if at, _ := after.of(&endpoints[i]); after[at] != nil {
			for _, path := range endpoints[i].Preferred {
				after[at].paths[path] = true
			}
		}
	}
	return after
}

func newClass(preference v1alpha1.PlanPreference) *class {
	return &class{preference: preference, paths: map[v1alpha1.PathName]bool{}}
}

// find returns the class of a preference, or -1.
func (c *classes) find(preference v1alpha1.PlanPreference) int {
	return slices.IndexFunc(c[:], func(known *class) bool { return known != nil && known.preference == preference })
}

// of returns an endpoint's class; exact is false where it is another preference's.
func (c *classes) of(endpoint *v1alpha1.PlanEndpoint) (class int, exact bool) {
	if endpoint.Preference == nil {
		return 0, true
	}
	if known := c.find(withoutWeight(*endpoint.Preference)); known >= 0 {
		return known, true
	}
	return len(c) - 1, false
}

// plan takes what a round saw and judges the paths for its endpoints, before the
// datapath gets them.
func (h *hints) plan(n *news, found []paths.Path) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scene = scene{paths: found, peers: n.peers}
	h.classes = h.classes.assign(n.planEndpoints())
	_, err := h.update(h.now())
	return err
}

// endpoint is a pod as the datapath is to see it.
func (h *hints) endpoint(endpoint *v1alpha1.PlanEndpoint) datapath.Endpoint {
	h.mu.Lock()
	defer h.mu.Unlock()
	result := datapath.Endpoint{
		Addresses: endpointAddresses(endpoint), Paths: endpoint.Paths,
		Preferred: endpoint.Preferred, Backup: endpoint.Backup,
		SamePath: endpoint.Subflows.Mode == v1alpha1.SubflowModeSamePair,
	}
	if endpoint.Preference != nil {
		result.Class, _ = h.classes.of(endpoint)
		result.Share = endpoint.Preference.Weight
	}
	return result
}

// run judges the paths anew whenever the probes have news, until the context ends.
// It does not wait for the agent's loop, nor for the API server.
func (h *hints) run(ctx context.Context) error {
	settled := time.After(settling)
	var changed <-chan struct{}
	if h.prober != nil {
		changed = h.prober.Changed()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-settled:
			h.settle()
		case <-changed:
		case <-timer.C:
		}
		timer.Reset(h.again())
	}
}

func (h *hints) settle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settled = true
}

// again judges once more, and returns how soon it is to be done again.
func (h *hints) again() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	next, err := h.update(now)
	if err != nil {
		h.log.Error(err, "the datapath does not know how good its paths are; trying again", "after", firstRetry.String())
		return firstRetry
	}
	wait := resync
	if !next.IsZero() {
		wait = min(wait, next.Sub(now))
	}
	return max(time.Millisecond, min(wait, h.tell(now)))
}

// tell has the statuses published where they are no longer right, and returns when to
// look again.
func (h *hints) tell(now time.Time) time.Duration {
	if sameVerdicts(h.lost, h.told) {
		return resync
	}
	if wait := h.toldAt.Add(tellAgain).Sub(now); wait > 0 {
		return wait
	}
	h.toldAt = now
	h.wake()
	return tellAgain
}

func sameVerdicts(a, b map[verdict]string) bool {
	if len(a) != len(b) {
		return false
	}
	for of, why := range a {
		if b[of] != why {
			return false
		}
	}
	return true
}

// update judges the paths and tells the datapath. next is when it may come to another
// result though nothing changes.
func (h *hints) update(now time.Time) (next time.Time, err error) {
	var view health.View
	if h.prober != nil {
		view = h.prober.View()
	}
	peers, names := h.judged(view)
	preferences, indexes := h.classes.list()
	good, next := h.judge.Update(now, view, peers, names, preferences)
	h.remember(view, good, indexes)
	if !h.settled {
		return next, nil
	}
	if err := h.setHealth(peerHealth(view.Dead(), good, indexes)); err != nil {
		return next, fmt.Errorf("saying how good the paths are: %w", err)
	}
	return next, nil
}

// judged are the peers of whose paths something is known, and the paths.
func (h *hints) judged(view health.View) (peers, names []string) {
	for _, path := range h.scene.paths {
		names = append(names, path.Name)
	}
	for _, peer := range h.scene.peers {
		if slices.ContainsFunc(names, func(path string) bool { return view.Sample(peer.Name, path) != (health.Sample{}) }) {
			peers = append(peers, peer.Name)
		}
	}
	return peers, names
}

// list is without gaps; indexes says which classes they are.
func (c *classes) list() (preferences []v1alpha1.PlanPreference, indexes []int) {
	for i, known := range c {
		if known != nil {
			preferences, indexes = append(preferences, known.preference), append(indexes, i)
		}
	}
	return preferences, indexes
}

func peerHealth(dead map[string]map[string]bool, good map[string][]map[string]bool, indexes []int) map[string]datapath.PeerHealth {
	result := map[string]datapath.PeerHealth{}
	for peer, paths := range dead {
		result[peer] = datapath.PeerHealth{Dead: paths}
	}
	for peer, judged := range good {
		of := datapath.PeerHealth{Dead: dead[peer], Good: make([]map[string]bool, datapath.MaxClasses)}
		for i, paths := range judged {
			of.Good[indexes[i]] = paths
		}
		result[peer] = of
	}
	return result
}

// remember notes why paths are given up that somebody prefers: with the figures of
// that moment, so that a message stays as it is while they change.
func (h *hints) remember(view health.View, good map[string][]map[string]bool, indexes []int) {
	lost := map[verdict]string{}
	for peer, judged := range good {
		for i, paths := range judged {
			class := h.classes[indexes[i]]
			for path, isGood := range paths {
				of := verdict{peer, path, indexes[i]}
				if isGood || !class.paths[v1alpha1.PathName(path)] {
					continue
				}
				lost[of] = h.why(of, view)
			}
		}
	}
	h.lost = lost
}

const noAnswer = "it does not answer probes"

func (h *hints) why(of verdict, view health.View) string {
	sample, preference := view.Sample(of.peer, of.path), h.classes[of.class].preference
	if sample.State == health.Dead {
		return noAnswer
	}
	if before := h.lost[of]; before != "" {
		return before
	}
	if sample.Loss*100 > float64(preference.MaxLossPercent) {
		return fmt.Sprintf("it lost %.0f %% of the probes", sample.Loss*100)
	}
	best := sample.RTT
	for _, path := range h.scene.paths {
		if other := view.Sample(of.peer, path.Name); other.State == health.Alive && other.RTT > 0 {
			best = min(best, other.RTT)
		}
	}
	return fmt.Sprintf("its round trip took %s, and the best path's %s", rounded(sample.RTT), rounded(best))
}

// rounded has two digits, or three.
func rounded(d time.Duration) time.Duration {
	unit := time.Microsecond
	for unit*100 < d {
		unit *= 10
	}
	return d.Round(unit)
}

// report says in the results what became of the endpoints' hints.
func (h *hints) report(endpoints []v1alpha1.PlanEndpoint, results []v1alpha1.EndpointStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told = h.lost
	known := map[string]preferenceStatus{}
	for i := range results {
		for j := range endpoints {
			if endpoints[j].UID == results[i].UID {
				results[i].Hints = h.statuses(&endpoints[j], known)
			}
		}
	}
}

// preferenceStatus is what became of preferred paths.
type preferenceStatus struct {
	state   v1alpha1.HintState
	message string
}

// fromPolicy stands for the annotation where a policy prefers paths.
const fromPolicy = "spec.paths"

// statuses has one entry for each annotation, and one for what the policy prefers.
func (h *hints) statuses(endpoint *v1alpha1.PlanEndpoint, known map[string]preferenceStatus) (statuses []v1alpha1.HintStatus) {
	source := func(annotation string) string {
		if slices.Contains(endpoint.Hinted, annotation) {
			return annotation
		}
		return fromPolicy
	}
	add := func(annotation string, is preferenceStatus) {
		if i := indexOfHint(statuses, annotation); i >= 0 {
			statuses[i].Message = shortenTo(hintMessage-len("…"), joined(statuses[i].Message, is.message))
			return
		}
		statuses = append(statuses, v1alpha1.HintStatus{
			Annotation: annotation, State: is.state, Message: shortenTo(hintMessage-len("…"), is.message),
		})
	}
	if len(endpoint.Preferred) > 0 {
		add(source(v1alpha1.AnnotationPreferredPaths), h.preferenceOf(endpoint, known))
	}
	if len(endpoint.Backup) > 0 {
		add(source(v1alpha1.AnnotationBackupPaths), preferenceStatus{state: v1alpha1.HintFollowed})
	}
	for _, annotation := range endpoint.Hinted {
		if indexOfHint(statuses, annotation) < 0 {
			add(annotation, preferenceStatus{state: v1alpha1.HintFollowed})
		}
	}
	for _, refused := range endpoint.RefusedHints {
		add(refused.Annotation, preferenceStatus{v1alpha1.HintRefused, refused.Message})
	}
	return statuses
}

func indexOfHint(statuses []v1alpha1.HintStatus, annotation string) int {
	return slices.IndexFunc(statuses, func(s v1alpha1.HintStatus) bool { return s.Annotation == annotation })
}

func joined(messages ...string) string {
	return strings.Join(slices.DeleteFunc(messages, func(m string) bool { return m == "" }), "; ")
}

// preferenceOf is the same for all endpoints that prefer the same in the same way.
func (h *hints) preferenceOf(endpoint *v1alpha1.PlanEndpoint, known map[string]preferenceStatus) preferenceStatus {
	class, exact := h.classes.of(endpoint)
	key := fmt.Sprint(class, exact, endpoint.Preferred)
	is, done := known[key]
	if !done {
		is = h.preferenceStatus(endpoint.Preferred, class)
		if !exact {
			is.message = joined(is.message, fmt.Sprintf("a node tells %d preferences apart, and this one is judged as another", datapath.MaxClasses))
		}
		known[key] = is
	}
	return is
}

// preferenceStatus is GivenUp where to some peer none of the paths is left.
func (h *hints) preferenceStatus(preferred []v1alpha1.PathName, class int) preferenceStatus {
	is := preferenceStatus{state: v1alpha1.HintFollowed}
	var messages []string
	without := map[string]int{} // how many of the paths cannot be used to a peer
	for _, path := range preferred {
		reasons := h.reasons(string(path), class)
		for peer := range reasons {
			without[peer]++
		}
		messages = append(messages, h.givenUp(string(path), reasons))
	}
	for _, count := range without {
		if count == len(preferred) {
			is.state = v1alpha1.HintGivenUp
		}
	}
	is.message = joined(messages...)
	return is
}

// reasons say of each peer to which a path is not used why.
func (h *hints) reasons(path string, class int) map[string]string {
	reasons := map[string]string{}
	here := h.unusableHere(path)
	for _, peer := range h.scene.peers {
		if here != "" {
			reasons[peer.Name] = here
		} else if there, known := peer.Paths[path]; !known || !there.Up || len(there.Addresses) == 0 {
			reasons[peer.Name] = "it is down there"
		} else if why := h.lost[verdict{peer.Name, path, class}]; why != "" {
			reasons[peer.Name] = why
		}
	}
	return reasons
}

// unusableHere says why this node cannot use a path at all, or "".
func (h *hints) unusableHere(path string) string {
	at := slices.IndexFunc(h.scene.paths, func(p paths.Path) bool { return p.Name == path })
	switch {
	case at < 0:
		return "this node does not have it"
	case h.scene.paths[at].Usable:
		return ""
	}
	return "on this node, " + h.scene.paths[at].Message
}

// givenUp says to which peers a path is not used, or "".
func (h *hints) givenUp(path string, reasons map[string]string) string {
	if len(reasons) == 0 {
		return ""
	}
	byReason := map[string][]string{}
	for peer, why := range reasons {
		byReason[why] = append(byReason[why], peer)
	}
	var parts []string
	for why, peers := range byReason {
		parts = append(parts, fmt.Sprintf("to %s (%s)", h.listed(peers), why))
	}
	slices.Sort(parts)
	if more := len(parts) - peersShown; more > 0 {
		parts = append(parts[:peersShown], "and to others")
	}
	return path + " is not used " + strings.Join(parts, ", ")
}

// listed are some of the peers, or all in one word.
func (h *hints) listed(peers []string) string {
	if len(peers) == len(h.scene.peers) && len(peers) > 1 {
		return fmt.Sprintf("any of %d nodes", len(peers))
	}
	slices.Sort(peers)
	text := strings.Join(peers[:min(len(peers), peersShown)], ", ")
	if more := len(peers) - peersShown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
