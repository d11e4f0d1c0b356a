// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
)

// Part is one of the things that an agent does on its node. What it makes outlives
// the agent: Close leaves it as it is, and the next agent takes it over.
type Part interface {
	// Apply brings the node to the model, and reports what became of it. It is
	// called again and again, by one goroutine at a time, also where nothing changed.
	Apply(ctx context.Context, model *Model) Report
	// Run does what goes on beside that, until the context ends.
	Run(ctx context.Context) error
	// Remove undoes what this agent and earlier ones did. It needs no Apply before.
	Remove(ctx context.Context) error
	// Close lets go of everything without changing it.
	Close() error
}

// Idle is for parts that have nothing to run.
type Idle struct{}

// Run waits for the end of the context.
func (Idle) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Every is the Run of parts that look again and again: it calls a function after each
// interval, until the context ends.
func Every(ctx context.Context, interval time.Duration, f func()) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			f()
		}
	}
}

// Report is what became of a model in one part.
type Report struct {
	// Err is what failed for the node as a whole. It is logged, and all is tried again.
	Err error
	// Unfinished: there is more to do, with no error to log. The part still refers to
	// endpoints that are gone.
	Unfinished bool
	// Unknown: the part has yet to find out what an earlier agent left of rules, and nothing
	// is to be said before of endpoints that have or had some.
	Unknown bool
	// Applied is the model that the node was brought to, where a part works beside the
	// round and has not come to the newest one yet; nil where it has.
	Applied *Model
	// Endpoints has those that there is something to say of.
	Endpoints map[types.UID]EndpointReport
}

// EndpointReport is what became of one endpoint in one part.
type EndpointReport struct {
	// Failed is why the endpoint is not as the plan says. It is told in the endpoint's
	// status, and tried again.
	Failed error
	// Pending is what the endpoint still waits for in this part; nil for nothing.
	Pending error
	// Describe adds to the endpoint's status what the part knows; nil for nothing.
	Describe func(status *v1alpha1.EndpointStatus)
}

// Fail notes a failure of one endpoint; nil is none.
func (r *Report) Fail(uid types.UID, err error) {
	if err == nil {
		return
	}
	of := r.Endpoints[uid]
	of.Failed = errors.Join(of.Failed, err)
	r.set(uid, of)
}

// Await notes what an endpoint still waits for; nil is nothing.
func (r *Report) Await(uid types.UID, pending error) {
	if pending == nil {
		return
	}
	of := r.Endpoints[uid]
	of.Pending = errors.Join(of.Pending, pending)
	r.set(uid, of)
}

// Describe notes what is to be said of an endpoint.
func (r *Report) Describe(uid types.UID, describe func(status *v1alpha1.EndpointStatus)) {
	of := r.Endpoints[uid]
	if before := of.Describe; before != nil {
		of.Describe = func(status *v1alpha1.EndpointStatus) { before(status); describe(status) }
	} else {
		of.Describe = describe
	}
	r.set(uid, of)
}

func (r *Report) set(uid types.UID, of EndpointReport) {
	if r.Endpoints == nil {
		r.Endpoints = map[types.UID]EndpointReport{}
	}
	r.Endpoints[uid] = of
}

// FailAll notes a failure that concerns all endpoints of the model.
func (r *Report) FailAll(model *Model, err error) {
	for i := range model.Endpoints {
		r.Fail(model.Endpoints[i].UID, err)
	}
}

// Add puts what another part reports of the same model beside it.
func (r *Report) Add(other Report) {
	r.Err = errors.Join(r.Err, other.Err)
	r.Unfinished, r.Unknown = r.Unfinished || other.Unfinished, r.Unknown || other.Unknown
	if r.Applied == nil || other.Applied != nil && other.Applied.round < r.Applied.round {
		r.Applied = other.Applied
	}
	for uid, of := range other.Endpoints {
		r.Fail(uid, of.Failed)
		r.Await(uid, of.Pending)
		if of.Describe != nil {
			r.Describe(uid, of.Describe)
		}
	}
}

// Clone is a report to which others can be added.
func (r Report) Clone() Report {
	r.Endpoints = maps.Clone(r.Endpoints)
	return r
}

// Done is true where nothing failed, and nothing is left to do.
func (r *Report) Done() bool {
	if r.Err != nil || r.Unfinished || r.Unknown || r.Applied != nil {
		return false
	}
	for _, of := range r.Endpoints {
		if of.Failed != nil || of.Pending != nil {
			return false
		}
	}
	return true
}

// MessageLimit is what the API accepts of an endpoint's message, in bytes.
const MessageLimit = 1000

// AddMessage adds to what a status says.
func AddMessage(status *v1alpha1.EndpointStatus, text string) {
	status.Message = Shorten(MessageLimit, strings.TrimPrefix(status.Message+"; "+text, "; "))
}

// Statuses are what the plan's status says of the endpoints: one that was not found,
// or that some part has not come to, is pending, one that some part failed with has
// failed, and all others are programmed.
func (r *Report) Statuses(model *Model) []v1alpha1.EndpointStatus {
	statuses := make([]v1alpha1.EndpointStatus, 0, len(model.Endpoints))
	for i := range model.Endpoints {
		statuses = append(statuses, r.status(&model.Endpoints[i]))
	}
	return statuses
}

func (r *Report) status(endpoint *Endpoint) v1alpha1.EndpointStatus {
	status := v1alpha1.EndpointStatus{
		UID: endpoint.UID, Namespace: endpoint.Namespace, Name: endpoint.Name,
		PolicyGeneration: endpoint.Policy.Generation, State: v1alpha1.EndpointProgrammed,
	}
	if endpoint.Found == nil {
		status.State, status.Message = v1alpha1.EndpointPending, Shorten(MessageLimit, missing(endpoint))
	} else {
		status.HostInterface = endpoint.Found.HostInterface
	}
	of := r.Endpoints[endpoint.UID]
	if of.Describe != nil {
		of.Describe(&status)
	}
	if of.Pending != nil && endpoint.Found != nil {
		status.State, status.Message = v1alpha1.EndpointPending, Shorten(MessageLimit, of.Pending.Error())
	}
	if failed := errors.Join(endpoint.Contradiction, of.Failed); failed != nil && endpoint.Found != nil {
		status.State, status.Message = v1alpha1.EndpointFailed, Shorten(MessageLimit, failed.Error())
	}
	return status
}

func missing(endpoint *Endpoint) string {
	if endpoint.Missing == nil {
		return "the pod's interface has not been looked for yet"
	}
	return endpoint.Missing.Error()
}
