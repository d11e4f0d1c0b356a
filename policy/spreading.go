// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

// Traffic is what a pod's traffic does, as its node's agent says; nil where none says it.
type Traffic struct {
	Pod PodRef
	Is  *v1alpha1.SpreadingStatus
}

// Spreading is what the traffic of a policy's pods does.
type Spreading struct {
	Status          metav1.ConditionStatus
	Reason, Message string
	// Pods counts them by their reasons.
	Pods map[string]int
}

// SpreadingOf adds up what pods' traffic does. One pod whose traffic is not spread makes
// it False; those of whose traffic nothing is known count for nothing beside others.
func SpreadingOf(pods []Traffic) Spreading {
	s := Spreading{Pods: map[string]int{}}
	byState := map[v1alpha1.SpreadingState]map[string]int{}
	var first *Traffic
	for i := range pods {
		is := v1alpha1.SpreadingStatus{State: v1alpha1.SpreadingUnknown, Reason: v1alpha1.ReasonNotReported}
		if pods[i].Is != nil {
			is = *pods[i].Is
		}
		s.Pods[is.Reason]++
		if byState[is.State] == nil {
			byState[is.State] = map[string]int{}
		}
		byState[is.State][is.Reason]++
		if is.State == v1alpha1.SpreadingNotSpread && first == nil {
			first = &pods[i]
		}
	}
	switch failing := byState[v1alpha1.SpreadingNotSpread]; {
	case first != nil:
		s.Status, s.Reason = metav1.ConditionFalse, mostOf(failing)
		s.Message = fmt.Sprintf("the traffic of %d of %d pods is not spread (%s); %s: %s: %s",
			sum(failing), len(pods), counts(failing), first.Pod, first.Is.Reason, first.Is.Message)
	case byState[v1alpha1.SpreadingSpread] != nil:
		s.Status, s.Reason = metav1.ConditionTrue, v1alpha1.ReasonSpread
		s.Message = "the traffic of every pod that sends enough to tell is on several paths"
	default:
		s.Status, s.Reason = metav1.ConditionUnknown, mostTold(byState[v1alpha1.SpreadingUnknown])
		s.Message = unknownTexts[s.Reason]
	}
	return s
}

// unknownTexts explain the reasons of Unknown.
var unknownTexts = map[string]string{
	v1alpha1.ReasonLittleSent:  "no connection of the pods lasted long enough to need a second path",
	v1alpha1.ReasonNothingSent: "the pods send nothing to other nodes",
	v1alpha1.ReasonNotReported: "no agent has told yet what the pods' traffic does",
}

// mostTold is the reason that says most.
func mostTold(reasons map[string]int) string {
	for _, reason := range []string{v1alpha1.ReasonLittleSent, v1alpha1.ReasonNothingSent, v1alpha1.ReasonNotReported} {
		if reasons[reason] > 0 {
			return reason
		}
	}
	return cmp.Or(mostOf(reasons), v1alpha1.ReasonNotReported)
}

// mostOf is the reason with most pods, the first by name of several.
func mostOf(reasons map[string]int) string {
	if len(reasons) == 0 {
		return ""
	}
	return inOrder(reasons)[0]
}

func inOrder(reasons map[string]int) []string {
	return slices.SortedFunc(maps.Keys(reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(reasons[b], reasons[a]), strings.Compare(a, b))
	})
}

func counts(reasons map[string]int) string {
	var texts []string
	for _, reason := range inOrder(reasons) {
		texts = append(texts, fmt.Sprintf("%s %d", reason, reasons[reason]))
	}
	return strings.Join(texts, ", ")
}

func sum(reasons map[string]int) (total int) {
	for _, count := range reasons {
		total += count
	}
	return total
}
