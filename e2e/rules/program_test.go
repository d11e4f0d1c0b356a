// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/program/programtest"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// stamped puts an option into the acknowledgements of the client, with a block; a
// second block selects what a counting rule is for.
const stamped = `
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
  - name: stamp
    configMap: {name: e2e-programs, key: stamp.o}
  rules:
  - name: refuse-large
    match:
      direction: FromEndpoint
      destination: {ports: [{port: 9}]}
    actions:
    - type: RunProgram
      runProgram: {program: large, value: 1000}
    - type: Drop
  - name: stamp-acknowledgements
    match:
      direction: FromEndpoint
      packetTypes: [PureACK]
    actions:
    - type: RunProgram
      runProgram: {program: stamp, value: 42}
`

// stampOption is what the block stamp writes for the value 42.
var stampOption = []byte{253, 8, 0xb5, 0xa1, 0, 0, 0, 42}

// A block is loaded from a ConfigMap and acts. A faulty version is refused with
// the verifier's reason, and the one before it goes on.
func TestABlockActsAndAFaultyVersionDoesNotReplaceIt(t *testing.T) {
	c := use(t)
	t.Cleanup(func() { c.deleteBlocks(t) })
	c.setPrograms(t, "stamp.bpf.c")
	c.Apply(t, stamped)
	c.waitForPrograms(t, "stamped", 1)
	server := newStamps(t, c.Network.Pod("server"))

	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Down, 6*time.Second))
	r.SleepUntil(time.Second)
	before := c.expectStamps(t, server, agentapi.Rule{})

	c.setPrograms(t, "faulty.bpf.c")
	message := c.waitForRefusal(t)
	t.Logf("the policy says: %s", message)
	for _, part := range []string{"stamp-acknowledgements", "stamp", "the verifier refuses it", "outside of the packet", "faulty.bpf.c"} {
		if !strings.Contains(message, part) {
			t.Errorf("the policy does not say %q", part)
		}
	}
	server.count(t, stampOption)
	time.Sleep(500 * time.Millisecond)
	c.expectStamps(t, server, before)

	c.setPrograms(t, "stamp.bpf.c")
	c.waitForPrograms(t, "stamped", 1)
	r.Finish(t)

	if err := c.Client.Delete(t.Context(), c.PolicyOf(t, "", "stamped")); err != nil {
		t.Fatal(err)
	}
	c.WaitFor(t, "nothing is left on nodes and pods", 10*time.Second, c.NothingLeft)
	server.count(t, stampOption)
	c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Down, 500*time.Millisecond))
	if count := server.count(t, stampOption); count > 0 {
		t.Errorf("without the policy %d segments are stamped", count)
	}
}

// setPrograms writes the ConfigMap of the programs, with this source compiled as stamp.
func (c *cluster) setPrograms(t *testing.T, stamp string) {
	t.Helper()
	c.setObjects(t, map[string]string{"large.o": "large.bpf.c", "stamp.o": stamp})
}

// setObjects writes it with these sources by their keys.
func (c *cluster) setObjects(t *testing.T, sources map[string]string) {
	t.Helper()
	directory := t.TempDir()
	for key, source := range sources {
		object := programtest.Compile(t, filepath.Join("examples", source))
		if err := os.WriteFile(filepath.Join(directory, key), object, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := c.Kubectl(t.Context(), "--namespace", lab.SystemNamespace, "create", "configmap", "e2e-programs",
		"--from-file", directory, "--dry-run=client", "--output=yaml").Output()
	if err != nil {
		t.Fatalf("kubectl create configmap: %v: %s", err, out)
	}
	// On the server's side: two objects do not fit into the annotation of kubectl's own way.
	apply := c.Kubectl(t.Context(), "apply", "--server-side", "--force-conflicts", "-f", "-")
	apply.Stdin = bytes.NewReader(out)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v: %s", err, out)
	}
}

func (c *cluster) deleteBlocks(t *testing.T) {
	t.Helper()
	out, err := c.Kubectl(context.Background(), "--namespace", lab.SystemNamespace, "delete", "configmap", "e2e-programs").CombinedOutput()
	if err != nil {
		t.Errorf("kubectl delete configmap: %v: %s", err, out)
	}
}

// waitForPrograms waits until the policy's programs are in use.
func (c *cluster) waitForPrograms(t *testing.T, name string, pods int32) {
	t.Helper()
	took := c.WaitFor(t, "the policy with programs is programmed", 15*time.Second, func(context.Context) error {
		policy := c.PolicyOf(t, "", name).(*v1alpha1.ClusterMPTCPPolicy)
		if !testlab.IsTrue(policy.Status.Conditions, v1alpha1.ConditionProgrammed, policy.Generation) || policy.Status.PodsProgrammed != pods {
			return fmt.Errorf("its status is %+v", policy.Status)
		}
		return nil
	})
	t.Logf("the policy with programs was programmed after %v", took)
}

// waitForRefusal waits until the policy says why a block is refused.
func (c *cluster) waitForRefusal(t *testing.T) (message string) {
	t.Helper()
	c.WaitFor(t, "the policy says that a block is refused", 15*time.Second, func(context.Context) error {
		policy := c.PolicyOf(t, "", "stamped").(*v1alpha1.ClusterMPTCPPolicy)
		programmed := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionProgrammed)
		if programmed == nil || programmed.Reason != v1alpha1.ReasonRuleFailed || len(policy.Status.FailingNodes) != 1 {
			return fmt.Errorf("its status is %+v", policy.Status)
		}
		message = policy.Status.FailingNodes[0].Message
		return nil
	})
	return message
}

// expectStamps: since before the block has acted, and its option has arrived.
func (c *cluster) expectStamps(t *testing.T, at *stamps, before agentapi.Rule) agentapi.Rule {
	t.Helper()
	rule, count := c.RuleNamed(t, "client", "stamp-acknowledgements"), at.count(t, stampOption)
	t.Logf("%d of %d acknowledgements were stamped; %d stamps were seen lately", rule.Acted, rule.Hits, count)
	if rule.Acted <= before.Acted || rule.Hits < rule.Acted || count == 0 {
		t.Errorf("the rule did %+v and then %+v; %d stamps were seen", before, rule, count)
	}
	return rule
}

// stamps sees the segments with the option that come into a pod.
type stamps struct{ socket int }

func newStamps(t *testing.T, pod *network.Pod) *stamps {
	t.Helper()
	index, err := pod.Index("eth0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stamps{}
	err = pod.Do(func() (err error) {
		s.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Close(s.socket); err != nil {
			t.Error(err)
		}
	})
	if err := unix.SetsockoptInt(s.socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		t.Fatal(err)
	}
	everything := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if err := unix.Bind(s.socket, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: index}); err != nil {
		t.Fatal(err)
	}
	return s
}

// count is how many had these bytes since it was asked last, as far as there was room
// to remember them.
func (s *stamps) count(t *testing.T, option []byte) (count int) {
	t.Helper()
	buffer := make([]byte, 1<<17)
	for {
		length, from, err := unix.Recvfrom(s.socket, buffer, 0)
		if errors.Is(err, unix.EAGAIN) {
			return count
		}
		if err != nil {
			t.Fatal(err)
		}
		if from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING && bytes.Contains(buffer[:length], option) {
			count++
		}
	}
}
