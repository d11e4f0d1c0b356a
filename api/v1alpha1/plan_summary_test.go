// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
)

func TestASummaryCountsWhatIsToBeTold(t *testing.T) {
	asked := func(change func(*v1alpha1.PlanEndpoint)) v1alpha1.PlanEndpoint {
		endpoint := v1alpha1.PlanEndpoint{UID: "1", Policy: v1alpha1.PolicyReference{Generation: 7}, Chain: "chain"}
		if change != nil {
			change(&endpoint)
		}
		return endpoint
	}
	result := func(reason string, change func(*v1alpha1.EndpointStatus)) []v1alpha1.EndpointStatus {
		one := v1alpha1.EndpointStatus{UID: "1", State: v1alpha1.EndpointProgrammed, PolicyGeneration: 7, Chain: "chain"}
		if reason != "" {
			one.Spreading = &v1alpha1.SpreadingStatus{Reason: reason}
		}
		if change != nil {
			change(&one)
		}
		return []v1alpha1.EndpointStatus{one}
	}
	holder := func(e *v1alpha1.PlanEndpoint) { e.VirtualMachine = &v1alpha1.PlanVirtualMachine{Held: true} }
	for name, test := range map[string]struct {
		asked   v1alpha1.PlanEndpoint
		results []v1alpha1.EndpointStatus
		want    v1alpha1.PlanSummary
	}{
		"a pod that sends nothing":          {asked(nil), result(v1alpha1.ReasonNothingSent, nil), v1alpha1.PlanSummary{Pods: 1}},
		"a pod of which nobody has looked":  {asked(nil), result("", nil), v1alpha1.PlanSummary{Pods: 1}},
		"a pod that spreads":                {asked(nil), result(v1alpha1.ReasonSpread, nil), v1alpha1.PlanSummary{Pods: 1, MPTCP: 1, Sending: 1}},
		"a pod with plain TCP":              {asked(nil), result(v1alpha1.ReasonPlainTCP, nil), v1alpha1.PlanSummary{Pods: 1, PlainTCP: 1, Sending: 1}},
		"a pod that the agent has not seen": {asked(nil), nil, v1alpha1.PlanSummary{Pods: 1, Noteworthy: 1}},
		"a pod that failed":                 {asked(nil), result("", func(r *v1alpha1.EndpointStatus) { r.State = v1alpha1.EndpointFailed }), v1alpha1.PlanSummary{Pods: 1, Noteworthy: 1}},
		"a pod with the policy as it was":   {asked(nil), result("", func(r *v1alpha1.EndpointStatus) { r.PolicyGeneration = 6 }), v1alpha1.PlanSummary{Pods: 1, Noteworthy: 1}},
		"a pod with the rules as they were": {asked(nil), result("", func(r *v1alpha1.EndpointStatus) { r.Chain = "" }), v1alpha1.PlanSummary{Pods: 1, Noteworthy: 1}},
		"a VM":                              {asked(func(e *v1alpha1.PlanEndpoint) { e.Guest = &v1alpha1.PlanGuest{} }), result(v1alpha1.ReasonSpread, nil), v1alpha1.PlanSummary{VirtualMachines: 1, Sending: 1}},
		"a pod that holds a VM":             {asked(holder), result("", nil), v1alpha1.PlanSummary{VirtualMachinePods: 1}},
		"a VM that takes no announcements":  {asked(holder), result("", func(r *v1alpha1.EndpointStatus) { r.GuestSubflows = v1alpha1.GuestNotTaken }), v1alpha1.PlanSummary{VirtualMachinePods: 1, Noteworthy: 1}},
		"a VM whose agent is not reached": {asked(holder), result("", func(r *v1alpha1.EndpointStatus) {
			r.GuestAgent = &v1alpha1.GuestAgentStatus{State: v1alpha1.GuestAgentUnreachable}
		}), v1alpha1.PlanSummary{VirtualMachinePods: 1, Noteworthy: 1}},
		"a VM whose agent set its limits": {asked(holder), result("", func(r *v1alpha1.EndpointStatus) {
			r.GuestAgent = &v1alpha1.GuestAgentStatus{State: v1alpha1.GuestAgentLimitsSet}
		}), v1alpha1.PlanSummary{VirtualMachinePods: 1}},
		"a VM for which a part does not hold": {asked(func(e *v1alpha1.PlanEndpoint) {
			holder(e)
			e.VirtualMachine.NotApplied = make([]v1alpha1.NotAppliedSetting, 1)
		}), result("", nil), v1alpha1.PlanSummary{VirtualMachinePods: 1, Noteworthy: 1}},
		"a pod with a VM that nobody has seen": {asked(holder), nil, v1alpha1.PlanSummary{VirtualMachinePods: 1, Noteworthy: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, &test.want, v1alpha1.Summarize([]v1alpha1.PlanEndpoint{test.asked}, test.results))
		})
	}
}
