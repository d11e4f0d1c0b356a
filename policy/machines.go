// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"

	"braid.dev/braid/api/v1alpha1"
)

// machine says whether a pod holds a VM, and by what that is known.
type machine struct {
	held bool
	// from is empty where nothing tells.
	from string
	// malformed is what is wrong with the pod's annotation; empty for nothing.
	malformed string
}

// machineOf goes by what KubeVirt, or the pod's owner, wrote. Who can write it decides about
// this pod alone, and gives up only what is done in the pod's own sockets: guardrails and
// limits by packets hold all the same.
func machineOf(labels, annotations map[string]string) (m machine) {
	const label = v1alpha1.LabelKubeVirt
	if labels[label] == v1alpha1.LabelKubeVirtLauncher {
		m = machine{held: true, from: fmt.Sprintf("label %s=%s", label, v1alpha1.LabelKubeVirtLauncher)}
	}
	const key = v1alpha1.AnnotationVirtualMachine
	value, given := annotations[key]
	switch {
	case !given:
	case value == "true", value == "false":
		m = machine{held: value == "true", from: "annotation " + key}
	default:
		m.malformed = fmt.Sprintf(`%s is neither true nor false. Give "true" where the pod holds a virtual machine, and "false" where its connections are its own`, quote(value))
	}
	return m
}

// readMachine notes what a pod says of a VM in it.
func (h *podHints) readMachine(w *workload) {
	const key = v1alpha1.AnnotationVirtualMachine
	value, given := w.annotations[key]
	if !given || w.guest != nil {
		return
	}
	choice := HintChoice{Annotation: key, Value: shorten(value, maxQuoted), Followed: true, Reason: "the pod's sockets are its own"}
	if w.machine.held {
		choice.Reason = "the pod's connections are those of a guest"
	}
	if w.machine.malformed != "" {
		h.refuse(key, v1alpha1.ReasonHintMalformed, "%s", w.machine.malformed)
		choice.Followed, choice.Reason = false, w.machine.malformed
	}
	h.d.Hints = append(h.d.Hints, choice)
}

// text says that a pod holds a VM, and what to do where its label does not tell all;
// empty where it holds none.
func (m *machine) text() string {
	switch {
	case !m.held:
		return ""
	case m.malformed == "" && m.from == "annotation "+v1alpha1.AnnotationVirtualMachine:
		return m.from
	}
	return m.from + `; where its network binding is passt, whose sockets are the pod's, annotate it ` + v1alpha1.AnnotationVirtualMachine + `: "false"`
}
