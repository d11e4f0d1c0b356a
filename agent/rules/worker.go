// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"errors"
	"slices"
	"sync"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// worker carries models out beside the agent's rounds: the kernel takes up to a second
// to verify programs, and waits for packets under way at each change of a chain. What
// one tenant asks so delays no other's pods. It takes the newest model alone, with what
// all tenants changed meanwhile.
type worker struct {
	// load loads what a model needs whatever is in it, and carryOut does the rest.
	load     func(*node.Model)
	carryOut func(context.Context, *node.Model) node.Report
	tell     func() // that there is an outcome

	handed chan struct{}
	mu     sync.Mutex
	newest *node.Model // that was handed over
	last   *outcome    // nil before the first
}

// handOver does not wait.
func (w *worker) handOver(model *node.Model) {
	w.mu.Lock()
	w.newest = model
	w.mu.Unlock()
	select {
	case w.handed <- struct{}{}:
	default:
	}
}

func (w *worker) take() *node.Model {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newest
}

// outcome is the last one; nil before there was one.
func (w *worker) outcome() *outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// run ends with the context, when nothing is under way any more.
func (w *worker) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.handed:
		}
		w.load(w.take())
		model := w.take() // there may be a newer one since
		w.finish(model, w.carryOut(ctx, model))
		w.tell()
	}
}

func (w *worker) finish(model *node.Model, report node.Report) {
	o := &outcome{model: model, report: report, applied: model, asked: map[types.UID]asked{}}
	for i := range model.Endpoints {
		o.asked[model.Endpoints[i].UID] = askedOf(&model.Endpoints[i])
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if report.Err != nil {
		o.applied = w.last.appliedBefore()
	}
	w.last = o
}

// outcome is what became of a model.
type outcome struct {
	model  *node.Model
	report node.Report
	asked  map[types.UID]asked
	// applied is the last model that did not fail.
	applied *node.Model
}

// appliedBefore is a model without a round where there was none.
func (o *outcome) appliedBefore() *node.Model {
	if o == nil {
		return &node.Model{}
	}
	return o.applied
}

// asked is what is to be loaded for an endpoint. A chain's name is a sum of its rules.
type asked struct {
	chain         string
	number        uint32
	hostInterface int
	found         bool
	manager       v1alpha1.SubflowManager
}

func askedOf(endpoint *node.Endpoint) asked {
	if endpoint.Chain == "" {
		return asked{}
	}
	return asked{endpoint.Chain, endpoint.Number, endpoint.HostInterface, endpoint.Found != nil, endpoint.Subflows.Manager}
}

var (
	errNotLoaded  = errors.New("the pod's rules are not loaded yet")
	errNotRemoved = errors.New("the rules that the pod had are not removed yet")
)

// reportOf is what can be said of a model by what became of the last one: of endpoints
// of which the same was asked, what became of them; others are waited for.
func (o *outcome) reportOf(model *node.Model) node.Report {
	if o != nil && o.model == model {
		return o.report
	}
	report := node.Report{Applied: o.appliedBefore(), Endpoints: map[types.UID]node.EndpointReport{}}
	known, same := askedBefore(model), false
	if o != nil {
		report.Unfinished, known, same = o.report.Unfinished, o.asked, sameSurroundings(o.model, model)
	}
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		before, now := known[endpoint.UID], askedOf(endpoint)
		switch {
		case now.chain == "" && before.chain != "":
			report.Await(endpoint.UID, errNotRemoved)
		case now.chain != "" && (before != now || !same):
			report.Await(endpoint.UID, errNotLoaded)
		case o != nil:
			report.Endpoints[endpoint.UID] = o.report.Endpoints[endpoint.UID]
		}
	}
	return report
}

// askedBefore are the chains of an earlier agent, as it told of them.
func askedBefore(model *node.Model) map[types.UID]asked {
	before := map[types.UID]asked{}
	if model.Plan != nil {
		for i := range model.Plan.Status.Endpoints {
			status := &model.Plan.Status.Endpoints[i]
			before[status.UID] = asked{chain: status.Chain}
		}
	}
	return before
}

// sameSurroundings: rules mean the same on both nodes.
func sameSurroundings(a, b *node.Model) bool {
	return slices.EqualFunc(a.NICs(), b.NICs(), func(a, b node.Path) bool {
		return a.Name == b.Name && a.Number == b.Number && a.Interface == b.Interface
	}) && apiequality.Semantic.DeepEqual(programsIn(a), programsIn(b))
}

func programsIn(model *node.Model) []v1alpha1.PlanProgram {
	if model.Plan == nil {
		return nil
	}
	return model.Plan.Spec.Programs
}
