// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/internal/lab/traffic"
)

// A process of this test that is told to apply a state does nothing else.
const applyVariable = "BRAID_TEST_APPLY"

func TestMain(m *testing.M) {
	if text := os.Getenv(applyVariable); text != "" {
		fmt.Println(applyAndWait(text))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// toApply is what such a process gets.
type toApply struct {
	PinPath     string
	FlowEntries uint32
	State       State
}

func applyAndWait(text string) error {
	var wanted toApply
	if err := json.Unmarshal([]byte(text), &wanted); err != nil {
		return err
	}
	opened := Open(Options{PinPath: wanted.PinPath, FlowEntries: wanted.FlowEntries})
	if err := wanted.State.Apply(context.Background(), opened, nodetest.NewBuilder(wanted.PinPath)); err != nil {
		return err
	}
	fmt.Println("applied")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// applyInProcess applies a state in another process, and returns a function that
// kills it.
func (l *lab) applyInProcess(t *testing.T, node int, state State) (kill func()) {
	t.Helper()
	options := l.nodeOptions(node)
	text, err := json.Marshal(toApply{options.PinPath, options.FlowEntries, state})
	require.NoError(t, err)
	command := l.Nodes[node].Command(context.Background(), os.Args[0])
	command.Env = append(os.Environ(), applyVariable+"="+string(text))
	_, err = command.StdinPipe()
	require.NoError(t, err)
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	kill = func() {
		if err := command.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("killing the process of node %d: %v", node+1, err)
		}
		_ = command.Wait() // killed
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "applied" {
		t.Fatalf("the process of node %d: %q, %v", node+1, line, err)
	}
	return kill
}

// reopen gives the node a new datapath over the old one's pins.
func (l *lab) reopen(t *testing.T, node int, options Options) {
	t.Helper()
	require.NoError(t, errors.Join(l.datapaths[node].Close(), l.builders[node].Close()))
	l.options = options
	l.datapaths[node], l.builders[node] = Open(l.nodeOptions(node)), nodetest.NewBuilder(l.nodeOptions(node).PinPath)
}

func TestARestartedAgentTakesOver(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	m := startMixture(t, client, server, traffic.Options{Duration: untilEnded, Verify: true})
	m.at(500 * time.Millisecond)
	before := []map[ends]Flow{byEnds(l.awaitSubflows(t, 0, mixtureSubflows)), byEnds(l.awaitSubflows(t, 1, mixtureSubflows))}
	for node := range l.Nodes {
		require.NoError(t, l.datapaths[node].Close())
	}
	l.sentIn(t, 0, 500*time.Millisecond).expectShares(t, "while no agent runs", evenShares)
	for node := range l.Nodes {
		l.reopen(t, node, Options{})
	}
	l.applyAll(t)
	for node := range l.Nodes {
		if after := byEnds(living(l.flows(t, node))); !maps.Equal(before[node], after) {
			t.Errorf("node %d: the flows were%s\nand are%s", node+1, describeEnds(before[node]), describeEnds(after))
		}
	}
	l.sentIn(t, 0, 500*time.Millisecond).expectShares(t, "after the restart", evenShares)
	m.end(t)
	for node := range l.Nodes {
		for _, path := range threePaths {
			l.expectAttached(t, node, path, 1)
		}
	}
}

func TestAKilledAgentChangesNothing(t *testing.T) {
	l, client, server := newPair(t, Options{})
	states := l.states(t)
	var kill []func()
	for node := range l.Nodes {
		kill = append(kill, l.applyInProcess(t, node, states[node]))
	}
	m := startMixture(t, client, server, traffic.Options{Duration: untilEnded, Verify: true})
	m.at(700 * time.Millisecond)
	for _, kill := range kill {
		kill()
	}
	l.sentIn(t, 0, 500*time.Millisecond).expectShares(t, "after the kill", evenShares)
	later := start(t, client, server, 4, traffic.Options{Connections: 3, Duration: untilEnded})
	later.at(500 * time.Millisecond)
	l.applyAll(t)
	if counts := pathCounts(l.awaitSubflows(t, 0, mixtureSubflows+9)); !maps.Equal(counts, map[string]int{"blue": 7, "green": 7, "red": 7}) {
		t.Errorf("the agent that takes over finds these subflows by path: %v", counts)
	}
	l.sentIn(t, 0, 500*time.Millisecond).expectShares(t, "after the take-over", evenShares)
	later.end(t)
	m.end(t)
}

// A map of another size cannot be taken over as it is; the flows are copied, and no
// program is attached twice.
func TestAnAgentWithOtherSizesKeepsTheFlows(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	transfer(t, client, server, 4, traffic.Options{Duration: 300 * time.Millisecond})
	before := l.pathsByEnds(t, 0)
	if len(before) == 0 {
		t.Fatal("no flows")
	}
	require.NoError(t, l.datapaths[0].Close())
	options := l.nodeOptions(0)
	options.FlowEntries = 1000
	l.datapaths[0] = Open(options)
	l.apply(t, 0, l.states(t)[0])
	if after := l.pathsByEnds(t, 0); !maps.Equal(before, after) {
		t.Errorf("the flows were %v\nand are %v", before, after)
	}
	for _, path := range threePaths {
		l.expectAttached(t, 0, path, 1)
	}
	l.sent(t, 0, func() {
		transfer(t, client, server, 4, traffic.Options{Duration: 600 * time.Millisecond})
	}).expectShares(t, "afterwards", evenShares)
}

// pathsByEnds are the paths of a node's flows, whether they have ended or are about to.
func (l *lab) pathsByEnds(t *testing.T, node int) map[ends]string {
	t.Helper()
	paths := map[ends]string{}
	for between, flow := range byEnds(l.flows(t, node)) {
		paths[between] = flow.Path
	}
	return paths
}

// Neither an upgrade nor the way back moves a subflow or attaches a program twice.
func TestAnotherVersionTakesOver(t *testing.T) {
	t.Parallel()
	forEachMode(t, func(t *testing.T, _ string, options Options) {
		l, client, server := newPair(t, options)
		l.applyAll(t)
		m := startMixture(t, client, server, traffic.Options{Duration: untilEnded, Verify: true})
		m.at(500 * time.Millisecond)
		before := []map[ends]Flow{byEnds(l.awaitSubflows(t, 0, mixtureSubflows)), byEnds(l.awaitSubflows(t, 1, mixtureSubflows))}
		for _, version := range []string{"other", schema} {
			for node := range l.Nodes {
				require.NoError(t, l.datapaths[node].Close())
				l.datapaths[node] = open(l.nodeOptions(node), version)
			}
			l.applyAll(t)
			for node := range l.Nodes {
				l.expectTakenOver(t, node, version, before[node])
			}
		}
		l.sentIn(t, 0, 500*time.Millisecond).expectShares(t, "after the way back", evenShares)
		m.end(t)
	})
}

// expectTakenOver checks that a version of the agent has what the last one had, and
// alone.
func (l *lab) expectTakenOver(t *testing.T, node int, version string, before map[ends]Flow) {
	t.Helper()
	if after := byEnds(living(l.flows(t, node))); !maps.Equal(before, after) {
		t.Errorf("%s, node %d: the flows were%s\nand are%s", version, node+1, describeEnds(before), describeEnds(after))
	}
	for _, path := range threePaths {
		l.expectAttached(t, node, path, 1)
	}
	expectLinks(t, l.datapaths[node], len(threePaths))
	entries, err := os.ReadDir(Directory(l.nodeOptions(node).PinPath))
	require.NoError(t, err)
	if len(entries) != 1 || entries[0].Name() != version {
		t.Errorf("node %d: pinned are %v, instead of %s alone", node+1, entries, version)
	}
}
