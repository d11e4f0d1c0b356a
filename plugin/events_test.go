// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/testutil"
	"braid.dev/braid/plugin"
)

// noon is when things happen here.
var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// addEvent has a reporter report something, so many seconds after noon.
func (s *scene) addEvent(name, reporter string, after int, of corev1.ObjectReference, reason, note string) {
	s.t.Helper()
	namespace := of.Namespace
	if namespace == "" {
		namespace = "default"
	}
	s.create(&eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		EventTime:  metav1.NewMicroTime(noon.Add(time.Duration(after) * time.Second)), Type: "Warning", Reason: reason, Action: "Tell",
		ReportingController: reporter, ReportingInstance: reporter + "-0", Regarding: of, Note: note,
	}, nil)
}

// inUTC prints the same everywhere.
func inUTC(t *testing.T) {
	t.Helper()
	before := time.Local
	time.Local = time.UTC
	t.Cleanup(func() { time.Local = before })
}

func reportAt(after int, kind, endpoint, path string) string {
	return fmt.Sprintf(`{"time":%q,"type":%q,"endpoint":%q,"token":"0x267e7263","local":"10.0.1.1:40001","remote":"10.0.2.1:5001","path":%q,"policy":"MPTCPPolicy/shop/spread","rule":"report","sentBytes":70}`,
		noon.Add(time.Duration(after)*time.Second).Format(time.RFC3339Nano), kind, endpoint, path)
}

// talkativeNodes have reported things; the agent of node2 is ill.
func talkativeNodes(t *testing.T) *scene {
	t.Helper()
	inUTC(t)
	s := newNodeScene(t, &nodes{agent: func(agent string, command []string, in io.Reader, out io.Writer) error {
		if agent == "agent-node2" {
			return errors.New("node2 has a headache")
		}
		fmt.Fprintln(out, reportAt(15, "Connection", "shop/client", "blue"))
		fmt.Fprintln(out, reportAt(25, "SubflowEnd", "team/web", "green"))
		if slices.Contains(command, "--follow") {
			fmt.Fprintln(out, reportAt(35, "Subflow", "shop/client", "red"))
			_, _ = io.Copy(io.Discard, in)
		}
		return nil
	}})
	for _, namespace := range []string{"braid-system", "shop", "team"} {
		s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, nil)
	}
	for i := range 2 {
		node, address := fmt.Sprintf("node%d", i+1), fmt.Sprintf("192.0.2.%d", i+1)
		s.addKubelet(node, address)
		s.addSystemPod("agent", "agent-"+node, node, address)
	}
	group := v1alpha1.GroupVersion.String()
	policy := corev1.ObjectReference{APIVersion: group, Kind: "MPTCPPolicy", Namespace: "shop", Name: "spread"}
	s.addEvent("b", "braid-controller", 20, policy, "EndpointFailed", "1 of 1 pods is not programmed")
	s.addEvent("a", "braid-controller", 10, corev1.ObjectReference{Kind: "Pod", Namespace: "team", Name: "web"}, "HintRefused", "path red is not for tenants")
	s.addEvent("c", "braid-controller", 30, corev1.ObjectReference{APIVersion: group, Kind: "MPTCPPath", Name: "blue"}, "NotReady", "no node has a NIC for it")
	s.addEvent("d", "kubelet", 5, corev1.ObjectReference{Kind: "Pod", Namespace: "team", Name: "web"}, "BackOff", "of somebody else")
	return s
}

// TestEvents shares an API server, which takes long to start.
func TestEvents(t *testing.T) {
	s := talkativeNodes(t)
	t.Run("are listed in the order of time", func(t *testing.T) { eventsAreListed(s.in(t)) })
	t.Run("cannot give the terminal orders", func(t *testing.T) { eventsGiveNoOrders(s.in(t)) })
	t.Run("are watched, and none is told twice", func(t *testing.T) { eventsAreWatched(s.in(t)) })
}

