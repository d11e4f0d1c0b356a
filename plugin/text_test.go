// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/output"
	"braid.dev/braid/policy"
)

var twelve = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func later(seconds int) time.Time { return twelve.Add(time.Duration(seconds) * time.Second) }

func TestTheTimeOfAnEventIsThatOfItsLastOccurrence(t *testing.T) {
	created := metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(later(1))}
	for name, test := range map[string]struct {
		event eventsv1.Event
		time  time.Time
		count int32
	}{
		"of one that happened once":              {eventsv1.Event{ObjectMeta: created, EventTime: metav1.NewMicroTime(later(2))}, later(2), 0},
		"of a series":                            {eventsv1.Event{EventTime: metav1.NewMicroTime(later(2)), Series: &eventsv1.EventSeries{Count: 3, LastObservedTime: metav1.NewMicroTime(later(9))}}, later(9), 3},
		"of one in the fields of former times":   {eventsv1.Event{ObjectMeta: created, DeprecatedLastTimestamp: metav1.NewTime(later(5))}, later(5), 0},
		"of one that has no time but its object": {eventsv1.Event{ObjectMeta: created}, later(1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			event := eventOf(&test.event)
			require.Equal(t, test.time, event.Time)
			require.Equal(t, test.count, event.Count)
		})
	}
}

func TestEventsAreWrittenInEachFormat(t *testing.T) {
	before := time.Local
	time.Local = time.UTC
	t.Cleanup(func() { time.Local = before })
	end := &agentapi.Event{
		Time: later(1), Type: agentapi.EventSubflowEnd, Endpoint: "shop/web", Token: 0x1a, Path: "blue", SentBytes: 7, ReceivedBytes: 8,
		Local: netip.MustParseAddrPort("10.0.0.1:80"), Remote: netip.MustParseAddrPort("[fd00::2]:4000"), Policy: "MPTCPPolicy/shop/spread", Rule: "tell",
	}
	begun := *end
	begun.Type, begun.Token, begun.Path, begun.SentBytes, begun.ReceivedBytes = agentapi.EventSubflow, 0, "", 0, 0
	events := []Event{
		subflowEvent("node1", end), subflowEvent("node1", &begun), subflowEvent("node1", &agentapi.Event{Time: later(2), Type: agentapi.EventLost, Count: 12}),
		{Time: later(3), Type: "Warning", Reason: "NotReady", Kind: "MPTCPPath", Name: "blue", Message: "no node has a NIC for it", Count: 4},
	}
	var all strings.Builder
	all.WriteString("as a table:\n" + eventsText(events))
	for _, format := range []output.Format{output.Text, output.JSON, output.YAML} {
		fmt.Fprintf(&all, "\none after the other, %q:\n", format)
		for i := range events {
			require.NoError(t, writeEvent(&all, format, &events[i]))
		}
	}
	Golden(t, "events_formats", all.String())
	require.Contains(t, eventsText(nil), "nothing was reported")
}

func TestWhatAgentsPrintIsReadByWholeLines(t *testing.T) {
	var read []string
	lines := &jsonLines[agentapi.Event]{visit: func(event *agentapi.Event) { read = append(read, event.Endpoint) }}
	for _, written := range []string{`{"endpoint":"a"}` + "\n" + `{"endp`, `oint":"b"`, `,"unheard":1}` + "\n", `{"endpoint":"c"}`} {
		n, err := lines.Write([]byte(written))
		require.NoError(t, err)
		require.Equal(t, len(written), n)
	}
	require.Equal(t, []string{"a", "b"}, read, "a line that has not ended is not read, a field of a newer agent is left out")
	_, err := lines.Write([]byte("panic: \n"))
	require.ErrorContains(t, err, "failed to parse the agent's output")
}

func TestALongTextIsCutAtOneEnd(t *testing.T) {
	first, last := &beginning{limit: 10}, &ending{limit: 10}
	require.NoError(t, first.cutOff())
	for i := range 10 {
		n, err := fmt.Fprintf(io.MultiWriter(first, last), "line%d\n", i)
		require.NoError(t, err, "what is cut is no error of the writer")
		require.Equal(t, 6, n)
	}
	require.Equal(t, "line0\nline", first.String())
	require.ErrorContains(t, first.cutOff(), "longer than 10 bytes")
	require.Equal(t, "ne8\nline9\n", string(last.bytes()))
}

