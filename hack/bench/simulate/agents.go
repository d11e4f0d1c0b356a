// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/agent/lease"
	"braid.dev/braid/api/v1alpha1"
)

// fieldOwner is that of real agents (agent/publish.go).
const fieldOwner = client.FieldOwner("braid-agent")

// Agents share this many clients, each with a limit of its own: a thousand real
// ones are not limited by what they share, but neither do they share a machine
// with the API server.
const (
	sharedClients  = 10
	queriesPerSec  = 100
	burstOfQueries = 200
	// requestsAtATime is how many requests of all agents are under way at a time. An
	// API server bounds those of service accounts itself, but not these clients'.
	requestsAtATime = 32
)

// Agents play the agents of nodes: each renews its Lease, publishes its MPTCPNode,
// watches its plan and says of each new generation that all of it is programmed.
type Agents struct {
	say  func(format string, args ...any)
	wait sync.WaitGroup
	late atomic.Int64 // renewals of Leases

	mu       sync.Mutex
	plans    map[string]*v1alpha1.MPTCPNodePlan // as seen last, by node
	expected map[*Expectation]bool
}

// StartAgents starts the agents of the nodes, whose Leases are in a namespace, and
// returns when each has its Lease and its MPTCPNode. They end with the context;
// say gets their troubles.
func StartAgents(ctx context.Context, config *rest.Config, namespace string, nodes []string, say func(format string, args ...any)) (*Agents, error) {
	a := &Agents{say: say, plans: map[string]*v1alpha1.MPTCPNodePlan{}, expected: map[*Expectation]bool{}}
	clients, err := newClients(config)
	if err != nil {
		return nil, err
	}
	agents := make([]*agent, 0, len(nodes))
	for i, node := range nodes {
		c := clients[i%len(clients)]
		agents = append(agents, &agent{
			all: a, node: node, number: i, client: c,
			lease: lease.Holder{Client: c, Reader: c, Namespace: namespace, Node: node},
		})
	}
	err = eachOf(ctx, agents, func(ctx context.Context, one *agent) error {
		return Persist(ctx, say, func(bool) error { return one.introduce(ctx) })
	})
	if err != nil {
		return nil, fmt.Errorf("introducing the agents: %w", err)
	}
	for _, one := range agents {
		a.wait.Go(func() { one.renew(ctx) })
		a.wait.Go(func() { one.follow(ctx) })
	}
	return a, nil
}

// Wait waits until all agents have ended.
func (a *Agents) Wait() { a.wait.Wait() }

// Late counts since the last call how often a Lease was renewed after its time: the
// controller takes such an agent for silent.
func (a *Agents) Late() int64 { return a.late.Swap(0) }

