// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"strings"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// What is told of hints in the status of a plan.

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