// unpacked are the files of an archive by name.
func unpacked(t *testing.T, archive io.Reader) map[string]string {
	t.Helper()
	packed, err := gzip.NewReader(archive)
	require.NoError(t, err)
	files := map[string]string{}
	for reader := tar.NewReader(packed); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		require.Equal(t, twelve, header.ModTime.UTC())
		require.Equal(t, int64(0o600), header.Mode)
		content, err := io.ReadAll(reader)
		require.NoError(t, err)
		files[header.Name] = string(content)
	}
}

func TestAnArchiveTellsOfThePartsThatFailed(t *testing.T) {
	var out bytes.Buffer
	a := newArchive(&out, "dump", twelve, &progress{out: io.Discard})
	a.addAll(t.Context(), []part{
		{"pods", func(_ context.Context, a *archive) error { return a.addYAML("objects/pods.yaml", []string{"web"}) }},
		{"nodes", func(context.Context, *archive) error { return errors.New("it is gone\nand so am I") }},
		{"a log", func(_ context.Context, a *archive) error {
			a.add("log", []byte("as far as it could be read"))
			return errors.New("the stream broke")
		}},
	})
	require.NoError(t, a.close())
	require.Equal(t, map[string]string{
		"dump/objects/pods.yaml": "- web\n", "dump/log": "as far as it could be read",
		"dump/errors.txt": "a log: the stream broke\nnodes: it is gone; and so am I\n",
	}, unpacked(t, &out))
}

func TestAnArchiveThatCannotBeWrittenIsAnError(t *testing.T) {
	reader, writer := io.Pipe()
	require.NoError(t, reader.CloseWithError(errors.New("the disk is full")))
	a := newArchive(writer, "dump", twelve, &progress{out: io.Discard})
	a.add("README.txt", []byte("text"))
	require.ErrorContains(t, a.close(), "writing the archive: the disk is full")
}

func TestAPodIsSummedUpWithoutWhatItsOwnerWrote(t *testing.T) {
	const secret = "canary"
	foreign := map[string]string{"example.com/key": secret, "braid.dev/max-rate": "1M"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: foreign}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Args: []string{secret}, Command: []string{secret}, Env: []corev1.EnvVar{{Name: "KEY", Value: secret}}}}
	pod.Spec.Volumes = []corev1.Volume{{Name: secret}}
	pod.Status.Message = secret
	pod.Status.Conditions = []corev1.PodCondition{{Type: "Ready", Status: "False", Reason: "Crashed", Message: secret, LastTransitionTime: metav1.NewTime(twelve)}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "c", Image: "c:1", RestartCount: 2, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: secret}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", Message: secret, FinishedAt: metav1.NewTime(twelve)}},
	}}
	var text strings.Builder
	require.NoError(t, output.YAML.Write(&text, summaryOfPod(pod)))
	require.NotContains(t, text.String(), secret)
	Golden(t, "pod_summary", text.String())
}

func TestAWorkloadKeepsTheNamesOfItsVariablesAlone(t *testing.T) {
	about := metav1.ObjectMeta{Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "canary"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "helm"}}}
	secret := corev1.Container{
		Name: "c", Args: []string{"--verbose"}, EnvFrom: []corev1.EnvFromSource{{Prefix: "canary"}},
		Env: []corev1.EnvVar{{Name: "KEY", Value: "canary"}, {Name: "REF", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "canary"}}}},
	}
	template := corev1.PodTemplateSpec{ObjectMeta: *about.DeepCopy(), Spec: corev1.PodSpec{InitContainers: []corev1.Container{*secret.DeepCopy()}, Containers: []corev1.Container{secret}}}
	cleanWorkload(&about, &template)
	require.Empty(t, about.Annotations)
	require.Empty(t, about.ManagedFields)
	require.Empty(t, template.Annotations)
	want := corev1.Container{Name: "c", Args: []string{"--verbose"}, Env: []corev1.EnvVar{{Name: "KEY"}, {Name: "REF"}}}
	require.Equal(t, []corev1.Container{want}, template.Spec.InitContainers)
	require.Equal(t, []corev1.Container{want}, template.Spec.Containers)
}

