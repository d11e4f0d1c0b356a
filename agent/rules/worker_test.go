// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// work is rules whose loading a test holds up.
type work struct {
	*Rules
	carried chan *node.Model // each model before it is carried out
	goOn    chan node.Report // what is to become of it
	told    int
}

// working runs a test with rules at work, that end with it.
func working(t *testing.T, do func(t *testing.T, w *work)) {
	synctest.Test(t, func(t *testing.T) {
		w := &work{Rules: &Rules{begun: time.Now()}, carried: make(chan *node.Model, 10), goOn: make(chan node.Report)}
		w.worker = worker{
			load: func(*node.Model) {}, tell: func() { w.told++ }, handed: make(chan struct{}, 1),
			carryOut: func(_ context.Context, model *node.Model) node.Report {
				w.carried <- model
				return <-w.goOn
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.worker.run(ctx) }()
		do(t, w)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// finish lets what is under way come to an end.
func (w *work) finish(report node.Report) {
	w.goOn <- report
	synctest.Wait()
}

// modelOf has pods with these chains, in this order: a, b, and so on. One without has no
// rules.
func modelOf(chains ...string) *node.Model {
	model := &node.Model{Paths: []node.Path{{Name: "blue", Interface: 7}}}
	for i, chain := range chains {
		model.Endpoints = append(model.Endpoints, node.Endpoint{
			PlanEndpoint: &v1alpha1.PlanEndpoint{UID: types.UID("abc"[i : i+1]), Namespace: "team", Name: fmt.Sprint("pod-", i), Chain: chain},
			Number:       uint32(i + 1), HostInterface: 10 + i, Found: &endpoints.Endpoint{},
		})
	}
	return model
}

const programmed, pending, failed = v1alpha1.EndpointProgrammed, v1alpha1.EndpointPending, v1alpha1.EndpointFailed

// expect compares the states of a model's pods.
func expect(t *testing.T, when string, report node.Report, model *node.Model, states ...v1alpha1.EndpointState) {
	t.Helper()
	for i, status := range report.Statuses(model) {
		if status.State != states[i] {
			t.Errorf("%s: %s is %s (%s) instead of %s", when, status.Name, status.State, status.Message, states[i])
		}
	}
}

func TestAPodWithoutRulesDoesNotWaitForThoseOfAnother(t *testing.T) {
	working(t, func(t *testing.T, w *work) {
		model := modelOf("rules", "")
		expect(t, "before anything is loaded", w.Apply(t.Context(), model), model, pending, programmed)
		synctest.Wait() // now it is being loaded
		later := modelOf("rules", "", "")
		expect(t, "with a new pod", w.Apply(t.Context(), later), later, pending, programmed, programmed)
		w.finish(node.Report{})
		if w.told == 0 {
			t.Error("nobody is told of what became of the rules")
		}
		expect(t, "once they are loaded", w.Report(later), later, programmed, programmed, programmed)
		w.finish(node.Report{})
	})
}

func TestAnEndpointIsPendingUntilWhatIsAskedOfItNowIsLoaded(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*node.Model)
		state  v1alpha1.EndpointState
	}{
		"nothing":                   {func(*node.Model) {}, programmed},
		"another generation":        {func(m *node.Model) { m.Endpoints[0].Policy.Generation++ }, programmed},
		"other rules":               {func(m *node.Model) { m.Endpoints[0].Chain = "others" }, pending},
		"no rules":                  {func(m *node.Model) { m.Endpoints[0].Chain = "" }, pending},
		"another interface":         {func(m *node.Model) { m.Endpoints[0].HostInterface++ }, pending},
		"another number":            {func(m *node.Model) { m.Endpoints[0].Number++ }, pending},
		"another manager":           {func(m *node.Model) { m.Endpoints[0].Subflows.Manager = v1alpha1.SubflowManagerAgent }, pending},
		"another NIC of a path":     {func(m *node.Model) { m.Paths[0].Interface++ }, pending},
		"a path that is down":       {func(m *node.Model) { m.Paths[0].Up = !m.Paths[0].Up }, programmed},
		"another pod of its UID":    {func(m *node.Model) { m.Endpoints[0].UID = "z" }, pending},
		"another program":           {func(m *node.Model) { m.Plan = planWithProgram("new") }, pending},
		"a NIC of a path is gone":   {func(m *node.Model) { m.Paths[0].Interface = 0 }, pending},
		"the pod is not found once": {func(m *node.Model) { m.Endpoints[0].Found = nil }, pending},
	} {
		t.Run(name, func(t *testing.T) {
			working(t, func(t *testing.T, w *work) {
				w.Apply(t.Context(), modelOf("rules", ""))
				w.finish(node.Report{})
				changed := modelOf("rules", "")
				c.change(changed)
				expect(t, "after the change", w.Apply(t.Context(), changed), changed, c.state, programmed)
				w.finish(node.Report{})
				if changed.Endpoints[0].Found != nil {
					expect(t, "once it is carried out", w.Report(changed), changed, programmed, programmed)
				}
			})
		})
	}
}

func planWithProgram(revision string) *v1alpha1.MPTCPNodePlan {
	return &v1alpha1.MPTCPNodePlan{Spec: v1alpha1.MPTCPNodePlanSpec{Programs: []v1alpha1.PlanProgram{{Policy: "edge", Revision: revision}}}}
}

func TestTheNewestModelAloneIsCarriedOut(t *testing.T) {
	working(t, func(t *testing.T, w *work) {
		first, second, third := modelOf("1"), modelOf("2"), modelOf("3")
		w.Apply(t.Context(), first)
		synctest.Wait()
		w.Apply(t.Context(), second)
		w.Apply(t.Context(), third)
		w.finish(node.Report{})
		w.finish(node.Report{})
		if a, b := <-w.carried, <-w.carried; a != first || b != third || len(w.carried) > 0 {
			t.Errorf("it carried out %v and %v, and %d more", a.Endpoints[0].Chain, b.Endpoints[0].Chain, len(w.carried))
		}
		expect(t, "in the end", w.Report(third), third, programmed)
	})
}

func TestAModelThatComesWhileProgramsAreLoadedIsTheOneThatIsCarriedOut(t *testing.T) {
	working(t, func(t *testing.T, w *work) {
		loading := make(chan struct{})
		w.worker.load = func(*node.Model) { <-loading }
		old, newer := modelOf("old"), modelOf("newer")
		w.Apply(t.Context(), old)
		synctest.Wait()
		w.Apply(t.Context(), newer)
		close(loading)
		w.finish(node.Report{})
		if first := <-w.carried; first != newer {
			t.Errorf("it carried out %q", first.Endpoints[0].Chain)
		}
		w.finish(node.Report{})
	})
}

func TestAFailureIsToldOnceAndFreesNoNumbers(t *testing.T) {
	working(t, func(t *testing.T, w *work) {
		well, bad, next := modelOf("rules", ""), modelOf("bad", ""), modelOf("bad", "", "")
		w.Apply(t.Context(), well)
		w.finish(node.Report{})
		if report := w.Report(well); report.Applied != nil || !report.Done() {
			t.Errorf("what is applied is not done: %+v", report)
		}
		w.Apply(t.Context(), bad)
		report := node.Report{Err: errors.New("no")}
		report.Fail("a", errors.New("no"))
		w.finish(report)
		if told := w.Report(bad); told.Err == nil {
			t.Error("the failure is not told")
		}
		told := w.Apply(t.Context(), next)
		if told.Err != nil || told.Applied != well {
			t.Errorf("of the next model it says %v, and that %v is applied", told.Err, told.Applied)
		}
		expect(t, "of a pod that has failed, and of others", told, next, failed, programmed, programmed)
		w.finish(node.Report{})
	})
}

func TestNothingIsSaidForAMomentWhileWhatAnEarlierAgentLeftIsTakenOver(t *testing.T) {
	working(t, func(t *testing.T, w *work) {
		w.takesOver = true
		model := modelOf("rules", "", "")
		model.Plan = &v1alpha1.MPTCPNodePlan{Status: v1alpha1.MPTCPNodePlanStatus{Endpoints: []v1alpha1.EndpointStatus{
			{UID: "a", Chain: "rules"}, {UID: "b", Chain: "earlier"},
		}}}
		if report := w.Apply(t.Context(), model); !report.Unknown {
			t.Errorf("it says of a node that it does not know yet: %+v", report)
		}
		time.Sleep(takingOver)
		late := w.Report(model)
		if late.Unknown {
			t.Error("nothing is said of any pod, though it takes long")
		}
		expect(t, "where it takes long", late, model, pending, pending, programmed)
		w.finish(node.Report{})
		expect(t, "then", w.Report(model), model, programmed, programmed, programmed)
	})
}

func TestTheEndWaitsForWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, goOn, ended := make(chan struct{}), make(chan struct{}), false
		w := worker{load: func(*node.Model) {}, tell: func() {}, handed: make(chan struct{}, 1), carryOut: func(context.Context, *node.Model) node.Report {
			close(begun)
			<-goOn
			return node.Report{}
		}}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = w.run(ctx); ended = true }()
		w.handOver(modelOf("rules"))
		<-begun
		cancel()
		synctest.Wait()
		if ended {
			t.Error("it ended while a model was carried out")
		}
		close(goOn)
		synctest.Wait()
		if !ended {
			t.Error("it goes on after its end")
		}
	})
}
