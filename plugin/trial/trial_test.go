// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/plugin/planes"
)

// good is a trial in which everything worked.
func good() *Trial {
	three := map[string]uint64{"blue": 95e6, "green": 94e6, "red": 96e6}
	return &Trial{
		From: "node1", To: "node2", Paths: []string{"blue", "green", "red"},
		Plain:    &Phase{Transfer: agentapi.Transfer{Ended: true}, BitsPerSecond: 93e6, Paths: map[string]uint64{"blue": 95e6}},
		Spread:   &Phase{Transfer: agentapi.Transfer{Ended: true, Multipath: true}, BitsPerSecond: 278e6, Paths: three},
		Subflows: []string{"blue", "green", "red"},
		Taken:    "red", Without: map[string]uint64{"blue": 95e6, "green": 95e6, "red": 2e3}, Again: three,
		Failover: &agentapi.Transfer{Ended: true, Multipath: true, LongestStandstillMilliseconds: 31},
	}
}

func TestVerdicts(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Trial)
		// check is the last one, and fails unless says is empty.
		check, says string
	}{
		"everything works": {func(*Trial) {}, "return", ""},
		"a path that only one node can use": {func(t *Trial) {
			t.Paths, t.Unusable = []string{"blue", "red"}, map[string]string{"green": "green is down"}
		}, "return", ""},
		"one path is nothing to spread over":     {func(t *Trial) { t.Paths, t.Unusable = t.Paths[:1], map[string]string{"red": "red is down"} }, "paths", "red is down"},
		"pods that do not reach each other":      {func(t *Trial) { t.Plain.Transfer.Error = "connect: timeout"; t.Spread = nil }, "TCP", "timeout"},
		"a connection that falls back":           {func(t *Trial) { t.Spread.Transfer.Multipath = false }, "MPTCP", "fell back"},
		"an MPTCP connection that breaks":        {func(t *Trial) { t.Spread.Transfer.Error = "reset by peer" }, "MPTCP", "reset"},
		"a path that carries nothing":            {func(t *Trial) { t.Spread.Paths["green"] = 1e5 }, "spread", "green carried nothing of it to speak of; subflows are on: blue, green, red"},
		"nothing carries anything":               {func(t *Trial) { t.Spread.Paths, t.Subflows = nil, nil }, "spread", "blue, green, red carried nothing of it to speak of; subflows are on: no known path"},
		"the NICs share what one could carry":    {func(t *Trial) { t.Spread.BitsPerSecond = 94e6 }, "return", ""},
		"a connection that does not survive":     {func(t *Trial) { t.Failover.Error = "reset by peer" }, "failover", "the connection broke"},
		"a path that is used though it is taken": {func(t *Trial) { t.Without["red"] = 90e6 }, "failover", "red still carried 90.0 Mbit/s"},
		"a path that others use though it is taken": {func(t *Trial) {
			t.Before = map[string]uint64{"red": 85e6}
			t.Without["red"] = 90e6
		}, "return", ""},
		"a path that is used though it is taken, beside others": {func(t *Trial) {
			t.Before = map[string]uint64{"red": 40e6}
			t.Without["red"] = 90e6
		}, "failover", "red still carried 90.0 Mbit/s"},
		"a path that others alone use": {func(t *Trial) {
			t.Before = map[string]uint64{"green": 94e6}
			t.Subflows = []string{"blue", "red"}
		}, "spread", "green carried nothing of it to speak of; subflows are on: blue, red"},
		"a path that others use too":    {func(t *Trial) { t.Before = map[string]uint64{"green": 94e6} }, "return", ""},
		"a path that is not used again": {func(t *Trial) { t.Again = t.Without }, "return", "red carried nothing"},
		"pods that do not run": {func(t *Trial) {
			*t = Trial{Fault: "the pod on node1 does not run", FaultRemedy: "kubectl braid status"}
		}, "test", "does not run"},
	} {
		t.Run(name, func(t *testing.T) {
			one := good()
			test.change(one)
			findings := one.Judge()
			last := findings[len(findings)-1]
			require.Equal(t, test.check, last.Check, "%+v", findings)
			require.Equal(t, test.says == "", Fine(findings), "%+v", findings)
			if test.says != "" {
				require.Contains(t, last.Message, test.says)
				require.NotEmpty(t, last.Remedy)
				require.Equal(t, planes.Failed, last.Level)
			}
		})
	}
}

func TestAConnectionThatIsNoFasterIsAWarning(t *testing.T) {
	for name, change := range map[string]func(*Trial){
		"than by TCP":         func(t *Trial) { t.Spread.BitsPerSecond = 94e6 },
		"for it stands still": func(t *Trial) { t.Spread.Transfer.LongestStandstillMilliseconds = 2005 },
	} {
		t.Run(name, func(t *testing.T) {
			one := good()
			change(one)
			require.Equal(t, planes.Warning, one.gains().Level)
			require.NotEmpty(t, one.gains().Remedy)
		})
	}
	require.Equal(t, planes.OK, good().gains().Level)
}

func TestRatesAreOfTheTimeBetweenTwoSurveys(t *testing.T) {
	before := &agentapi.Survey{Time: time.Unix(100, 0), NICs: []agentapi.NIC{{Name: "a", SentBytes: 1000}, {Name: "b", SentBytes: 500}, {Name: "gone", SentBytes: 1}}}
	after := &agentapi.Survey{Time: time.Unix(102, 0), NICs: []agentapi.NIC{{Name: "b", SentBytes: 100}, {Name: "a", SentBytes: 3000}, {Name: "new", SentBytes: 7}}}
	require.Equal(t, map[string]uint64{"a": 8000}, Rate(before, after), "a counter that fell is of another NIC of the same name")
	require.Empty(t, Rate(before, before))
}

func TestBarsAreOfTheFullestNIC(t *testing.T) {
	one := good()
	one.Spread.Paths = map[string]uint64{"blue": 100e6, "green": 50e6, "red": 0}
	rows := one.Rows()
	require.Equal(t, []string{"NIC OF", "TCP", "MPTCP", "", "WITHOUT red", "WITH IT AGAIN"}, rows[0])
	require.Equal(t, []string{"blue", "95.0 Mbit/s", "100 Mbit/s", "####################", "95.0 Mbit/s", "95.0 Mbit/s"}, rows[1])
	require.Equal(t, "##########", rows[2][3])
	require.Empty(t, rows[3][3])
}
