// SPDX-License-Identifier: Apache-2.0

package hints

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

const (
	// peersShown keeps messages short.
	peersShown = 3
	// messageLimit is the schema's for the message of a hint, in bytes, but for the
	// sign that it was cut.
	messageLimit = 512 - len("…")
)

// preferenceStatus is what became of preferred paths.
type preferenceStatus struct {
	state   v1alpha1.HintState
	message string
}

// fromPolicy stands for the annotation where a policy prefers paths.
const fromPolicy = "spec.paths"

// describe is for the status of an endpoint: one entry for each annotation, and one
// for what the policy prefers.
func (h *Hints) describe(endpoint *v1alpha1.PlanEndpoint) (statuses []v1alpha1.HintStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.published = h.avoided
	source := func(annotation string) string {
		if slices.Contains(endpoint.Hinted, annotation) {
			return annotation
		}
		return fromPolicy
	}
	add := func(annotation string, state v1alpha1.HintState, message string) {
		i := indexOfHint(statuses, annotation)
		if i < 0 {
			i, statuses = len(statuses), append(statuses, v1alpha1.HintStatus{Annotation: annotation, State: state})
		}
		statuses[i].Message = node.Shorten(messageLimit, joined(statuses[i].Message, message))
	}
	if len(endpoint.Preferred) > 0 {
		is := h.preferenceOf(endpoint)
		add(source(v1alpha1.AnnotationPreferredPaths), is.state, is.message)
	}
	if len(endpoint.Backup) > 0 {
		add(source(v1alpha1.AnnotationBackupPaths), v1alpha1.HintFollowed, "")
	}
	for _, annotation := range endpoint.Hinted {
		if indexOfHint(statuses, annotation) < 0 {
			add(annotation, v1alpha1.HintFollowed, "")
		}
	}
	for _, refused := range endpoint.RefusedHints {
		add(refused.Annotation, v1alpha1.HintRefused, refused.Message)
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
func (h *Hints) preferenceOf(endpoint *v1alpha1.PlanEndpoint) preferenceStatus {
	class, exact := h.model.Preferences.Class(endpoint)
	key := fmt.Sprint(class, exact, endpoint.Preferred)
	is, known := h.statuses[key]
	if !known {
		is = h.preferenceStatus(endpoint.Preferred, class)
		if !exact {
			is.message = joined(is.message, fmt.Sprintf("a node tells %d preferences apart, and this one is judged as another", node.MaxClasses))
		}
		h.statuses[key] = is
	}
	return is
}

// preferenceStatus is GivenUp where to some peer none of the paths is left.
func (h *Hints) preferenceStatus(preferred []v1alpha1.PathName, class int) preferenceStatus {
	is := preferenceStatus{state: v1alpha1.HintFollowed}
	var messages []string
	without := map[string]int{} // how many of the paths cannot be used to a peer
	for _, path := range preferred {
		reasons := h.reasons(string(path), class)
		for peer := range reasons {
			without[peer]++
		}
		messages = append(messages, h.notUsed(string(path), reasons))
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
func (h *Hints) reasons(path string, class int) map[string]string {
	reasons := map[string]string{}
	here := h.unusableHere(path)
	if here != "" && len(h.model.Peers) == 0 { // a node without NICs knows no peers
		reasons["any node"] = here
	}
	for _, peer := range h.model.Peers {
		if here != "" {
			reasons[peer.Name] = here
		} else if there, known := peer.Paths[path]; !known || !there.Up || len(there.Addresses) == 0 {
			reasons[peer.Name] = "it is down there"
		} else if why := h.avoided[candidate{peer.Name, path, class}]; why != "" {
			reasons[peer.Name] = why
		}
	}
	return reasons
}

// unusableHere says why this node cannot use a path at all, or "".
func (h *Hints) unusableHere(name string) string {
	at := slices.IndexFunc(h.model.Paths, func(path node.Path) bool { return path.Name == name })
	switch {
	case at < 0:
		return "this node does not have it"
	case h.model.Paths[at].Up:
		return ""
	}
	return "on this node, " + cmp.Or(h.model.Paths[at].Found.Message, "all numbers of paths are in use")
}

// notUsed says to which peers a path is not used, or "".
func (h *Hints) notUsed(path string, reasons map[string]string) string {
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
func (h *Hints) listed(peers []string) string {
	if len(peers) == len(h.model.Peers) && len(peers) > 1 {
		return fmt.Sprintf("any of %d nodes", len(peers))
	}
	slices.Sort(peers)
	text := strings.Join(peers[:min(len(peers), peersShown)], ", ")
	if more := len(peers) - peersShown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
