// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/api/v1alpha1"
)

func TestReportsBecomeStatuses(t *testing.T) {
	model := &Model{}
	for _, name := range []string{"well", "failed", "missing", "described", "awaited", "awaited and failed"} {
		model.Endpoints = append(model.Endpoints, Endpoint{
			PlanEndpoint: &v1alpha1.PlanEndpoint{UID: types.UID(name), Namespace: "team", Name: name},
			Found:        &endpoints.Endpoint{HostInterface: "veth-" + name},
		})
	}
	model.Endpoint("missing").Found = nil
	model.Endpoint("missing").Missing = errors.New("nobody has 10.1.0.3")

	var all Report
	all.Fail("failed", errors.New("this is wrong"))
	all.Fail("missing", errors.New("this is wrong too"))
	all.Fail("well", nil)
	var rules Report
	rules.Fail("failed", errors.New("and that"))
	rules.Await("awaited", errors.New("its rules are not loaded"))
	rules.Await("awaited and failed", errors.New("its rules are not loaded"))
	all.Fail("awaited and failed", errors.New("this is wrong"))
	rules.Describe("described", func(status *v1alpha1.EndpointStatus) { status.Chain = "chain-1" })
	all.Add(rules)
	all.Describe("described", func(status *v1alpha1.EndpointStatus) { status.SocketUpgrade = v1alpha1.SocketUpgradeActive })

	type told struct {
		state   v1alpha1.EndpointState
		message string
	}
	expected := map[string]told{
		"well":      {v1alpha1.EndpointProgrammed, ""},
		"failed":    {v1alpha1.EndpointFailed, "this is wrong\nand that"},
		"missing":   {v1alpha1.EndpointPending, "nobody has 10.1.0.3"},
		"described": {v1alpha1.EndpointProgrammed, ""},
		"awaited":   {v1alpha1.EndpointPending, "its rules are not loaded"},

		"awaited and failed": {v1alpha1.EndpointFailed, "this is wrong"},
	}
	for _, status := range all.Statuses(model) {
		if is := (told{status.State, status.Message}); is != expected[status.Name] {
			t.Errorf("%s is %+v instead of %+v", status.Name, is, expected[status.Name])
		}
		if status.Name == "described" && (status.Chain != "chain-1" || status.SocketUpgrade != v1alpha1.SocketUpgradeActive) {
			t.Errorf("what two parts say of it is not both there: %+v", status)
		}
	}
	if all.Done() {
		t.Error("a report with failures is done")
	}
}

func TestAReportIsDoneWhereNothingIsLeft(t *testing.T) {
	for name, c := range map[string]struct {
		report Report
		done   bool
	}{
		"nothing to say":        {Report{}, true},
		"an endpoint described": {Report{Endpoints: map[types.UID]EndpointReport{"a": {}}}, true},
		"the node failed":       {Report{Err: errors.New("x")}, false},
		"more to do":            {Report{Unfinished: true}, false},
		"an endpoint waits":     {Report{Endpoints: map[types.UID]EndpointReport{"a": {Pending: errors.New("x")}}}, false},
		"an earlier model":      {Report{Applied: &Model{}}, false},
		"nothing is known":      {Report{Unknown: true}, false},
		"an endpoint failed":    {Report{Endpoints: map[types.UID]EndpointReport{"a": {Failed: errors.New("x")}}}, false},
	} {
		if c.report.Done() != c.done {
			t.Errorf("%s: done is %v", name, c.report.Done())
		}
	}
}

func TestMessagesAreCutWhereACharacterEnds(t *testing.T) {
	for text, short := range map[string]string{"short": "short", "exactlyten": "exactlyten", "longer than ten": "longer tha…", "123456789äö": "123456789…"} {
		if got := Shorten(10, text); got != short {
			t.Errorf("%q becomes %q instead of %q", text, got, short)
		}
	}
	if got := Shorten(10, strings.Repeat("x", 10)); len(got) != 10 {
		t.Errorf("a message of the limit is cut to %q", got)
	}
}

// What the API accepts is counted in characters.
func TestMessagesAreValidTextWithinTheLimitOfTheAPI(t *testing.T) {
	for name, message := range map[string]string{
		"long": strings.Repeat("x", 5000), "of wide characters": strings.Repeat("€", 5000), "cut inside a character": "x" + strings.Repeat("€", 5000),
	} {
		got := Shorten(MessageLimit, message)
		if utf8.RuneCountInString(got) > 1024 || !utf8.ValidString(got) || !strings.HasPrefix(message, strings.TrimSuffix(got, "…")) {
			t.Errorf("%s: it became %d characters, valid: %v", name, utf8.RuneCountInString(got), utf8.ValidString(got))
		}
	}
}

func TestOfSeveralPartsTheOneThatIsFarthestBehindCounts(t *testing.T) {
	first, second := &Model{round: 1}, &Model{round: 2}
	for _, order := range [][]*Model{{nil, first, second}, {first, second, nil}, {second, nil, first}} {
		var all Report
		for _, model := range order {
			all.Add(Report{Applied: model})
		}
		if all.Applied != first {
			t.Errorf("of %v it is %v", order, all.Applied)
		}
	}
}

func TestAPartThatLooksAgainAndAgainEndsWithItsContext(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	looks := 0
	require.NoError(t, Every(ctx, time.Millisecond, func() {
		if looks++; looks == 3 {
			stop()
		}
	}))
	require.GreaterOrEqual(t, looks, 3)
}