func eventsAreListed(s *scene) {
	t := s.t
	out, err := s.run("events")
	if err != nil {
		t.Error(err)
	}
	s.golden("events", out)
	out, err = s.run("events", "--subflows")
	if !errors.Is(err, plugin.ErrNotFine) || !strings.Contains(s.warnings.String(), "node2 has a headache") {
		t.Errorf("of an agent that does not answer: %v\n%s", err, s.warnings.String())
	}
	s.golden("events_subflows", out)
	tests := map[string]struct{ command, want string }{ // the reasons
		"of a namespace":          {"--namespace shop", "EndpointFailed"},
		"of a policy":             {"--for mpol/spread", "EndpointFailed"},
		"of a policy elsewhere":   {"--for mpol/spread --namespace team", ""},
		"of a path":               {"--for mpath/blue --namespace shop", "NotReady"},
		"of a pod":                {"--for pods/web", "HintRefused"},
		"subflows of a policy":    {"--subflows --for mpol/spread", "Connection EndpointFailed SubflowEnd"},
		"subflows of a path":      {"--subflows --for mptcppath/blue", "Connection NotReady"},
		"subflows of a node":      {"--subflows --for node/node1", "Connection SubflowEnd"},
		"subflows of a namespace": {"--subflows --namespace team", "HintRefused SubflowEnd"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := s.run(append([]string{"events", "-o", "yaml"}, strings.Fields(test.command)...)...)
			if err != nil && !errors.Is(err, plugin.ErrNotFine) {
				t.Error(err)
			}
			var reasons []string
			for line := range strings.Lines(out) {
				if reason, is := strings.CutPrefix(line, "  reason: "); is {
					reasons = append(reasons, strings.TrimSpace(reason))
				}
			}
			if got := strings.Join(reasons, " "); got != test.want {
				t.Errorf("the reasons are %s, want %s", got, test.want)
			}
		})
	}
	if _, err := s.run("events", "--for", "secret/keys"); err == nil || !strings.Contains(err.Error(), "KIND/NAME") {
		t.Errorf("the error is %v", err)
	}
}

// eventsGiveNoOrders: whoever may write Events of a namespace names any reporter, and writes
// escape sequences, or what looks like lines of others.
func eventsGiveNoOrders(s *scene) {
	t := s.t
	of := corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web"}
	s.addEvent("forged", "braid-controller", 40, of, "Fine", "\x1b]0;all is well\a\x1b[2Jit is\u202e\n2026-11-22 12:00:00  Normal  Ready  Policy shop/spread  forged")
	for _, arguments := range [][]string{{"events", "--namespace", "shop"}, {"events", "--for", "pod/web", "--namespace", "shop"}} {
		out, err := s.run(arguments...)
		if err != nil {
			t.Error(err)
		}
		if !strings.Contains(out, "it is") || strings.ContainsAny(out, "\x1b\a\u202e") || strings.Contains(out, "\n2026-11-22 12:00:00") {
			t.Errorf("%v prints %q", arguments, out)
		}
	}
	if err := s.client.Delete(t.Context(), &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "forged"}}); err != nil {
		t.Error(err)
	}
}

// shared is a buffer that is read while it is written.
type shared struct {
	mutex  sync.Mutex
	buffer bytes.Buffer
}

func (s *shared) Write(data []byte) (int, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.buffer.Write(data)
}

func (s *shared) String() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.buffer.String()
}

func eventsAreWatched(s *scene) {
	t := s.t
	var out shared
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		command := plugin.Command(&out, "test")
		command.SetErr(io.Discard)
		command.SetContext(ctx)
		done <- s.runWith(command, "events", "--subflows", "--watch", "-o", "json")
	}()
	until := func(text string) {
		t.Helper()
		testutil.Retry(t, 30*time.Second, func() error {
			if output := out.String(); !strings.Contains(output, text) {
				return fmt.Errorf("there is no %s:\n%s", text, output)
			}
			return nil
		})
	}
	until(`"NotReady"`)
	until("path red, token")
	s.addEvent("e", "braid-controller", 40, corev1.ObjectReference{Kind: "Pod", Namespace: "team", Name: "web"}, "HintAccepted", "it is new")
	until("it is new")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, once := range []string{"HintRefused", "NotReady", "path blue, token", "path green", "path red, token", "it is new"} {
		if count := strings.Count(out.String(), once); count != 1 {
			t.Errorf("%s is told %d times:\n%s", once, count, out.String())
		}
	}
}
