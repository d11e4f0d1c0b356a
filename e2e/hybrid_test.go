// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

// yielding is the example of docs/programs.md: a program on the packets and one in the stack
// with a map in common. It counts what comes over one path alone.
const yielding = `
apiVersion: braid.dev/v1alpha1
kind: ClusterMPTCPPolicy
metadata:
  name: yielding
spec:
  namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: shop
  podSelector:
    matchExpressions:
    - {key: app, operator: In, values: [client, server]}
  subflows:
    manager: Agent
  programs:
  - name: count-marks
    configMap: {name: e2e-programs, key: count_marks.o}
    sharedState:
    - name: marks
  - name: yield
    type: Schedule
    configMap: {name: e2e-programs, key: yield.o}
    sharedState:
    - name: marks
  rules:
  - name: count
    match:
      direction: ToEndpoint
      paths: [%s]
    actions:
    - type: RunProgram
      runProgram: {program: count-marks, value: 1}
  - name: hold-back
    actions:
    - type: Schedule
      schedule: {strategy: yield}
`

// A schedule of a policy holds back the subflow whose packets another program of the policy
// finds marked, while they are, and no other one.
func TestAScheduleHoldsBackTheSubflowWhosePacketsAreMarked(t *testing.T) {
	c := use(t)
	t.Cleanup(func() { c.deleteBlocks(t) })
	c.setObjects(t, map[string]string{"count_marks.o": "count_marks.bpf.c", "yield.o": "yield.bpf.c"})
	c.CreatePaths(t)
	marked := paths[0]
	c.Apply(t, fmt.Sprintf(yielding, marked))
	c.waitForPrograms(t, "yielding", 2)

	r := c.begin(t, transfer{"client", "server", 4, traffic.Down, 20 * time.Second})
	testutil.Retry(t, 10*time.Second, func() error {
		if carrying := r.carrying(t); carrying < len(paths) {
			return fmt.Errorf("%d subflows carry payload", carrying)
		}
		return nil
	})
	r.sleepUntil(6 * time.Second)
	r.mark(t, 1)
	r.sleepUntil(14 * time.Second)
	r.mark(t, 0)
	r.finish(t)

	free, held, again := r.shares(3*time.Second, 6*time.Second), r.shares(9*time.Second, 14*time.Second), r.shares(16*time.Second, 20*time.Second)
	t.Logf("unmarked %s; marked over %s %s; unmarked again %s", free, marked, held, again)
	const most = 5 // Mbit/s; the example's 500000 bytes a second, and headers
	if held[marked] > most {
		t.Errorf("while its packets are marked %s carries %.1f Mbit/s, wanted %d at most", marked, held[marked], most)
	}
	for _, path := range paths {
		if free[path] < carried || again[path] < carried || path != marked && held[path] < carried {
			t.Errorf("%s carries %.1f, then %.1f and then %.1f Mbit/s, wanted %d at least", path, free[path], held[path], again[path], carried)
		}
	}
	if err := c.Client.Delete(t.Context(), c.policyOf(t, "", "yielding")); err != nil {
		t.Fatal(err)
	}
	c.WaitFor(t, "nothing is left on nodes and pods", 10*time.Second, c.NothingLeft)
}

// mark has what the client sends carry a code point, on all paths.
func (r *running) mark(t *testing.T, codePoint int) {
	t.Helper()
	connection := r.opened.Load()
	if connection == nil {
		t.Fatal("the client has no connection")
	}
	raw, err := connection.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, codePoint<<2)
	})
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
}
