// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/plugin"
)

// surveyed answers `survey` as the agent of a node with two NICs does; number is the last
// of its addresses.
func surveyed(number int, command []string) agentapi.Survey {
	nic := func(name, address string) agentapi.NIC {
		return agentapi.NIC{Name: name, Kind: "device", SetUp: true, Carrier: true, MTU: 1500, SpeedMbit: 25000, Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}
	}
	found := agentapi.Survey{Time: time.Unix(0, 0), Kernel: "6.12.1", NICs: []agentapi.NIC{
		nic("ens1f0", fmt.Sprintf("192.0.2.%d/24", number)), nic("ens1f1", fmt.Sprintf("198.51.100.%d/24", number)),
	}}
	for _, argument := range command {
		if list, asked := strings.CutPrefix(argument, "--ask="); asked {
			for _, target := range strings.Split(list, ",") {
				address, nic, _ := strings.Cut(target, "%")
				found.Answers = append(found.Answers, agentapi.Answer{NIC: nic, Address: netip.MustParseAddr(address), Answered: true})
			}
		}
		if to, asked := strings.CutPrefix(argument, "--route="); asked {
			found.Routes = append(found.Routes, agentapi.Route{To: netip.MustParseAddr(to), NIC: "ens1f0", Gateway: netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", 3-number))})
		}
	}
	return found
}

// newInitScene has two nodes with agents; change is what is odd about a node.
func newInitScene(t *testing.T, change func(number int, found *agentapi.Survey)) *scene {
	t.Helper()
	s := newNodeScene(t, &nodes{agent: func(agent string, command []string, _ io.Reader, out io.Writer) error {
		if !slices.Contains(command, "survey") {
			return fmt.Errorf("asked %v", command)
		}
		number := int(agent[len(agent)-1] - '0')
		found := surveyed(number, command)
		change(number, &found)
		return json.NewEncoder(out).Encode(found)
	}})
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "braid-system"}}, nil)
	for n := 1; n <= 2; n++ {
		s.addKubelet(fmt.Sprintf("node%d", n), fmt.Sprintf("192.0.2.%d", n))
		s.addSystemPod("agent", fmt.Sprintf("agent-node%d", n), fmt.Sprintf("node%d", n), fmt.Sprintf("192.0.2.%d", n))
	}
	return s
}

func TestInitProposesThenCreatesAndThenLeavesAlone(t *testing.T) {
	s := newInitScene(t, func(int, *agentapi.Survey) {})
	var paths v1alpha1.MPTCPPathList
	out, err := s.run("init")
	require.NoError(t, err)
	s.golden("init", out)
	out, err = s.run("init", "--spread", "default", "--output", "yaml")
	require.NoError(t, err)
	s.golden("init_yaml", out)
	require.NoError(t, s.client.List(t.Context(), &paths))
	require.Empty(t, paths.Items, "nothing is created before --apply")

	out, err = s.run("init", "--apply", "--spread", "default")
	require.NoError(t, err)
	require.Contains(t, out, "mptcppath/ens1f0 created\nmptcppath/ens1f1 created\nmptcppolicy/spread in default created\n")
	require.NoError(t, s.client.List(t.Context(), &paths))
	require.Len(t, paths.Items, 2)
	require.Equal(t, "25G", paths.Items[0].Spec.Capacity.String())

	out, err = s.run("init", "--apply")
	require.NoError(t, err)
	require.Contains(t, out, "Nothing is missing.")
	out, err = s.run("init", "--output", "json")
	require.NoError(t, err)
	require.JSONEq(t, `{"apiVersion":"v1","kind":"List","items":[]}`, out)
}

// As right after `helm install`, which returns before the agents run.
func TestInitWaitsForAgentsThatAreAboutToStart(t *testing.T) {
	s := newInitScene(t, func(int, *agentapi.Survey) {})
	labels := map[string]string{"app.kubernetes.io/name": "braid-agent"}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "braid-system", Name: "braid-agent"}}
	set.Spec.Selector, set.Spec.Template.Labels = &metav1.LabelSelector{MatchLabels: labels}, labels
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "agent", Image: "agent"}}
	s.create(set, nil) // nobody has seen it yet
	done := make(chan string, 1)
	go func() {
		out, err := s.run("init")
		done <- fmt.Sprint(out, err)
	}()
	waits := func(why string) {
		t.Helper()
		select {
		case out := <-done:
			t.Fatalf("init did not wait while %s: %s", why, out)
		case <-time.After(3 * time.Second):
		}
	}
	waits("the DaemonSet is new")
	set.Status = appsv1.DaemonSetStatus{ObservedGeneration: set.Generation, DesiredNumberScheduled: 2, CurrentNumberScheduled: 2}
	require.NoError(t, s.client.Status().Update(t.Context(), set))
	waits("no agent is ready")
	for n := 1; n <= 2; n++ {
		pod := &corev1.Pod{}
		require.NoError(t, s.client.Get(t.Context(), client.ObjectKey{Namespace: "braid-system", Name: fmt.Sprintf("agent-node%d", n)}, pod))
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		require.NoError(t, s.client.Status().Update(t.Context(), pod))
	}
	select {
	case out := <-done:
		require.Contains(t, out, "ens1f1")
		require.Contains(t, s.warnings.String(), "waiting for agents that are about to start: 2")
	case <-time.After(30 * time.Second):
		t.Error("init waits, though all agents are ready")
	}
}

