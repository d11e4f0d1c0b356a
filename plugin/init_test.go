// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// The pods never run: there are no kubelets that run any. What was made goes all the same,
// as far as an API server alone removes it.
func TestATestThatFailsRemovesWhatItMade(t *testing.T) {
	s := newInitScene(t, func(int, *agentapi.Survey) {})
	s.addPath("blue")
	out, err := s.run("test", "--timeout", "1s")
	require.Error(t, err)
	require.Contains(t, out+err.Error(), "does not run")
	var namespaces corev1.NamespaceList
	require.NoError(t, s.client.List(t.Context(), &namespaces))
	for _, one := range namespaces.Items {
		if _, ours := one.Labels["braid.dev/self-test"]; ours {
			require.NotNil(t, one.DeletionTimestamp, "%s is being removed", one.Name)
		}
	}
	require.False(t, errors.Is(err, plugin.ErrNotFine) && out == "", "it says what happened")
}
