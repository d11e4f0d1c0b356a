// SPDX-License-Identifier: Apache-2.0

package outages_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"

	"github.com/cilium/ebpf"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

func TestADeletedPolicyLeavesNothing(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	c.Spread(t, policy, 2)
	c.ExpectUsed(t, paths...)
	programs := c.programs(t, c.Network.Nodes...)
	if len(programs) == 0 {
		t.Fatal("no NIC has a program while the policy is programmed")
	}
	if err := c.Client.Delete(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	took := c.WaitFor(t, "nothing is left on nodes and pods", 10*time.Second, c.NothingLeft)
	t.Logf("nothing was left %v after the policy was deleted", took)
	c.WaitFor(t, "the kernel has dropped the programs", 10*time.Second, func(context.Context) error { return areGone(programs) })
	c.ExpectUsed(t, paths[0])
}

// The traffic goes on by the cluster network's route.
func TestWhatAKilledAgentLeftIsRemoved(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerAgent)
	c.Spread(t, policy, 2)
	node := c.Network.Pod("client").Node
	programs := c.programs(t, node)

	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, 4*time.Second))
	r.SleepUntil(1500 * time.Millisecond)
	c.Kill(t, node)
	c.remove(t, node)
	c.expectUntouchedNode(t, node)
	c.WaitFor(t, "the kernel has dropped the programs", 10*time.Second, func(context.Context) error { return areGone(programs) })
	r.Finish(t)
	t.Logf("nothing arrived for %v at most; before the removal %v, after it %v", r.LongestStop(testlab.Warmup, r.Duration),
		r.Shares(testlab.Warmup, 1500*time.Millisecond), r.Shares(3*time.Second, r.Duration))
	if used := r.Shares(3*time.Second, r.Duration).Used(); !slices.Equal(used, paths[:1]) {
		t.Errorf("after the removal %v carried a share", used)
	}

	c.Start(t, node)
	c.ExpectTakenOver(t, policy)
	c.ExpectUsed(t, paths...)
}

// remove runs what an uninstall runs on each node.
func (c *cluster) remove(t *testing.T, node *network.Node) {
	t.Helper()
	c.cleanUp(t, node, c.SavedPath(node.NodeName()))
}

func (c *cluster) cleanUp(t *testing.T, node *network.Node, savedPath string) {
	t.Helper()
	name := node.NodeName()
	_, err := node.Run(c.Binary("braid-agent"), "cleanup", "--node-name", name,
		"--pin-path", c.PinPath(name), "--state-path", c.StatePath(name), "--saved-path", savedPath, "--netns-dirs", network.Directory)
	if err != nil {
		t.Fatalf("removing what the agent left: %v", err)
	}
}

// expectUntouchedNode compares a node and its pods with how they were before all
// policies.
func (c *cluster) expectUntouchedNode(t *testing.T, node *network.Node) {
	t.Helper()
	now, err := c.Footprint()
	if err != nil {
		t.Fatal(err)
	}
	of := []string{node.Name + ":", "file " + c.PinPath(node.NodeName()), "file " + c.StatePath(node.NodeName()), "file " + c.SavedPath(node.NodeName())}
	for _, pod := range node.Pods {
		of = append(of, pod.Name+":")
	}
	before, after := shop.WithPrefix(c.Untouched, of...), shop.WithPrefix(now, of...)
	if len(before) == 0 || !slices.Equal(before, after) {
		t.Errorf("%s was\n%q\nand is\n%q", node.NodeName(), before, after)
	}
}

// programs are the programs on the NICs of nodes.
func (c *cluster) programs(t *testing.T, nodes ...*network.Node) (programs []ebpf.ProgramID) {
	t.Helper()
	for _, node := range nodes {
		for _, path := range paths {
			index, err := node.Index(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := node.Do(func() error {
				found, err := shop.ProgramsOn(index)
				programs = append(programs, found...)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return programs
}

// areGone: the kernel has none of the programs any more.
func areGone(programs []ebpf.ProgramID) error {
	for _, id := range programs {
		program, err := ebpf.NewProgramFromID(id)
		if err == nil {
			_ = program.Close()
			return fmt.Errorf("program %d is still there", id)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("looking for program %d: %w", id, err)
		}
	}
	return nil
}
