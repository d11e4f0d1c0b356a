// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/internal/testutil"
	"braid.dev/braid/internal/throttle"
)

// publisher is an agent that does nothing but publish.
type publisher struct {
	*Agent
	t *testing.T
}

func newPublisher(t *testing.T, node string) *publisher {
	t.Helper()
	a := &Agent{
		log: logr.Discard(), client: clientOf(t, apiserver.ForTest(t)), options: Options{NodeName: node},
		reports: throttle.New[string](reportsAtOnce, reportInterval),
	}
	return &publisher{a, t}
}

func (p *publisher) get(object client.Object) {
	p.t.Helper()
	require.NoError(p.t, p.client.Get(p.t.Context(), client.ObjectKey{Name: p.options.NodeName}, object))
}

// node is the agent's MPTCPNode with a status.
func (p *publisher) node(status v1alpha1.MPTCPNodeStatus) *v1alpha1.MPTCPNode {
	return &v1alpha1.MPTCPNode{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MPTCPNode"}, ObjectMeta: metav1.ObjectMeta{Name: p.options.NodeName}, Status: status,
	}
}

// restoreNode has the API server have what an earlier agent wrote, as after a backup.
func (p *publisher) restoreNode(status v1alpha1.MPTCPNodeStatus) {
	p.t.Helper()
	_, err := p.applyNodeStatus(p.t.Context(), p.node(status))
	require.NoError(p.t, err)
}

// publishNode publishes as after that time, in which the cache has caught up.
func (p *publisher) publishNode(after time.Duration, status v1alpha1.MPTCPNodeStatus) *v1alpha1.MPTCPNode {
	p.t.Helper()
	node := &v1alpha1.MPTCPNode{}
	seen := &snapshot{at: time.Now().Add(after)}
	if p.client.Get(p.t.Context(), client.ObjectKey{Name: p.options.NodeName}, node) == nil {
		seen.own = &node.Status
	}
	require.NoError(p.t, p.publishNodeStatus(p.t.Context(), seen, status))
	p.get(node)
	return node
}

const long = 2 * cacheLag

// The other nodes would send to addresses of last week, or not use a path that is up, until
// something happens to change on the node.
func TestANodeTellsAgainWhatABackupPutBack(t *testing.T) {
	p := newPublisher(t, "restored")
	status := v1alpha1.MPTCPNodeStatus{Addresses: []string{"192.0.2.1"}, Paths: []v1alpha1.NodePath{{Name: "blue", State: v1alpha1.LinkUp, Addresses: []string{"192.0.2.1"}}}}
	p.publishNode(0, status)
	p.restoreNode(v1alpha1.MPTCPNodeStatus{Addresses: []string{"192.0.2.99"}, Paths: []v1alpha1.NodePath{{Name: "blue", State: v1alpha1.LinkDown}}})
	node := p.publishNode(long, status)
	require.Equal(t, status.Addresses, node.Status.Addresses)
	require.Equal(t, status.Paths, node.Status.Paths)

	confirmed := `{"status":{"conditions":[{"type":"AddressesConfirmed","status":"True","reason":"Confirmed","message":"","lastTransitionTime":"2026-11-27T00:00:00Z"}]}}`
	require.NoError(t, p.client.Status().Patch(t.Context(), p.node(status), client.RawPatch(types.MergePatchType, []byte(confirmed))))
	p.get(node)
	require.Equal(t, node.ResourceVersion, p.publishNode(long, status).ResourceVersion, "what the controller wrote is left alone")
	p.restoreNode(v1alpha1.MPTCPNodeStatus{})
	p.get(node)
	require.Equal(t, node.ResourceVersion, p.publishNode(0, status).ResourceVersion, "the cache may be behind the agent's own write")
}

func TestAPlansStatusIsToldAgainAfterABackupPutAnOlderOneBack(t *testing.T) {
	p := newPublisher(t, "rewound")
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "rewound"}}
	require.NoError(t, p.client.Create(t.Context(), plan))
	publish := func(after time.Duration) {
		t.Helper()
		p.get(plan)
		require.NoError(t, p.publishPlan(t.Context(), outcome{snapshot: &snapshot{plan: plan.DeepCopy(), at: time.Now().Add(after)}}))
		p.get(plan)
	}
	publish(0)
	require.Equal(t, plan.Generation, plan.Status.ObservedGeneration)
	version := plan.ResourceVersion
	publish(long)
	require.Equal(t, version, plan.ResourceVersion, "nothing changed")
	_, err := p.applyPlanStatus(t.Context(), plan.Name, v1alpha1.MPTCPNodePlanStatus{})
	require.NoError(t, err)
	publish(long)
	require.Equal(t, plan.Generation, plan.Status.ObservedGeneration)
}

// Every agent of the cluster gets each write, and a bad cable can have a hundred a second.
func TestANodeWhosePathsComeAndGoIsToldOfNowAndThenAndAtTheEnd(t *testing.T) {
	p := newPublisher(t, "flapping")
	states := []v1alpha1.LinkState{v1alpha1.LinkUp, v1alpha1.LinkDown}
	var status v1alpha1.MPTCPNodeStatus
	publish := func() error { return p.publishNodeStatus(t.Context(), &snapshot{at: time.Now()}, status) }
	const changes = 100
	refused, began := 0, time.Now()
	for i := range changes {
		status.Paths = []v1alpha1.NodePath{{Name: "blue", State: states[i%2]}}
		if err := publish(); err != nil {
			require.ErrorIs(t, err, errUnfinished, "which has it tried again")
			refused++
		}
	}
	require.GreaterOrEqual(t, refused, changes-reportsAtOnce-1-int(time.Since(began)/reportInterval))
	testutil.Retry(t, 10*reportInterval, publish)
	node := &v1alpha1.MPTCPNode{}
	p.get(node)
	require.Equal(t, status.Paths, node.Status.Paths)
}
