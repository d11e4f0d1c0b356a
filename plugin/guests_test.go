// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

// What a pod that holds a VM is told is in its node's plan, and counts while its agent reports.
func TestStatusNamesPodsThatHoldVMsAndWhatDoesNotHoldForThem(t *testing.T) {
	settings := []v1alpha1.NotAppliedSetting{{Setting: "spec.subflows", Message: "choose manager: Host"}}
	const object = "pod shop/db on node1"
	lacks := Problem{object, v1alpha1.ReasonNotForGuests, "spec.subflows does not hold for a VM: choose manager: Host"}
	follows := Problem{object, v1alpha1.ReasonGuestTakesNoAnnouncements, v1alpha1.GuestRemedy}
	set := &v1alpha1.GuestAgentStatus{State: v1alpha1.GuestAgentLimitsSet}
	away := &v1alpha1.GuestAgentStatus{State: v1alpha1.GuestAgentUnreachable, Message: "no socket"}
	refuses := &v1alpha1.GuestAgentStatus{State: v1alpha1.GuestAgentRefused, Message: "no ip"}
	for name, test := range map[string]struct {
		endpoint v1alpha1.PlanVirtualMachine
		is       v1alpha1.GuestSubflows
		agent    *v1alpha1.GuestAgentStatus
		silence  string
		remarks  []Problem
	}{
		"one for which all holds":         {v1alpha1.PlanVirtualMachine{Held: true}, v1alpha1.GuestJoined, set, "", nil},
		"one with settings for sockets":   {v1alpha1.PlanVirtualMachine{Held: true, NotApplied: settings}, "", nil, "", []Problem{lacks}},
		"one that takes no announcements": {v1alpha1.PlanVirtualMachine{Held: true}, v1alpha1.GuestNotTaken, nil, "", []Problem{follows}},
		"one whose guest is not reached":  {v1alpha1.PlanVirtualMachine{Held: true}, "", away, "", []Problem{{object, v1alpha1.ReasonGuestAgentUnreachable, "no socket"}}},
		"one whose guest refuses":         {v1alpha1.PlanVirtualMachine{Held: true}, "", refuses, "", []Problem{{object, v1alpha1.ReasonGuestAgentRefused, "no ip"}}},
		"one whose agent is silent":       {v1alpha1.PlanVirtualMachine{Held: true}, v1alpha1.GuestNotTaken, away, "it is silent", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var s Status
			s.addHolder(test.silence, "node1", &v1alpha1.PlanEndpoint{Namespace: "shop", Name: "db", VirtualMachine: &test.endpoint}, &v1alpha1.EndpointStatus{GuestSubflows: test.is, GuestAgent: test.agent})
			require.Equal(t, test.remarks, s.Remarks)
		})
	}
}

// A VM that opens no further subflows is programmed, and yet not what its admin meant.
func TestStatusNamesVMsThatFollowNoAnnouncements(t *testing.T) {
	for name, test := range map[string]struct {
		status  metav1.ConditionStatus
		reason  string
		remarks []Problem
	}{
		"one that joins":                  {metav1.ConditionTrue, v1alpha1.ReasonGuestJoins, nil},
		"one that was told of nothing":    {metav1.ConditionUnknown, v1alpha1.ReasonNothingAnnounced, nil},
		"one that takes no announcements": {metav1.ConditionFalse, v1alpha1.ReasonGuestTakesNoAnnouncements, []Problem{{"VM shop/db", v1alpha1.ReasonGuestTakesNoAnnouncements, "in the guest"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var s Status
			s.addGuest(&v1alpha1.MPTCPEndpoint{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"},
				Status: v1alpha1.MPTCPEndpointStatus{Conditions: []metav1.Condition{
					{Type: v1alpha1.ConditionGuestSubflows, Status: test.status, Reason: test.reason, Message: "in the guest"},
				}},
			})
			require.Equal(t, test.remarks, s.Remarks)
		})
	}
}
