// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

func TestAPolicysTrafficIsWhatThatOfItsPodsIs(t *testing.T) {
	told := func(state v1alpha1.SpreadingState, reason string) *v1alpha1.SpreadingStatus {
		return &v1alpha1.SpreadingStatus{State: state, Reason: reason, Message: "as it is"}
	}
	spread := told(v1alpha1.SpreadingSpread, v1alpha1.ReasonSpread)
	plain := told(v1alpha1.SpreadingNotSpread, v1alpha1.ReasonPlainTCP)
	single := told(v1alpha1.SpreadingNotSpread, v1alpha1.ReasonNoSecondPath)
	nothing := told(v1alpha1.SpreadingUnknown, v1alpha1.ReasonNothingSent)
	little := told(v1alpha1.SpreadingUnknown, v1alpha1.ReasonLittleSent)
	tests := map[string]struct {
		pods   []*v1alpha1.SpreadingStatus
		status metav1.ConditionStatus
		reason string
	}{
		"one pod is spread, the others are silent": {[]*v1alpha1.SpreadingStatus{nothing, spread, nil}, metav1.ConditionTrue, v1alpha1.ReasonSpread},
		"one pod is not": {[]*v1alpha1.SpreadingStatus{spread, plain, spread}, metav1.ConditionFalse, v1alpha1.ReasonPlainTCP},
		"of several reasons that of most pods counts":      {[]*v1alpha1.SpreadingStatus{plain, single, single}, metav1.ConditionFalse, v1alpha1.ReasonNoSecondPath},
		"of two with as many pods the first by name":       {[]*v1alpha1.SpreadingStatus{plain, single}, metav1.ConditionFalse, v1alpha1.ReasonNoSecondPath},
		"no pod sends anything":                            {[]*v1alpha1.SpreadingStatus{nothing, nothing}, metav1.ConditionUnknown, v1alpha1.ReasonNothingSent},
		"one sends a little":                               {[]*v1alpha1.SpreadingStatus{nothing, little}, metav1.ConditionUnknown, v1alpha1.ReasonLittleSent},
		"no agent has told":                                {[]*v1alpha1.SpreadingStatus{nil, nil}, metav1.ConditionUnknown, v1alpha1.ReasonNotReported},
		"a newer agent has a reason that is not known yet": {[]*v1alpha1.SpreadingStatus{told(v1alpha1.SpreadingUnknown, "Fog")}, metav1.ConditionUnknown, "Fog"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var pods []Traffic
			for _, is := range test.pods {
				pods = append(pods, Traffic{Pod: PodRef{Namespace: "shop", Name: "web"}, Is: is})
			}
			s := SpreadingOf(pods)
			require.Equal(t, test.status, s.Status)
			require.Equal(t, test.reason, s.Reason)
		})
	}
}

func TestWhoseTrafficIsNotSpreadIsNamedAndCounted(t *testing.T) {
	pods := []Traffic{
		{Pod: PodRef{Namespace: "shop", Name: "a"}},
		{Pod: PodRef{Namespace: "shop", Name: "b"}, Is: &v1alpha1.SpreadingStatus{State: v1alpha1.SpreadingNotSpread, Reason: "PlainTCP", Message: "its sockets are plain TCP"}},
		{Pod: PodRef{Namespace: "shop", Name: "c"}, Is: &v1alpha1.SpreadingStatus{State: v1alpha1.SpreadingNotSpread, Reason: "PlainTCP"}},
	}
	s := SpreadingOf(pods)
	require.Equal(t, "the traffic of 2 of 3 pods is not spread (PlainTCP 2); shop/b: PlainTCP: its sockets are plain TCP", s.Message)
	require.Equal(t, map[string]int{"PlainTCP": 2, "NotReported": 1}, s.Pods)
}
