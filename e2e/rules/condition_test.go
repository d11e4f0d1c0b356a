// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"strings"
	"testing"
	"time"

	"braid.dev/braid/e2e/testlab"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/traffic"
)

// limitsLarge limits the client's subflows from the first segment on that a program says yes to.
const limitsLarge = `
apiVersion: braid.dev/v1alpha1
kind: ClusterMPTCPPolicy
metadata:
  name: stamped
spec:
  namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: shop
  podSelector:
    matchLabels:
      app: client
  paths:
    spread: None
  programs:
  - name: large
    configMap: {name: e2e-programs, key: large.o}
  rules:
  - name: limit-large
    match:
      direction: FromEndpoint
      any:
      - destination: {ports: [{port: 9}]}
      - program: {name: large, value: 1000}
    actions:
    - type: RateLimit
      rateLimit: {rate: 10M}
`

// A rule does what it does for the packets that the program of its match says yes to, and
// says so where that program is refused.
func TestARuleActsOnWhatTheProgramOfItsMatchSays(t *testing.T) {
	c := use(t)
	t.Cleanup(func() { c.deleteBlocks(t) })
	c.setObjects(t, map[string]string{"large.o": "large.bpf.c"})
	rate := func(value string) float64 {
		c.Apply(t, strings.Replace(limitsLarge, "value: 1000", "value: "+value, 1))
		c.waitForPrograms(t, "stamped", 1)
		r := c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, 4*time.Second))
		return r.Result.MbitBetween(testlab.Warmup, 4*time.Second)
	}
	limited, free := rate("1000"), rate("70000")
	t.Logf("%.1f Mbit/s where the program says yes, %.1f where it says no", limited, free)
	if limited < 8.5 || limited > 11 || free < 2*limited {
		t.Errorf("where the program says yes the goodput is %.1f Mbit/s instead of 10, where it says no %.1f", limited, free)
	}

	c.setObjects(t, map[string]string{"large.o": "faulty.bpf.c"})
	message := c.waitForRefusal(t)
	t.Logf("the policy says: %s", message)
	for _, part := range []string{"limit-large", "large", "the verifier refuses it"} {
		if !strings.Contains(message, part) {
			t.Errorf("the policy does not say %q", part)
		}
	}
	if err := c.Client.Delete(t.Context(), c.PolicyOf(t, "", "stamped").(*v1alpha1.ClusterMPTCPPolicy)); err != nil {
		t.Fatal(err)
	}
	c.WaitFor(t, "nothing is left on nodes and pods", 10*time.Second, c.NothingLeft)
}
