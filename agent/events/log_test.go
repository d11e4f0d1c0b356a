// SPDX-License-Identifier: Apache-2.0

package events_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"braid.dev/braid/agent/events"
	"braid.dev/braid/internal/agentapi"
)

func numbered(number int) agentapi.Event {
	return agentapi.Event{Type: agentapi.EventSubflow, Token: agentapi.Token(number)}
}

// tell shortens events to their tokens, and losses to their numbers.
func tell(list []agentapi.Event) (told []string) {
	for _, event := range list {
		if event.Type == agentapi.EventLost {
			told = append(told, fmt.Sprintf("lost %d", event.Count))
			continue
		}
		told = append(told, fmt.Sprint(uint32(event.Token)))
	}
	return told
}

func TestALogKeepsTheLatestAndTellsWhatAReaderMissed(t *testing.T) {
	tests := map[string]struct {
		added int
		from  uint64
		want  []string
	}{
		"nothing happened":                        {0, 0, nil},
		"fewer events than fit":                   {2, 0, []string{"1", "2"}},
		"the oldest are pushed out":               {6, 0, []string{"3", "4", "5", "6"}},
		"a reader goes on where it was":           {6, 5, []string{"6"}},
		"a reader has everything":                 {6, 6, nil},
		"a reader just in time misses nothing":    {6, 2, []string{"3", "4", "5", "6"}},
		"a slow reader is told what it missed":    {6, 1, []string{"lost 1", "3", "4", "5", "6"}},
		"a very slow reader is told what it lost": {100, 3, []string{"lost 93", "97", "98", "99", "100"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			log := events.NewLog(4)
			for number := range test.added {
				log.Add(numbered(number + 1))
			}
			batch := log.Read(test.from)
			if told := tell(batch.Events); !slices.Equal(told, test.want) || batch.Next != uint64(test.added) {
				t.Errorf("read %v and goes on at %d, want %v and %d", told, batch.Next, test.want, test.added)
			}
		})
	}
}

func TestEveryFollowerGetsEveryEvent(t *testing.T) {
	const count = 500
	log := events.NewLog(count)
	var followers sync.WaitGroup
	got := make([][]string, 4)
	for i := range got {
		followers.Go(func() {
			for from := uint64(0); len(got[i]) < count; {
				batch := log.Read(from)
				got[i] = append(got[i], tell(batch.Events)...)
				if from = batch.Next; len(got[i]) < count {
					<-batch.Changed
				}
			}
		})
	}
	var want []string
	for number := 1; number <= count; number++ {
		log.Add(numbered(number))
		want = append(want, fmt.Sprint(number))
	}
	followers.Wait()
	for i := range got {
		if !slices.Equal(got[i], want) {
			t.Errorf("follower %d got %v", i, got[i])
		}
	}
}

func TestAnEventSurvivesJSON(t *testing.T) {
	want := agentapi.Event{
		Type: agentapi.EventConnection, Endpoint: "team/web", Token: 0xa, InitiatorToken: 0xdeadbeef, Path: "blue",
		Local: netip.MustParseAddrPort("10.0.0.1:80"), Remote: netip.MustParseAddrPort("[fd00::2]:40000"),
	}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got agentapi.Event
	if err := json.Unmarshal(data, &got); err != nil || got != want {
		t.Errorf("%s became %+v (%v)", data, got, err)
	}
	if !strings.Contains(string(data), `"token":"0x0000000a"`) {
		t.Errorf("the token is not written as rules write it: %s", data)
	}
	if err := json.Unmarshal([]byte(`{"token":"blue"}`), &got); err == nil {
		t.Error("a token of letters was read")
	}
}
