// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/events"
	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// node is a pod, and the host that its interface ends in, with a chain on it.
type node struct {
	t         *testing.T
	pod, host *network.Namespace
	chains    *chains.Chains
	bpf       string // --pin-path
	state     string // --state-path
	pins      *inspect.Pins
}

func build(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, pod: network.NamespaceForTest(t), host: network.NamespaceForTest(t), bpf: testutil.BPFFS(t), state: t.TempDir()}
	require.NoError(t, network.Connect(n.pod, "eth0", n.host, "pod0", network.Options{
		AddressesA: []string{"10.9.0.1/24"}, AddressesB: []string{"10.9.0.2/24"},
	}))
	pins := filepath.Join(n.bpf, "endpoints")
	n.chains = chains.Open(chains.Options{PinPath: pins, Log: logr.Discard()})
	t.Cleanup(func() { require.NoError(t, n.host.Do(func() error { return n.chains.Remove(context.Background()) })) })
	n.apply()
	names, err := inspect.OpenDirectory(filepath.Join(n.state, inspect.DirectoryName))
	require.NoError(t, err)
	known := map[uint32]inspect.Endpoint{}
	for _, attached := range n.chains.Endpoints() {
		known[attached.Number] = inspect.Endpoint{Name: attached.Name, Rules: inspect.RuleNames(attached.Rules)}
	}
	require.NoError(t, names.Set(known))
	n.pins = inspect.NewPins(chains.Directory(pins), n.bpf, names)
	return n
}

func (n *node) apply() {
	n.t.Helper()
	index, err := n.host.Index("pod0")
	require.NoError(n.t, err)
	limit := v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{
		Rate: resource.MustParse("20M"), Mechanism: v1alpha1.RateLimitPolice,
	}}
	rules := []v1alpha1.PlanRule{
		{Policy: "ClusterMPTCPPolicy/watch", Rule: v1alpha1.Rule{Name: "report", Actions: []v1alpha1.Action{
			{Type: v1alpha1.ActionReportConnection}, {Type: v1alpha1.ActionReportSubflow}, {Type: v1alpha1.ActionRecord},
		}}},
		{Policy: "MPTCPPolicy/team/web", Rule: v1alpha1.Rule{
			Name:    "slow",
			Match:   &v1alpha1.Match{Selectors: v1alpha1.Selectors{Direction: v1alpha1.DirectionFromEndpoint}},
			Actions: []v1alpha1.Action{limit},
		}},
	}
	require.NoError(n.t, n.host.Do(func() error {
		return nodetest.Failures(n.chains.Apply(n.t.Context(), nodetest.Model(nodetest.Pod{UID: "uid", Name: "team/web-0", Interface: index, Rules: rules})))
	}))
}

// serve is the part of an agent that the debug commands ask.
func (n *node) serve() (stop func()) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	log := events.NewLog(0)
	ring, err := n.chains.Map("events")
	require.NoError(n.t, err)
	ended := make(chan error, 2)
	go func() { ended <- events.Receive(ctx, ring, n.pins, log, logr.Discard()) }()
	server := &inspect.Server{Path: filepath.Join(n.state, inspect.SocketName), Source: n.pins, Events: log, Log: logr.Discard()}
	go func() { ended <- server.Start(ctx) }()
	return func() {
		cancel()
		require.NoError(n.t, errors.Join(<-ended, <-ended, ring.Close()))
	}
}

// talk has a connection of the pod send a megabyte or so, which comes back.
func (n *node) talk() net.Conn {
	n.t.Helper()
	listener, err := n.host.Listen(n.t.Context(), "tcp", "10.9.0.2:0")
	require.NoError(n.t, err)
	defer listener.Close()
	connection, err := n.pod.Dial(n.t.Context(), "tcp", listener.Addr().String())
	require.NoError(n.t, err)
	served, err := listener.Accept()
	require.NoError(n.t, err)
	n.t.Cleanup(func() { connection.Close() })
	go func() {
		_, _ = io.Copy(served, served)
		served.Close()
	}()
	require.NoError(n.t, connection.SetDeadline(time.Now().Add(time.Minute)))
	payload := make([]byte, 8192)
	for range 128 {
		_, err := connection.Write(payload)
		require.NoError(n.t, err)
		_, err = io.ReadFull(connection, payload)
		require.NoError(n.t, err)
	}
	return connection
}