// Each node is in a rack of its own, with a router on each plane.
func TestInitMakesPathsOverRoutersInAClusterOfSeveralRacks(t *testing.T) {
	s := newInitScene(t, func(number int, found *agentapi.Survey) {
		for i := range found.NICs {
			found.NICs[i].Addresses = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.7/24", i+1, number))}
		}
		for i := range found.Answers {
			answer := &found.Answers[i]
			plane := answer.NIC[len(answer.NIC)-1] - '0' + 1
			answer.Router = netip.AddrFrom4([4]byte{10, plane, byte(number), 1})
			answer.Answered = answer.Address.As4()[1] == plane
		}
	})
	out, err := s.run("init", "--apply")
	require.NoError(t, err, out)
	require.Regexp(t, `(?m)^NODE +ens1f0 \(routed\) +ens1f1 \(routed\)$`, out)
	var paths v1alpha1.MPTCPPathList
	require.NoError(t, s.client.List(t.Context(), &paths))
	require.Len(t, paths.Items, 2)
	require.Equal(t, v1alpha1.UnderlayRouted, paths.Items[1].Spec.Underlay)
	require.Equal(t, []v1alpha1.CIDR{"10.2.1.0/24", "10.2.2.0/24"}, paths.Items[1].Spec.AddressRanges)
	out, err = s.run("init")
	require.NoError(t, err)
	require.Contains(t, out, "Nothing is missing.")
}

func TestInitCreatesNothingWhereSomethingMustBeMendedFirst(t *testing.T) {
	s := newInitScene(t, func(number int, found *agentapi.Survey) {
		if number == 2 {
			found.NICs[1].ReversePathFilter = 1
		}
	})
	out, err := s.run("init", "--apply")
	require.ErrorIs(t, err, plugin.ErrNotFine)
	require.Contains(t, out, "Nothing was created")
	require.Contains(t, out, "sysctl -w net.ipv4.conf.ens1f1.rp_filter=2")
	out, err = s.run("init", "--output", "yaml")
	require.ErrorIs(t, err, plugin.ErrNotFine)
	require.Contains(t, out, "kind: MPTCPPath")
	require.Contains(t, s.warnings.String(), "rp_filter", "what is wrong is beside the manifests")

	out, err = s.run("init", "--apply", "--force")
	require.ErrorIs(t, err, plugin.ErrNotFine)
	require.Contains(t, out, "mptcppath/ens1f1 created")
}

func TestATestWithoutPathsOrNodesSaysWhatToDo(t *testing.T) {
	s := newInitScene(t, func(int, *agentapi.Survey) {})
	_, err := s.run("test")
	require.ErrorContains(t, err, "kubectl braid init --apply")
	s.addPath("blue")
	_, err = s.run("test", "--from", "node9")
	require.ErrorContains(t, err, "choose among node1, node2")
	_, err = s.run("test", "--from", "node1", "--to", "node1")
	require.ErrorContains(t, err, "give two nodes")
	_, err = s.run("test", "--from", "node1", "--all-pairs")
	require.ErrorContains(t, err, "--all-pairs, or --from")
}

// The pods never run: there are no kubelets that run any. What was made goes all the same.
func TestATestThatFailsRemovesWhatItMade(t *testing.T) {
	s := newInitScene(t, func(int, *agentapi.Survey) {})
	s.addPath("blue")
	emptied := s.finishNamespaces()
	out, err := s.run("test", "--timeout", "1s")
	require.Error(t, err)
	require.Contains(t, out+err.Error(), "does not run")
	var namespaces corev1.NamespaceList
	require.NoError(t, s.client.List(t.Context(), &namespaces))
	for _, one := range namespaces.Items {
		if _, ours := one.Labels["braid.dev/self-test"]; ours {
			t.Errorf("%s is left", one.Name)
		}
	}
	require.Len(t, emptied(), 1)
	require.False(t, errors.Is(err, plugin.ErrNotFine) && out == "", "it says what happened")
}

// finishNamespaces lets go of namespaces that are deleted, once they are empty, as the
// controller manager does. The function that it returns ends that, and names them.
func (s *scene) finishNamespaces() func() []string {
	ctx, cancel := context.WithCancel(s.t.Context())
	finished := make(chan []string, 1)
	go func() {
		var names []string
		for ctx.Err() == nil {
			names = append(names, s.finishDeleted(ctx)...)
			time.Sleep(50 * time.Millisecond)
		}
		finished <- names
	}()
	return func() []string {
		cancel()
		return <-finished
	}
}

func (s *scene) finishDeleted(ctx context.Context) (names []string) {
	var all corev1.NamespaceList
	if err := s.client.List(ctx, &all); err != nil {
		return nil // it ends
	}
	for i := range all.Items {
		one := &all.Items[i]
		if one.DeletionTimestamp == nil {
			continue
		}
		in := client.InNamespace(one.Name)
		err := errors.Join(s.client.DeleteAllOf(ctx, &corev1.Pod{}, in), s.client.DeleteAllOf(ctx, &v1alpha1.MPTCPPolicy{}, in))
		one.Spec.Finalizers = nil
		if err == nil {
			err = s.client.SubResource("finalize").Update(ctx, one)
		}
		if err == nil {
			names = append(names, one.Name)
		} else if ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			s.t.Error(err)
		}
	}
	return names
}