// conditions are those of these types; one with a reason is False, with a message.
func conditions(reasons ...string) (all []metav1.Condition) {
	for _, text := range reasons {
		kind, reason, isFalse := strings.Cut(text, "=")
		condition := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: kind}
		if isFalse {
			condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, reason, "because of "+reason
		}
		all = append(all, condition)
	}
	return all
}

func TestAPolicyIsAProblemForItsFirstCauseAlone(t *testing.T) {
	for name, test := range map[string]struct{ conditions, problems, remarks string }{
		"of which nobody said anything":                {"", "Unknown", ""},
		"that is programmed":                           {"Accepted RulesAccepted Programmed", "", ""},
		"that is not accepted":                         {"Accepted=PathNotFound Programmed=Pending", "PathNotFound", ""},
		"whose rules are not":                          {"Accepted RulesAccepted=Broken Programmed=Pending", "Broken", ""},
		"that pods wait for":                           {"Accepted Programmed=EndpointFailed", "EndpointFailed", ""},
		"that selects no pod":                          {"Accepted Programmed=" + v1alpha1.ReasonNoPodsSelected, "", "NoPodsSelected"},
		"for which others decide":                      {"Accepted Programmed=" + v1alpha1.ReasonOverridden + " Effective=Overridden", "", "Overridden"},
		"of which pods ask for more than they may":     {"Accepted Programmed HintsAccepted=HintsRefused", "", "HintsRefused"},
		"that has a problem, of which no more is said": {"Accepted=PathNotFound Effective=Overridden", "PathNotFound", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var status Status
			status.addPolicy("policies", "policy shop/web", 0, conditions(strings.Fields(test.conditions)...))
			reasons := func(problems []Problem) (all string) {
				for _, problem := range problems {
					require.Equal(t, "policy shop/web", problem.Object)
					all += problem.Reason
				}
				return all
			}
			require.Equal(t, test.problems, reasons(status.Problems))
			require.Equal(t, test.remarks, reasons(status.Remarks))
			require.Len(t, status.Counts, 1, "it is counted once")
		})
	}
}

func TestAnAddressThatIsClaimedIsWorthKnowingAtBothEnds(t *testing.T) {
	for name, test := range map[string]struct{ reason, remark string }{
		"all is confirmed":    {"AddressesConfirmed", ""},
		"refused":             {"AddressesConfirmed=OutOfRange", "OutOfRange"},
		"claimed by another":  {"AddressesConfirmed=" + v1alpha1.ReasonDuplicate, v1alpha1.ReasonDuplicate},
		"kept, and contested": {"AddressesConfirmed", v1alpha1.ReasonDuplicate},
	} {
		t.Run(name, func(t *testing.T) {
			var c cluster
			c.nodes.Items = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}}
			c.members.Items = []v1alpha1.MPTCPNode{{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}}
			shown := conditions("Ready", test.reason)
			if test.remark == v1alpha1.ReasonDuplicate {
				shown[1].Reason = test.remark
			}
			c.members.Items[0].Status.Conditions = shown
			status := c.status()
			require.True(t, status.Fine)
			if test.remark == "" {
				require.Empty(t, status.Remarks)
				return
			}
			require.Equal(t, []Problem{{"node node1", test.remark, shown[1].Message}}, status.Remarks)
		})
	}
}

func TestAPodIsAProblemUntilItsAgentDidWhatThePlanSays(t *testing.T) {
	endpoint := &v1alpha1.PlanEndpoint{Namespace: "shop", Name: "web", Policy: v1alpha1.PolicyReference{Generation: 2}}
	for name, test := range map[string]struct {
		result *v1alpha1.EndpointStatus
		want   *Problem
	}{
		"not seen":                {nil, &Problem{"pod shop/web on node1", "Pending", "the node's agent has not seen it yet"}},
		"failed":                  {&v1alpha1.EndpointStatus{State: v1alpha1.EndpointFailed, PolicyGeneration: 2, Message: "no NIC"}, &Problem{"pod shop/web on node1", "Failed", "no NIC"}},
		"done as it was":          {&v1alpha1.EndpointStatus{State: v1alpha1.EndpointProgrammed, PolicyGeneration: 1}, &Problem{"pod shop/web on node1", "Pending", "the node's agent has not seen the policy's change yet"}},
		"done as it is to be":     {&v1alpha1.EndpointStatus{State: v1alpha1.EndpointProgrammed, PolicyGeneration: 2}, nil},
		"done with another chain": {&v1alpha1.EndpointStatus{State: v1alpha1.EndpointProgrammed, PolicyGeneration: 2, Chain: "old"}, &Problem{"pod shop/web on node1", "Pending", "the node's agent has not put the pod's chain of rules in place yet"}},
	} {
		require.Equal(t, test.want, problemOf("node1", "", endpoint, test.result), name)
		require.Equal(t, test.want == nil, test.result != nil && test.result.Fulfils(endpoint), "the agents' counts go by the same: %s", name)
	}
}