// run runs the command on the host, where its interfaces are.
func (n *node) run(arguments ...string) (string, error) {
	n.t.Helper()
	var output bytes.Buffer
	command := command()
	command.SetOut(&output)
	command.SetErr(io.Discard)
	command.SetArgs(append(arguments, "--pin-path", n.bpf, "--state-path", n.state))
	err := n.host.Do(func() error { return command.ExecuteContext(n.t.Context()) })
	return output.String(), err
}

// until runs the command until its output has all these texts.
func (n *node) until(texts []string, arguments ...string) (output string) {
	n.t.Helper()
	testutil.Retry(n.t, 20*time.Second, func() (err error) {
		if output, err = n.run(arguments...); err != nil {
			return fmt.Errorf("%v: %w: %s", arguments, err, output)
		}
		for _, text := range texts {
			if !strings.Contains(output, text) {
				return fmt.Errorf("%v has no %q:\n%s", arguments, text, output)
			}
		}
		return nil
	})
	return output
}

func TestTheDebugCommandsShowWhatChainsDo(t *testing.T) {
	n := build(t)
	stop := n.serve()
	connection := n.talk()
	ends := connection.LocalAddr().String() + " -> " + connection.RemoteAddr().String()
	wanted := []string{"team/web-0", "0x", ends, "limit FromEndpoint 20.0Mbit/s per Subflow; Police: the rule insists on it; by rule slow"}
	show(t, n.until(wanted, "subflows"))
	rules := []string{"team/web-0", "report", "ClusterMPTCPPolicy/watch", "slow", "MPTCPPolicy/team/web"}
	show(t, n.until(rules, "rules"))
	show(t, n.until([]string{"Connection", "Subflow", "team/web-0", ends}, "events"))

	connection.Close()
	n.until([]string{"ended"}, "subflows")
	n.until([]string{"SubflowEnd"}, "events", "-o", "yaml")
	stop()
	n.until(append(wanted, "ended"), "subflows")
	n.until(rules, "rules")
	if _, err := n.run("events"); !errors.Is(err, inspect.ErrNoAgent) {
		t.Errorf("without an agent the events are %v", err)
	}
}

func show(t *testing.T, output string) {
	t.Helper()
	t.Logf("\n%s", output)
	for line := range strings.Lines(output) {
		if len([]rune(line)) > 101 {
			t.Errorf("a line of %d columns: %s", len([]rune(line)), line)
		}
	}
}

func TestTheDebugCommandsPrintForPrograms(t *testing.T) {
	n := build(t)
	connection := n.talk()
	for format, unmarshal := range map[string]func([]byte, any) error{"json": json.Unmarshal, "yaml": func(data []byte, value any) error { return yaml.Unmarshal(data, value) }} {
		output, err := n.run("subflows", "team/web-0", "-o", format)
		require.NoError(t, err)
		var subflows []agentapi.Subflow
		require.NoError(t, unmarshal([]byte(output), &subflows))
		if len(subflows) != 1 || subflows[0].Local != netip.MustParseAddrPort(connection.LocalAddr().String()) ||
			subflows[0].Sent.Bytes < 1<<20 || subflows[0].Received.Bytes < 1<<20 || subflows[0].Token == 0 || len(subflows[0].Limits) != 1 {
			t.Errorf("as %s the subflows are %+v", format, subflows)
		}
		output, err = n.run("rules", "team/other", "-o", format)
		require.NoError(t, err)
		if strings.TrimSpace(output) != "[]" {
			t.Errorf("the rules of a pod that does not exist are %s", output)
		}
	}
}

func TestWhereNoAgentEverWasTheCommandsSaySo(t *testing.T) {
	for _, name := range []string{"subflows", "rules", "events"} {
		command := command()
		command.SetOut(io.Discard)
		command.SetErr(io.Discard)
		command.SetArgs([]string{name, "--pin-path", t.TempDir(), "--state-path", t.TempDir()})
		if err := command.Execute(); !errors.Is(err, inspect.ErrNoAgent) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAFileThatIsNoDirectoryIsNamed(t *testing.T) {
	state := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(state, inspect.DirectoryName), []byte("{"), 0o600))
	command := command()
	command.SetOut(io.Discard)
	command.SetErr(io.Discard)
	command.SetArgs([]string{"rules", "--pin-path", t.TempDir(), "--state-path", state})
	if err := command.Execute(); err == nil || !strings.Contains(err.Error(), "reading the names of endpoints") {
		t.Errorf("the error is %v", err)
	}
}

