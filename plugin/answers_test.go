// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/simulate"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/testutil"
	"braid.dev/braid/plugin"
	"braid.dev/braid/policy"
)

// large is the cluster that commands are to answer for within a second.
var large = simulate.Size{Nodes: 1000, Pods: 20_000, Namespaces: 200, Policies: 500}

const (
	// answersEach is how often each command is timed where that is wanted.
	answersEach = 5
	// atOnce is how many objects are made at the same time.
	atOnce = 8
	// answerPatience ends a test that hangs; it is no requirement.
	answerPatience = 20 * time.Second
)

// An operator at night asks a large cluster.
func TestCommandsAnswerForAThousandNodes(t *testing.T) {
	n := &nodes{agent: func(agent string, _ []string, _ io.Reader, out io.Writer) error {
		return json.NewEncoder(out).Encode(readingOf(strings.TrimPrefix(agent, "agent-")))
	}}
	s := newNodeScene(t, n)
	pod := s.addFleet(large)
	peer := fleetPods()[peerOf(0)]
	for _, command := range []struct {
		name      string
		arguments []string
		says      string
	}{
		{"status", []string{"status", "--no-workloads"}, "of 1000 fine"},
		{"paths", []string{"paths"}, simulate.Node(999)},
		{"explain", []string{"explain", pod.Name, "--namespace", pod.Namespace}, pod.Name},
		{"explain_json", []string{"explain", pod.Name, "--namespace", pod.Namespace, "--output", "json"}, pod.Name},
		{"top_pod", []string{"top", pod.Name, "--namespace", pod.Namespace, "--once", "--every", "10ms"}, peer.Namespace + "/" + peer.Name + ":5001"},
		{"explain_vm", []string{"explain", "mep/guest", "--namespace", pod.Namespace}, "guest"},
		{"top_node", []string{"top", "--node", pod.Spec.NodeName, "--once", "--every", "10ms"}, peer.Namespace + "/" + peer.Name + ":5001"},
		{"top", []string{"top", "--once", "--every", "10ms"}, "950 more nodes were not asked"},
		{"top_paths", []string{"top", "--paths", "--once", "--every", "10ms"}, "950 more nodes were not asked"},
		{"top_paths_of_node", []string{"top", "--paths", "--node", pod.Spec.NodeName, "--once", "--every", "10ms"}, "NODE"},
	} {
		s.answers(t, command.name, command.says, command.arguments...)
	}
	s.addTrouble(large.Nodes / 10)
	s.answers(t, "status_of_trouble", "of 1000 fine", "status", "--no-workloads")
}

// answers times a command.
func (s *scene) answers(t *testing.T, name, says string, arguments ...string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		var took []float64
		patience := testutil.NewPatience()
		for range testutil.Times(answersEach) {
			began := time.Now()
			said, err := s.in(t).run(arguments...)
			took = append(took, float64(time.Since(began).Microseconds())/1000)
			if err != nil && !errors.Is(err, plugin.ErrNotFine) {
				t.Fatal(err)
			}
			require.Contains(t, said, says)
		}
		slices.Sort(took)
		t.Logf("%.0f ms", took)
		testutil.Figure(t, "answers."+name+"_ms", "ms", took[len(took)/2])
		require.Less(t, took[0], float64(patience.Stretch(answerPatience).Milliseconds()))
	})
}

// addTrouble has so many agents say that there is more to tell than counts.
func (s *scene) addTrouble(nodes int) {
	s.t.Helper()
	for i := range nodes {
		var plan v1alpha1.MPTCPNodePlan
		require.NoError(s.t, s.client.Get(s.t.Context(), client.ObjectKey{Name: simulate.Node(i)}, &plan))
		plan.Status.Summary.Noteworthy = 1
		require.NoError(s.t, s.client.Status().Update(s.t.Context(), &plan))
	}
}

// peerOf is the number of the pod that a pod talks to: those of a node are of many nodes, and
// few nodes that are asked at all have both.
func peerOf(i int) int { return (i + 507*(1+i/large.Nodes)) % large.Pods }

// readingOf has two subflows of each pod of a node, to one pod of another.
func readingOf(node string) agentapi.Reading {
	pods := fleetPods()
	reading := agentapi.Reading{Busy: []agentapi.Rate{}}
	for i := range pods {
		if pods[i].Spec.NodeName != node {
			continue
		}
		peer := &pods[peerOf(i)]
		for j := range 2 {
			reading.Busy = append(reading.Busy, agentapi.Rate{
				Endpoint: pods[i].Namespace + "/" + pods[i].Name, Token: agentapi.Token(i + 1), Path: simulate.Paths[j], SentBitsPerSecond: uint64(1e6 + i),
				Local:  netip.AddrPortFrom(netip.MustParseAddr(pods[i].Status.PodIP), uint16(40000+j)),
				Remote: netip.AddrPortFrom(netip.MustParseAddr(peer.Status.PodIP), 5001),
			})
		}
	}
	reading.Total = len(reading.Busy)
	return reading
}

