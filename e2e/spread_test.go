// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/traffic"
)

func TestAPolicyMakesAConnectionFillAllNICs(t *testing.T) {
	c := use(t)
	single := c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, testlab.SpreadTime))
	if used := single.Steady().Used(); !slices.Equal(used, paths[:1]) {
		t.Fatalf("without a policy the connection used %v: %v", used, single.Steady())
	}
	t.Logf("without a policy: %.1f Mbit/s", single.Result.Mbit)

	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	c.CreatePaths(t)
	c.Create(t, policy)
	t.Logf("programmed %v after the policy was created", c.WaitProgrammed(t, policy, 2))
	c.WaitFor(t, "every object says so", 30*time.Second, c.AllReady)
	t.Log(c.kubectl(t, "get", "mpol,mpath,mnode,mplan", "--all-namespaces"))

	for _, manager := range []v1alpha1.SubflowManager{v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerAgent} {
		c.Update(t, policy, func() { policy.Spec.Subflows.Manager = manager })
		c.WaitProgrammed(t, policy, 2)
		for _, version := range []int{4, 6} {
			t.Run(fmt.Sprintf("manager %s, IPv%d", manager, version), func(t *testing.T) {
				c.ExpectSpread(t, version, single.Result.Mbit)
			})
		}
	}
}

func (c *cluster) kubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(arguments, " "), err, out)
	}
	return "kubectl " + strings.Join(arguments, " ") + ":\n" + string(out)
}