func TestAnExplanationEndsWithWhatBecameOfThePod(t *testing.T) {
	winner := policy.Decision{
		Pod: policy.PodRef{Namespace: "shop", Name: "web", Node: "node1"}, Winner: &v1alpha1.PolicyReference{Kind: "MPTCPPolicy", Namespace: "shop", Name: "spread"},
		WinnerReason: "the only policy that selects the pod", Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerKernel, Count: 2}, SubflowsReason: "as the policy says",
	}
	rules := []v1alpha1.PlanRule{
		{Policy: "MPTCPPolicy/shop/spread", Rule: v1alpha1.Rule{Name: "slow", Actions: []v1alpha1.Action{{Type: "LimitRate"}, {Type: "Record"}}}},
		{Policy: "ClusterMPTCPPolicy/ground", Rule: v1alpha1.Rule{Name: "cut", Actions: []v1alpha1.Action{{Type: "Drop"}}}},
	}
	result := &v1alpha1.EndpointStatus{
		State: v1alpha1.EndpointFailed, Message: "net.mptcp.enabled is 0",
		Hints: []v1alpha1.HintStatus{{Annotation: "braid.dev/max-rate", State: "Followed"}},
		Rules: []v1alpha1.RuleStatus{{Name: "slow", Mechanism: "Window", Message: "the pod's own sockets"}},
	}
	done, plain := &v1alpha1.EndpointStatus{State: v1alpha1.EndpointProgrammed}, &v1alpha1.EndpointStatus{
		State:     v1alpha1.EndpointProgrammed,
		Spreading: &v1alpha1.SpreadingStatus{State: v1alpha1.SpreadingNotSpread, Reason: v1alpha1.ReasonPlainTCP, Message: "its sockets are plain TCP"},
	}
	var all strings.Builder
	for _, test := range []struct {
		what        string
		explanation Explanation
	}{
		{"with rules and what the agent says", Explanation{Decision: winner, Rules: rules, Result: result}},
		{"before the agent said anything", Explanation{Decision: winner}},
		{"whose traffic is spread", Explanation{Decision: winner, Result: done, Traffic: &agentapi.Spreading{
			SpreadingStatus: v1alpha1.SpreadingStatus{State: v1alpha1.SpreadingSpread, Reason: v1alpha1.ReasonSpread}, Seconds: 30, Connections: 2,
			Paths: []agentapi.PathTraffic{{Path: "blue", Subflows: 2, SentBytes: 1000, ReceivedBytes: 20}, {Path: "green", Subflows: 1, SentBytes: 900, ReceivedBytes: 10}},
		}}},
		{"whose traffic is not, and whose agent was not reached", Explanation{Decision: winner, Result: plain, Remedy: remedies[v1alpha1.ReasonPlainTCP]}},
		{"whose agent fell silent after it said so", Explanation{Decision: winner, Result: plain, Silent: "its agent renewed its Lease last at noon"}},
		{"without a policy the agent has nothing to say", Explanation{Decision: policy.Decision{Pod: winner.Pod}}},
		{"of a pod that is left alone", Explanation{Decision: policy.Decision{Pod: winner.Pod, Ignored: "it is not placed on a node yet"}}},
	} {
		fmt.Fprintf(&all, "%s:\n%s\n", test.what, test.explanation.text())
	}
	Golden(t, "explanations", all.String())
}