// TestRatesAreWrittenALineForEachReading has a pod without a moment's rest talk.
func TestRatesAreWrittenALineForEachReading(t *testing.T) {
	n := build(t)
	stop := n.serve()
	n.until(nil, "events") // it serves
	talking := make(chan struct{})
	connection := n.talk()
	go func() {
		defer close(talking)
		for n.say(connection) == nil {
		}
	}()
	output, err := n.run("rates", "--every", "100ms", "--count", "2")
	require.NoError(t, err)
	if lines := strings.Count(output, "\n"); lines != 2 {
		t.Errorf("there are %d lines: %s", lines, output)
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		output, err := n.run("rates", "--every", "100ms", "--count", "1")
		require.NoError(t, err)
		var reading agentapi.Reading
		require.NoError(t, json.Unmarshal([]byte(output), &reading))
		if reading.Total != 1 || len(reading.Busy) != 1 || reading.Busy[0].Endpoint != "team/web-0" {
			t.Fatalf("the reading is %+v", reading)
		}
		if reading.Busy[0].SentBitsPerSecond > 0 && reading.Busy[0].ReceivedBitsPerSecond > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it carries nothing: %+v", reading)
		}
	}
	for of, want := range map[string]int{"team": 1, "team/web-0": 1, "team/web": 0, "tea": 0} {
		output, err := n.run("rates", of, "--every", "100ms", "--count", "1")
		require.NoError(t, err)
		if !strings.Contains(output, fmt.Sprintf(`"total":%d,`, want)) {
			t.Errorf("of %s: %s", of, output)
		}
	}
	output, err = n.run("rates", "--path", "blue", "--every", "100ms", "--count", "1")
	if err != nil || !strings.Contains(output, `"total":0,`) {
		t.Errorf("on another path: %s %v", output, err)
	}
	output, err = n.run("rates", "--nic", "lo", "--nic", "no-such-nic", "--limit", "1", "--every", "100ms", "--count", "1")
	if err != nil || !strings.Contains(output, `"nics":[{"name":"lo","up":`) || strings.Contains(output, "no-such-nic") {
		t.Errorf("of NICs: %s %v", output, err)
	}
	connection.Close()
	<-talking
	stop()
	if _, err := n.run("rates", "--count", "1"); !errors.Is(err, inspect.ErrNoAgent) {
		t.Errorf("without an agent: %v", err)
	}
	if _, err := n.run("rates", "--every", "1ms"); err == nil || !strings.Contains(err.Error(), "--every=1ms") {
		t.Errorf("too often: %v", err)
	}
}

// say sends a little and waits for it to come back.
func (n *node) say(connection net.Conn) error {
	word := make([]byte, 1024)
	if _, err := connection.Write(word); err != nil {
		return err
	}
	_, err := io.ReadFull(connection, word)
	return err
}

func TestAttachedCommandsEndWithTheirInput(t *testing.T) {
	n := build(t)
	stop := n.serve()
	defer stop()
	n.until(nil, "events") // it serves
	for _, arguments := range [][]string{{"rates", "--attached"}, {"events", "--follow", "--attached"}} {
		input, end := io.Pipe()
		done := make(chan error, 1)
		go func() {
			command := command()
			command.SetIn(input)
			command.SetOut(io.Discard)
			command.SetArgs(append(arguments, "--pin-path", n.bpf, "--state-path", n.state))
			done <- command.ExecuteContext(n.t.Context())
		}()
		select {
		case err := <-done:
			t.Errorf("%v ended before its input: %v", arguments, err)
			continue
		case <-time.After(300 * time.Millisecond):
		}
		require.NoError(t, end.Close())
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(30 * time.Second):
			t.Fatalf("%v goes on without its input", arguments)
		}
	}
}