func newClients(config *rest.Config) ([]client.WithWatch, error) {
	clients := make([]client.WithWatch, 0, sharedClients)
	slots := make(chan struct{}, requestsAtATime)
	for range sharedClients {
		limited := rest.CopyConfig(config)
		limited.QPS, limited.Burst = queriesPerSec, burstOfQueries
		limited.Wrap(func(next http.RoundTripper) http.RoundTripper { return &atATime{slots: slots, next: next} })
		c, err := client.NewWithWatch(limited, client.Options{Scheme: NewScheme()})
		if err != nil {
			return nil, fmt.Errorf("making a client of agents: %w", err)
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// agent is one of them.
type agent struct {
	all    *Agents
	node   string
	number int
	client client.WithWatch
	lease  lease.Holder
	seen   int64 // generation of the plan that it has answered
}

// introduce makes the agent's Lease and MPTCPNode.
func (g *agent) introduce(ctx context.Context) error {
	if err := g.lease.Renew(ctx); err != nil {
		return err
	}
	node := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: g.node}}
	if err := g.client.Create(ctx, node); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return g.apply(ctx, &v1alpha1.MPTCPNode{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MPTCPNode"},
		ObjectMeta: metav1.ObjectMeta{Name: g.node},
		Status:     g.status(),
	})
}

func (g *agent) status() v1alpha1.MPTCPNodeStatus {
	status := v1alpha1.MPTCPNodeStatus{KernelRelease: "6.18.0", AgentVersion: "simulated"}
	for i, path := range Paths {
		address := fmt.Sprintf("192.168.%d.%d", 100+i*10+g.number>>8, g.number&0xff)
		status.Addresses = append(status.Addresses, address)
		status.Paths = append(status.Paths, v1alpha1.NodePath{
			Name: v1alpha1.PathName(path), Interface: fmt.Sprint("eth", i), Addresses: []string{address}, State: v1alpha1.LinkUp,
		})
	}
	status.PathsTotal, status.PathsUp = int32(len(Paths)), int32(len(Paths))
	return status
}

func (g *agent) apply(ctx context.Context, object client.Object) error {
	//nolint:staticcheck // the typed objects are the configuration, as with real agents
	return g.client.Status().Patch(ctx, object, client.Apply, fieldOwner, client.ForceOwnership)
}

// renew renews the Lease until the context ends, the agents one after the other.
func (g *agent) renew(ctx context.Context) {
	timer := time.NewTimer(time.Duration(g.number%1000) * lease.Interval / 1000)
	defer timer.Stop()
	renewed := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := g.lease.Renew(ctx)
		g.tell(ctx, "renewing its Lease", err)
		if err == nil {
			if time.Since(renewed) > lease.Duration {
				g.all.late.Add(1)
			}
			renewed = time.Now()
		}
		timer.Reset(lease.Interval)
	}
}

func (g *agent) tell(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		g.all.say("the agent of %s: %s: %v", g.node, what, err)
	}
}

// follow watches the agent's plan until the context ends.
func (g *agent) follow(ctx context.Context) {
	own := client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", g.node)}
	for ctx.Err() == nil {
		watching, err := g.client.Watch(ctx, &v1alpha1.MPTCPNodePlanList{}, own)
		if err != nil {
			g.tell(ctx, "watching its plan", err)
			time.Sleep(time.Second)
			continue
		}
		for event := range watching.ResultChan() {
			if plan, is := event.Object.(*v1alpha1.MPTCPNodePlan); is {
				g.take(ctx, plan, event.Type == "DELETED")
			}
		}
		watching.Stop()
	}
}

// take answers a plan, once for each generation.
func (g *agent) take(ctx context.Context, plan *v1alpha1.MPTCPNodePlan, deleted bool) {
	if deleted {
		g.seen = 0
		g.all.note(g.node, nil)
		return
	}
	if plan.Generation == g.seen {
		return
	}
	g.all.note(g.node, plan)
	answer := &v1alpha1.MPTCPNodePlan{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MPTCPNodePlan"},
		ObjectMeta: metav1.ObjectMeta{Name: g.node},
		Status:     programmed(plan),
	}
	err := Persist(ctx, g.all.say, func(bool) error { return g.apply(ctx, answer) })
	g.tell(ctx, "answering its plan", client.IgnoreNotFound(err))
	g.seen = plan.Generation
}

// programmed says that every endpoint of a plan is.
func programmed(plan *v1alpha1.MPTCPNodePlan) v1alpha1.MPTCPNodePlanStatus {
	count := int32(len(plan.Spec.Endpoints))
	status := v1alpha1.MPTCPNodePlanStatus{ObservedGeneration: plan.Generation, EndpointsTotal: count, EndpointsProgrammed: count}
	for i := range plan.Spec.Endpoints {
		e := &plan.Spec.Endpoints[i]
		status.Endpoints = append(status.Endpoints, v1alpha1.EndpointStatus{
			UID: e.UID, Namespace: e.Namespace, Name: e.Name, PolicyGeneration: e.Policy.Generation,
			State: v1alpha1.EndpointProgrammed, HostInterface: fmt.Sprint("veth", i), Chain: e.Chain,
		})
	}
	status.Summary = v1alpha1.Summarize(plan.Spec.Endpoints, status.Endpoints)
	status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProgrammed,
		Message:            fmt.Sprintf("%d of %d endpoints are programmed", count, count),
		ObservedGeneration: plan.Generation, LastTransitionTime: metav1.Now(),
	}}
	return status
}
