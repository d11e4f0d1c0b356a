// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/uplink"
)

// steered is a node with one path and a pod for each of these: NAMESPACE/POLICY.
func steered(pods ...string) Sources {
	from := Sources{Plan: &v1alpha1.MPTCPNodePlan{}}
	from.Resolution.Paths = []paths.Path{{Name: "blue", NIC: paths.NIC{Index: 2}, Usable: true}}
	for i, pod := range pods {
		namespace, policy, _ := strings.Cut(pod, "/")
		from.Plan.Spec.Endpoints = append(from.Plan.Spec.Endpoints, v1alpha1.PlanEndpoint{
			UID: types.UID(fmt.Sprint(i)), Namespace: namespace, Paths: []v1alpha1.PathWeight{{Path: "blue", Weight: 1}},
			Policy: v1alpha1.PolicyReference{Kind: "MPTCPPolicy", Namespace: namespace, Name: policy},
		})
	}
	return from
}

// accountsAfter builds a model, has all parts apply it, and gives its accounts' numbers.
func accountsAfter(t *testing.T, builder *Builder, from Sources) (*Model, map[string]uint32) {
	t.Helper()
	model, err := builder.Build(from)
	require.NoError(t, err)
	_, err = builder.Applied(model, false)
	require.NoError(t, err)
	numbers := map[string]uint32{}
	for _, account := range model.Accounts {
		numbers[account.Namespace+" "+account.Policy] = account.Number
	}
	return model, numbers
}

func TestThePodsOfANamespaceAndAPolicyHaveOneAccount(t *testing.T) {
	builder := NewBuilder(OpenRegistry(bpffs(t), logr.Discard()))
	defer builder.Close()
	from := steered("shop/spread", "shop/spread", "shop/slow", "bank/spread")
	from.Plan.Spec.Endpoints[3].Policy = v1alpha1.PolicyReference{Kind: "ClusterMPTCPPolicy", Name: "all"}
	from.Plan.Spec.Endpoints = append(from.Plan.Spec.Endpoints, v1alpha1.PlanEndpoint{UID: "guarded", Namespace: "other"})
	model, numbers := accountsAfter(t, builder, from)
	require.Equal(t, map[string]uint32{
		"shop MPTCPPolicy/shop/spread": model.Endpoints[0].Account, "shop MPTCPPolicy/shop/slow": model.Endpoints[2].Account,
		"bank ClusterMPTCPPolicy/all": model.Endpoints[3].Account,
	}, numbers)
	require.Equal(t, model.Endpoints[0].Account, model.Endpoints[1].Account)
	require.Zero(t, model.Endpoints[4].Account, "nothing steers it")
}

func TestAnAccountStaysForAWhileWithoutPods(t *testing.T) {
	pins, now := bpffs(t), time.Now()
	open := func() *Builder {
		builder := NewBuilder(OpenRegistry(pins, logr.Discard()))
		builder.accounts.now = func() time.Time { return now }
		return builder
	}
	builder := open()
	_, before := accountsAfter(t, builder, steered("shop/a", "bank/b"))
	_, after := accountsAfter(t, builder, steered("bank/b"))
	require.Equal(t, before, after, "what it sent last was not asked for yet")
	require.NoError(t, builder.Close())
	builder = open()
	defer builder.Close()
	_, after = accountsAfter(t, builder, steered("bank/b"))
	require.Equal(t, before, after, "after a restart")
	now = now.Add(accountLingers)
	delete(before, "shop MPTCPPolicy/shop/a")
	model, after := accountsAfter(t, builder, steered("bank/b"))
	require.Equal(t, before, after)
	require.Len(t, model.Retired[KindAccount], 1, "the parts forget it")
	for range 2 {
		model, after = accountsAfter(t, builder, steered("bank/b"))
		require.Equal(t, before, after)
		require.Empty(t, model.Retired[KindAccount])
	}
}

func TestATenantWithManyPoliciesLeavesNumbersToTheOthers(t *testing.T) {
	builder := NewBuilder(OpenRegistry(bpffs(t), logr.Discard()))
	defer builder.Close()
	pods := []string{"bank/b", "long/" + strings.Repeat("n", 253)}
	for i := range 500 {
		pods = append(pods, fmt.Sprintf("shop/p%03d", i))
	}
	_, numbers := accountsAfter(t, builder, steered(pods...))
	require.Len(t, numbers, accountsOfNamespace+3)
	for _, want := range []string{"bank MPTCPPolicy/bank/b", "shop " + Others, "long " + Others} {
		require.Contains(t, slices.Collect(maps.Keys(numbers)), want)
	}
}

func TestAccountsBeyondTheNumbersCountTogether(t *testing.T) {
	builder := NewBuilder(OpenRegistry(bpffs(t), logr.Discard()))
	defer builder.Close()
	_, before := accountsAfter(t, builder, steered("shop/first"))
	var pods []string
	for i := range maxAccounts + 10 {
		pods = append(pods, fmt.Sprintf("a%03d/p", i))
	}
	model, numbers := accountsAfter(t, builder, steered(append(pods, "shop/first")...))
	require.Len(t, numbers, maxAccounts+1)
	require.EqualValues(t, uplink.OtherAccounts, numbers[Others+" "+Others])
	require.Equal(t, before["shop MPTCPPolicy/shop/first"], numbers["shop MPTCPPolicy/shop/first"], "who has a number keeps it")
	together := 0
	for i := range model.Endpoints {
		if model.Endpoints[i].Account == uplink.OtherAccounts {
			together++
		}
	}
	require.Equal(t, 11, together)
}

func TestNoAccountOutlivesTheNICs(t *testing.T) {
	builder := NewBuilder(OpenRegistry(bpffs(t), logr.Discard()))
	defer builder.Close()
	accountsAfter(t, builder, steered("shop/a"))
	from := steered()
	from.Resolution.Paths = nil
	_, numbers := accountsAfter(t, builder, from)
	require.Empty(t, numbers)
	accountsAfter(t, builder, from)
	require.False(t, builder.registry.isPinned(), "nothing has a number")
}