func TestTheStatusLeadsWithWhatTrafficDoes(t *testing.T) {
	is := func(status metav1.ConditionStatus, reason, message string) []metav1.Condition {
		return append(judgedTrue(v1alpha1.ConditionAccepted, v1alpha1.ConditionProgrammed),
			metav1.Condition{Type: v1alpha1.ConditionSpreading, Status: status, Reason: reason, Message: message})
	}
	var all strings.Builder
	status := Status{}
	for _, policy := range []struct {
		name       string
		conditions []metav1.Condition
	}{
		{"policy shop/spread", is(metav1.ConditionTrue, v1alpha1.ReasonSpread, "")},
		{"policy shop/idle", is(metav1.ConditionUnknown, v1alpha1.ReasonNothingSent, "nothing is sent")},
		{"policy shop/plain", is(metav1.ConditionFalse, v1alpha1.ReasonPlainTCP, "the traffic of 1 of 2 pods is not spread")},
		{"policy shop/newer", is(metav1.ConditionFalse, "Fog", "a reason that this version does not know")},
	} {
		status.addPolicy("policies", policy.name, 0, policy.conditions)
	}
	status.Fine = len(status.Problems) == 0
	all.WriteString(status.text())
	Golden(t, "traffic_status", all.String())
}

func judgedTrue(kinds ...string) (conditions []metav1.Condition) {
	for _, kind := range kinds {
		conditions = append(conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue})
	}
	return conditions
}

func TestEveryReasonHasARemedy(t *testing.T) {
	for _, reason := range []string{
		v1alpha1.ReasonPlainTCP, v1alpha1.ReasonUpgradeUnsupported, v1alpha1.ReasonPeerNotSelected,
		v1alpha1.ReasonOverlayNotSteered, v1alpha1.ReasonEncryptedOverlay, v1alpha1.ReasonNoSecondPath, v1alpha1.ReasonOnePathUsed, v1alpha1.ReasonNotAnswered,
	} {
		require.NotEmpty(t, remedies[reason], reason)
	}
}

func TestARemovalIsJudgedByWhatIsLeft(t *testing.T) {
	object, used := Remnant{Kind: "DaemonSet", Name: "braid-agent"}, Remnant{Node: "node1", Kind: "Pin", Name: "datapath", InUse: true, Remove: nodeCommand}
	var all strings.Builder
	for _, test := range []struct {
		want              RemovalState
		installed, failed bool
		left              []Remnant
	}{
		{RemovalNothing, false, false, nil}, {RemovalReady, true, false, []Remnant{object}},
		{RemovalInUse, true, true, []Remnant{object, used}}, {RemovalLeftovers, false, true, []Remnant{used}},
		{RemovalUnknown, false, true, nil}, {RemovalUnknown, true, true, []Remnant{object}},
	} {
		r := &remover{installed: test.installed, removal: Removal{Left: test.left, namespace: "net"}}
		r.unknown("no agent runs on node3")
		if test.failed {
			r.fail("node %s: %v", "node2", "it is ill")
		}
		r.judge()
		require.Equal(t, test.want, r.removal.State)
		fmt.Fprintf(&all, "%s:\n%s\n", test.want, r.removal.text())
	}
	Golden(t, "removals", all.String())
}

func TestTheCellOfAPathNamesTheOneThatCarriesMost(t *testing.T) {
	tests := map[string]struct {
		of   Subflow
		want string
	}{
		"its own":                              {Subflow{Path: "blue", SentBitsPerSecond: 5}, "blue"},
		"none that is known":                   {Subflow{}, "-"},
		"one that stands in":                   {Subflow{Path: "blue", StandIn: "red", SentBitsPerSecond: 5}, "red, not blue"},
		"by which it receives":                 {Subflow{Path: "blue", Incoming: "red", ReceivedBitsPerSecond: 5}, "red, sends by blue"},
		"by which it receives, and one stands": {Subflow{Path: "blue", StandIn: "green", Incoming: "red", ReceivedBitsPerSecond: 5}, "red, sends by green"},
		"by which it sends":                    {Subflow{Path: "blue", Incoming: "red", SentBitsPerSecond: 5, ReceivedBitsPerSecond: 1}, "blue"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.of.carrier(); got != test.want {
				t.Errorf("the path is %q, want %q", got, test.want)
			}
		})
	}
}
