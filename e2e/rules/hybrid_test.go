// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"braid.dev/braid/e2e/testlab"

	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf/transport"
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

	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Down, 20*time.Second))
	testutil.Retry(t, 10*time.Second, func() error {
		if carrying := r.Carrying(t); carrying < len(paths) {
			return fmt.Errorf("%d subflows carry payload", carrying)
		}
		return nil
	})
	r.SleepUntil(6 * time.Second)
	mark(t, r, 1)
	r.SleepUntil(14 * time.Second)
	mark(t, r, 0)
	r.Finish(t)

	free, held, again := r.Shares(3*time.Second, 6*time.Second), r.Shares(9*time.Second, 14*time.Second), r.Shares(16*time.Second, 20*time.Second)
	t.Logf("unmarked %s; marked over %s %s; unmarked again %s", free, marked, held, again)
	const most = 5 // Mbit/s; the example's 500000 bytes a second, and headers
	if held[marked] > most {
		t.Errorf("while its packets are marked %s carries %.1f Mbit/s, wanted %d at most", marked, held[marked], most)
	}
	for _, path := range paths {
		if free[path] < testlab.Carried || again[path] < testlab.Carried || path != marked && held[path] < testlab.Carried {
			t.Errorf("%s carries %.1f, then %.1f and then %.1f Mbit/s, wanted %d at least", path, free[path], held[path], again[path], testlab.Carried)
		}
	}
	if err := c.Client.Delete(t.Context(), c.PolicyOf(t, "", "yielding")); err != nil {
		t.Fatal(err)
	}
	c.WaitFor(t, "nothing is left on nodes and pods", 10*time.Second, c.NothingLeft)
}

// asking says a number of its own beside what Braid asks for, and heeding keeps to it: the
// other example of docs/programs.md.
const asking = `
apiVersion: braid.dev/v1alpha1
kind: ClusterMPTCPPolicy
metadata:
  name: asking
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
  podSelector: {matchLabels: {app: client}}
  subflows: {manager: Agent}
  transport:
    request: {delayedAck: 20ms}
  programs:
  - name: ask-pace
    configMap: {name: e2e-programs, key: ask_pace.o}
  rules:
  - name: ask
    match:
      direction: FromEndpoint
      packetTypes: [PureACK]
    actions:
    - type: RunProgram
      runProgram: {program: ask-pace, value: 25}
---
apiVersion: braid.dev/v1alpha1
kind: ClusterMPTCPPolicy
metadata:
  name: heeding
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
  podSelector: {matchLabels: {app: server}}
  subflows: {manager: Agent}
  programs:
  - name: heed-pace
    configMap: {name: e2e-programs, key: heed_pace.o}
    sharedState: [{name: asked_paces}]
  - name: keep-pace
    type: Schedule
    configMap: {name: e2e-programs, key: keep_pace.o}
    sharedState: [{name: asked_paces}]
  rules:
  - name: heed
    match:
      direction: ToEndpoint
      source: {cidr: %s/32}
    actions:
    - type: RunProgram
      runProgram: {program: heed-pace, value: 12}
  - name: keep
    actions:
    - type: Schedule
      schedule: {strategy: keep-pace}
`

// A pod says a number of its policy's own in its acknowledgements, behind what Braid asks of
// the peer; the peer's policy heeds it where it comes from an address that its rule admits.
func TestASenderKeepsThePaceThatANumberOfItsReceiversOwnSays(t *testing.T) {
	c := use(t)
	t.Cleanup(func() { c.deleteBlocks(t) })
	c.setObjects(t, map[string]string{
		"ask_pace.o": "ask_pace.bpf.c", "heed_pace.o": "heed_pace.bpf.c", "keep_pace.o": "keep_pace.bpf.c",
	})
	c.CreatePaths(t)
	server := newStamps(t, c.Network.Pod("server"))
	run := func(admitted string) (mean float64) {
		c.Apply(t, fmt.Sprintf(asking, admitted))
		for _, name := range []string{"asking", "heeding"} {
			c.waitForPrograms(t, name, 1)
		}
		server.count(t, nil)
		r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Down, 8*time.Second))
		r.Finish(t)
		for _, rate := range r.Shares(4*time.Second, 8*time.Second) {
			mean += rate / float64(len(paths))
		}
		return mean
	}
	held := run(c.Network.Pod("client").IPv4)
	together := []byte{253, 12, 0xb8, 0x1d, transport.RequestDelayedACK, 4, 0, 20, 128, 4, 0, 25}
	if count := server.count(t, together); count == 0 {
		t.Error("no acknowledgement has the number behind what Braid asks for")
	}
	free := run("192.0.2.1")
	t.Logf("each path carries %.1f Mbit/s where the client may ask for 2, and %.1f where it may not", held, free)
	if held > 3 || free < testlab.Carried {
		t.Errorf("each path carries %.1f Mbit/s and %.1f, wanted 3 at most and %d at least", held, free, testlab.Carried)
	}
	for _, name := range []string{"asking", "heeding"} {
		if err := c.Client.Delete(t.Context(), c.PolicyOf(t, "", name)); err != nil {
			t.Fatal(err)
		}
	}
	c.WaitFor(t, "nothing is left on nodes and pods", 10*time.Second, c.NothingLeft)
}

// mark has what the client sends carry a code point, on all paths.
func mark(t *testing.T, r *testlab.Running, codePoint int) {
	t.Helper()
	connection := r.Connection()
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
