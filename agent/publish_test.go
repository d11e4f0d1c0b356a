// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/rules"
	"braid.dev/braid/api/v1alpha1"
)

func TestPlanStatus(t *testing.T) {
	const done, pending, failed = v1alpha1.EndpointProgrammed, v1alpha1.EndpointPending, v1alpha1.EndpointFailed
	cases := map[string]struct {
		states     []v1alpha1.EndpointState
		failed     error
		programmed int32
		status     metav1.ConditionStatus
		reason     string
	}{
		"a plan without endpoints is carried out":  {nil, nil, 0, metav1.ConditionTrue, v1alpha1.ReasonProgrammed},
		"every endpoint is programmed":             {[]v1alpha1.EndpointState{done, done}, nil, 2, metav1.ConditionTrue, v1alpha1.ReasonProgrammed},
		"one endpoint is pending":                  {[]v1alpha1.EndpointState{done, pending}, nil, 1, metav1.ConditionFalse, v1alpha1.ReasonPending},
		"a failure is worse than what is pending":  {[]v1alpha1.EndpointState{pending, failed, done}, nil, 1, metav1.ConditionFalse, v1alpha1.ReasonEndpointFailed},
		"a datapath that failed programs nothing":  {[]v1alpha1.EndpointState{failed, pending}, errors.New("no"), 0, metav1.ConditionFalse, v1alpha1.ReasonDatapathFailed},
		"a datapath that failed without endpoints": {nil, errors.New("no"), 0, metav1.ConditionFalse, v1alpha1.ReasonDatapathFailed},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Generation: 7}}
			var results []v1alpha1.EndpointStatus
			for _, state := range c.states {
				results = append(results, v1alpha1.EndpointStatus{State: state})
			}
			plan.Spec.Endpoints = make([]v1alpha1.PlanEndpoint, len(results))
			for i := range results {
				results[i].UID = types.UID(fmt.Sprint(i))
				plan.Spec.Endpoints[i].UID = results[i].UID
			}
			status := planStatus(plan, results, c.failed)
			require.Equal(t, &v1alpha1.PlanSummary{Pods: int32(len(results)), Noteworthy: int32(len(results)) - c.programmed}, status.Summary)
			condition := status.Conditions[0]
			if condition.Type != v1alpha1.ConditionProgrammed || condition.Status != c.status || condition.Reason != c.reason {
				t.Errorf("the condition is %+v", condition)
			}
			if status.ObservedGeneration != 7 || condition.ObservedGeneration != 7 {
				t.Errorf("the generations are %d and %d", status.ObservedGeneration, condition.ObservedGeneration)
			}
			if status.EndpointsProgrammed != c.programmed {
				t.Errorf("%d endpoints count as programmed", status.EndpointsProgrammed)
			}
		})
	}
}

// slowServer is an API server that does not answer writes of statuses before it is let.
type slowServer struct {
	client.Client
	statuses *heldWrites
}

func (s slowServer) Status() client.SubResourceWriter { return s.statuses }

type heldWrites struct {
	client.SubResourceWriter
	written chan *v1alpha1.MPTCPNodePlan
	goOn    chan error
}

func (h *heldWrites) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	h.written <- object.(*v1alpha1.MPTCPNodePlan)
	return <-h.goOn
}

func TestPodsDoNotWaitUntilTheAPIServerHasTheirStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &heldWrites{written: make(chan *v1alpha1.MPTCPNodePlan, 10), goOn: make(chan error)}
		a := &Agent{
			log: logr.Discard(), client: slowServer{statuses: server}, outcomes: make(latest[outcome], 1),
			builder: node.NewBuilder(node.OpenRegistry(t.TempDir(), logr.Discard())), parts: &parts{rules: rules.Open(rules.Options{PinPath: t.TempDir()})},
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = a.publishPlans(ctx) }() // it ends with the test
		told := func(generation int64, pods ...string) error {
			plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node1", Generation: generation}}
			model := &node.Model{Plan: plan}
			for _, name := range pods {
				model.Endpoints = append(model.Endpoints, node.Endpoint{PlanEndpoint: &v1alpha1.PlanEndpoint{UID: types.UID(name), Name: name}, Found: &endpoints.Endpoint{}})
			}
			a.managed = managed{round{snapshot: &snapshot{plan: plan}}, model}
			err := a.tellOfPods(ctx)
			synctest.Wait()
			return err
		}
		for i, pods := range [][]string{{"a"}, {"a", "b"}, {"a", "b", "c"}} { // none of them waits
			if err := told(int64(i+1), pods...); err != nil {
				t.Error(err)
			}
		}
		server.goOn <- errors.New("too busy")
		time.Sleep(time.Minute)
		server.goOn <- nil
		synctest.Wait()
		first, last := <-server.written, <-server.written
		if first.Status.ObservedGeneration != 1 || last.Status.ObservedGeneration != 3 || len(last.Status.Endpoints) != 3 || len(server.written) > 0 {
			t.Errorf("generations %d and %d were written, with %d more", first.Status.ObservedGeneration, last.Status.ObservedGeneration, len(server.written))
		}
		cancel()
		synctest.Wait()
	})
}

func TestTheTransitionTimeIsThatOfTheLastTransition(t *testing.T) {
	long := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	plan := &v1alpha1.MPTCPNodePlan{Status: v1alpha1.MPTCPNodePlanStatus{Conditions: []metav1.Condition{{
		Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, LastTransitionTime: long,
	}}}}
	if same := planStatus(plan, nil, nil).Conditions[0]; !same.LastTransitionTime.Equal(&long) {
		t.Errorf("a condition that did not change has the time %v", same.LastTransitionTime)
	}
	if other := planStatus(plan, nil, errors.New("no")).Conditions[0]; !other.LastTransitionTime.After(long.Time) {
		t.Errorf("a condition that changed has the time %v", other.LastTransitionTime)
	}
}

func TestStatusesThatDifferInTimesAloneAreEqual(t *testing.T) {
	plan := &v1alpha1.MPTCPNodePlan{}
	status := planStatus(plan, nil, nil)
	bare := withoutTimes(status)
	if !bare.Conditions[0].LastTransitionTime.IsZero() || status.Conditions[0].LastTransitionTime.IsZero() {
		t.Errorf("the times are %v and %v", bare.Conditions[0].LastTransitionTime, status.Conditions[0].LastTransitionTime)
	}
}

func TestANodeSaysToHowManyOthersItDoesNotSteer(t *testing.T) {
	a := &Agent{}
	if condition := a.peersCondition(0); condition != nil {
		t.Errorf("the condition is %+v", condition)
	}
	first := a.peersCondition(616)
	if first.Status != metav1.ConditionTrue || !strings.Contains(first.Message, "16384") || !strings.Contains(first.Message, "616 more") {
		t.Errorf("the condition is %+v", first)
	}
	first.LastTransitionTime = metav1.NewTime(first.LastTransitionTime.Add(-time.Hour))
	a.published.node.status = &v1alpha1.MPTCPNodeStatus{Conditions: []metav1.Condition{*first}}
	if next := a.peersCondition(617); !next.LastTransitionTime.Equal(&first.LastTransitionTime) {
		t.Errorf("the condition began at %s and not at %s", next.LastTransitionTime, first.LastTransitionTime)
	}
}