var fleetPods = sync.OnceValue(func() []corev1.Pod { return large.Objects().Pods })

// addFleet makes a simulated cluster, of whose pods those of the first node alone and their
// peers are objects, and returns the first. Its agents answer the plans that the controller would make.
func (s *scene) addFleet(size simulate.Size) *corev1.Pod {
	s.t.Helper()
	ctx, say := s.t.Context(), func(format string, arguments ...any) { s.t.Logf(format, arguments...) }
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "braid-system"}}, nil)
	objects := size.Objects()
	pods := objects.Pods
	objects.Pods = nil
	require.NoError(s.t, objects.Create(ctx, s.client, say))
	for i := range pods {
		pods[i].UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
	}
	for i := 0; i < size.Pods; i += size.Nodes {
		for _, number := range []int{i, peerOf(i) % size.Pods} {
			some := simulate.Objects{Pods: []corev1.Pod{pods[number]}}
			some.Pods[0].UID = ""
			require.NoError(s.t, some.Create(ctx, s.client, func(string, ...any) {}))
			pods[number] = some.Pods[0]
		}
	}
	pod := &pods[0]
	objects.Pods = pods

	var nodes []string
	for i := range size.Nodes {
		nodes = append(nodes, simulate.Node(i))
	}
	s.addAgentPods(nodes) // before there are agents, who load the API server with their Leases
	following, stop := context.WithCancel(ctx)
	agents, err := simulate.StartAgents(following, s.server.Config(), "braid-system", nodes, say)
	require.NoError(s.t, err)
	s.t.Cleanup(func() {
		stop()
		agents.Wait()
	})
	s.addPlans(agents, policy.Compile(objects.Input()).Plans)
	s.create(&v1alpha1.MPTCPEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "guest"},
		Spec:       v1alpha1.MPTCPEndpointSpec{NodeName: pod.Spec.NodeName, Interface: v1alpha1.EndpointInterface{MACAddress: "52:54:00:12:34:56"}, Addresses: []v1alpha1.EndpointAddress{"10.99.0.9"}},
	}, nil)
	return pod
}

// addAgentPods makes the agents pods that can be asked.
func (s *scene) addAgentPods(nodes []string) {
	s.t.Helper()
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, node := range nodes {
		group.Go(func() error {
			s.addSystemPod("agent", "agent-"+node, node, "192.0.2.1")
			s.setKubelet(node)
			return nil
		})
	}
	require.NoError(s.t, group.Wait())
}

// addPlans makes the plans, and waits until their agents have said that all is programmed.
func (s *scene) addPlans(agents *simulate.Agents, plans map[string]v1alpha1.MPTCPNodePlanSpec) {
	s.t.Helper()
	// To list all plans while they are answered would take the API server longer than the answers do.
	seen := agents.Expect(slices.Collect(maps.Keys(plans)), func(plan *v1alpha1.MPTCPNodePlan) bool { return plan != nil })
	var group errgroup.Group
	group.SetLimit(atOnce)
	for name, spec := range plans {
		group.Go(func() error {
			names := map[string]string{v1alpha1.AnnotationNames: v1alpha1.PlanNames(spec.Endpoints, 1)}
			s.create(&v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: names}, Spec: spec}, nil)
			return nil
		})
	}
	require.NoError(s.t, group.Wait())
	_, err := seen.Wait(s.t.Context())
	require.NoError(s.t, err)
	testutil.Retry(s.t, time.Minute, func() error {
		var all v1alpha1.MPTCPNodePlanList
		if err := s.client.List(s.t.Context(), &all); err != nil {
			return err
		}
		for i := range all.Items {
			if plan := &all.Items[i]; plan.Status.ObservedGeneration != plan.Generation {
				return fmt.Errorf("the agent of %s has not answered", plan.Name)
			}
		}
		return nil
	})
}

// setKubelet gives a node that is there a kubelet.
func (s *scene) setKubelet(name string) {
	s.t.Helper()
	var node corev1.Node
	require.NoError(s.t, s.client.Get(s.t.Context(), client.ObjectKey{Name: name}, &node))
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
	require.NoError(s.t, s.client.Status().Update(s.t.Context(), &node))
}
