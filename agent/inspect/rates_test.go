// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"braid.dev/braid/internal/agentapi"
)

// counted is a subflow of a pod that has carried so much.
func counted(port uint16, sent, received uint64) agentapi.Subflow {
	return agentapi.Subflow{
		Endpoint: "team/web", Local: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port), Remote: at("10.0.0.2:80"),
		Sent: agentapi.Traffic{Bytes: sent}, Received: agentapi.Traffic{Bytes: received},
	}
}

func TestSubflowsAreSummedUpByThePathThatTheyTake(t *testing.T) {
	on := func(path, standIn, incoming string, sent, received uint64) agentapi.Rate {
		return agentapi.Rate{Path: path, StandIn: standIn, Incoming: incoming, SentBitsPerSecond: sent, ReceivedBitsPerSecond: received}
	}
	got := fmt.Sprint(byPath([]agentapi.Rate{
		on("red", "", "", 5, 1), on("", "", "", 7, 1), on("blue", "", "", 10, 1), on("green", "blue", "", 20, 1), on("red", "", "pink", 2, 90),
	}))
	if want := "[{blue 2 30 2} {pink 0 0 90} {red 2 7 1}]"; got != want {
		t.Errorf("the sums are %s, want %s", got, want)
	}
}

func TestRatesAreMeasuredBetweenTwoReadings(t *testing.T) {
	ended := counted(4, 9e6, 9e6)
	ended.Ended = true
	tests := map[string]struct {
		before, after []agentapi.Subflow
		limit         int
		want          string // port sent received
	}{
		"the busiest comes first": {
			[]agentapi.Subflow{counted(1, 1000, 0), counted(2, 1000, 1000)},
			[]agentapi.Subflow{counted(1, 2000, 0), counted(2, 4000, 1000)}, 0, "2 of 2: [2 12000 0] [1 4000 0]",
		},
		"a new one counts from its beginning": {
			nil, []agentapi.Subflow{counted(1, 1000, 500)}, 0, "1 of 1: [1 4000 2000]",
		},
		"one that began anew counts from its beginning": {
			[]agentapi.Subflow{counted(1, 1e9, 10)}, []agentapi.Subflow{counted(1, 1000, 10)}, 0, "1 of 1: [1 4000 0]",
		},
		"idle ones count, ended ones do not": {
			[]agentapi.Subflow{counted(3, 7, 7), ended}, []agentapi.Subflow{counted(3, 7, 7), ended}, 0, "1 of 1: [3 0 0]",
		},
		"the least busy are left out": {
			[]agentapi.Subflow{counted(1, 0, 0), counted(2, 0, 0), counted(3, 0, 0)},
			[]agentapi.Subflow{counted(1, 0, 0), counted(2, 0, 1000), counted(3, 0, 0)}, 1, "1 of 3: [2 0 4000]",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var meter Meter
			start := time.Now()
			if _, known := meter.Read(start, test.before, test.limit); known {
				t.Error("the first reading has rates")
			}
			reading, known := meter.Read(start.Add(2*time.Second), test.after, test.limit)
			got := fmt.Sprintf("%d of %d:", len(reading.Busy), reading.Total)
			for _, rate := range reading.Busy {
				got += fmt.Sprintf(" [%d %d %d]", rate.Local.Port(), rate.SentBitsPerSecond, rate.ReceivedBitsPerSecond)
			}
			if !known || got != test.want {
				t.Errorf("the rates are %s (%t), want %s", got, known, test.want)
			}
		})
	}
}
