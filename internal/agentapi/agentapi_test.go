// SPDX-License-Identifier: Apache-2.0

package agentapi_test

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

var (
	noon  = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	web   = netip.MustParseAddrPort("10.0.0.1:80")
	other = netip.MustParseAddrPort("[fd00::2]:4000")
)

// An agent and a plugin of two versions meet: what one wrote the other must read.
func TestWhatAnAgentPrintsKeepsItsWords(t *testing.T) {
	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"an event has the token as rules write it, and leaves out what is unknown": {
			&agentapi.Event{Time: noon, Type: agentapi.EventSubflow, Endpoint: "shop/web", Token: 0xabc, Path: "blue", Local: web, Remote: other, SentBytes: 7},
			`{"time":"2026-11-22T12:00:00Z","type":"Subflow","endpoint":"shop/web","token":"0x00000abc","local":"10.0.0.1:80","remote":"[fd00::2]:4000","path":"blue","sentBytes":7}`,
		},
		"an event of lost events has no addresses": {
			&agentapi.Event{Time: noon, Type: agentapi.EventLost, Count: 3}, `{"time":"2026-11-22T12:00:00Z","type":"Lost","count":3}`,
		},
		"a reading has its subflows, the idle ones with their zeros": {
			&agentapi.Reading{Time: noon, Total: 2, Busy: []agentapi.Rate{{Endpoint: "shop/web", Local: web, Remote: other, Backup: true}}},
			`{"time":"2026-11-22T12:00:00Z","total":2,"busy":[{"endpoint":"shop/web","local":"10.0.0.1:80","remote":"[fd00::2]:4000",` +
				`"backup":true,"sentBitsPerSecond":0,"receivedBitsPerSecond":0}]}`,
		},
		"a reading has sums and NICs where they were asked for": {
			&agentapi.Reading{
				Time: noon, Busy: []agentapi.Rate{}, Paths: []agentapi.PathRate{{Path: "blue", Subflows: 2, SentBitsPerSecond: 3}},
				NICs: []agentapi.NICRate{{Name: "eth1", Up: true, SpeedMbit: 1000, SentBitsPerSecond: 4}},
			},
			`{"time":"2026-11-22T12:00:00Z","total":0,"busy":[],"paths":[{"path":"blue","subflows":2,"sentBitsPerSecond":3,"receivedBitsPerSecond":0}],` +
				`"nics":[{"name":"eth1","up":true,"speedMbit":1000,"sentBitsPerSecond":4,"receivedBitsPerSecond":0}]}`,
		},
		"a subflow has its traffic and its limits": {
			&agentapi.Subflow{
				Endpoint: "shop/web", InitiatorToken: 1, Local: web, Remote: other, Ended: true, RTTMicroseconds: 280,
				Sent: agentapi.Traffic{Bytes: 9, Packets: 2, Retransmissions: 1},
				Limits: []agentapi.Limit{{
					Policy: "MPTCPPolicy/shop/spread", Rule: "slow", Direction: v1alpha1.DirectionToEndpoint, BitsPerSecond: 8000,
					Per: "Pod", Asked: "Window", InUse: "Drop", Why: agentapi.WhyShortRTT,
				}},
			},
			`{"endpoint":"shop/web","initiatorToken":"0x00000001","local":"10.0.0.1:80","remote":"[fd00::2]:4000","backup":false,"ended":true,"rttMicroseconds":280,` +
				`"sent":{"bytes":9,"packets":2,"retransmissions":1,"reordered":0},"received":{"bytes":0,"packets":0,"retransmissions":0,"reordered":0},` +
				`"limits":[{"policy":"MPTCPPolicy/shop/spread","rule":"slow","direction":"ToEndpoint","bitsPerSecond":8000,"per":"Pod","asked":"Window","inUse":"Drop","why":"ShortRTT"}]}`,
		},
		"a rule has its counts, also where they are 0": {
			&agentapi.Rule{Endpoint: "shop/web", Name: "#1", Hits: 4}, `{"endpoint":"shop/web","name":"#1","hits":4,"bytes":0,"acted":0}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(test.value)
			require.NoError(t, err)
			require.Equal(t, test.want, string(text))
			read := reflect.New(reflect.TypeOf(test.value).Elem())
			require.NoError(t, json.Unmarshal(text, read.Interface()))
			require.Empty(t, cmp.Diff(test.value, read.Interface(), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })))
		})
	}
}

func TestATokenIsReadInEachFormThatPeopleWrite(t *testing.T) {
	for text, want := range map[string]agentapi.Token{
		"0x00000abc": 0xabc, "0xABC": 0xabc, "2748": 0xabc, "0xffffffff": 0xffffffff, "": 0,
	} {
		token := agentapi.Token(7)
		require.NoError(t, token.UnmarshalText([]byte(text)), text)
		require.Equal(t, want, token, text)
	}
}

func TestATokenThatIsNoneIsRefused(t *testing.T) {
	for _, text := range []string{"abc", "0x1ffffffff", "-1"} {
		var token agentapi.Token
		require.ErrorContains(t, token.UnmarshalText([]byte(text)), text)
	}
}

func TestATokenIsAsWideWhateverItsValue(t *testing.T) {
	require.Equal(t, "0x00000001", agentapi.Token(1).String())
	require.Equal(t, "0xfedcba98", agentapi.Token(0xfedcba98).String())
	require.Empty(t, agentapi.Token(0).String(), "a token that is not known")
}

func TestAReasonIsSaidInWords(t *testing.T) {
	require.Equal(t, "the RTT is too short for a window", agentapi.WhyShortRTT.Text())
	said := map[string]agentapi.Why{}
	for _, why := range []agentapi.Why{
		agentapi.WhyAsked, agentapi.WhyOwnSocket, agentapi.WhyNoSocket, agentapi.WhyNoSYN, agentapi.WhyShortRTT, agentapi.WhyNoRTT,
	} {
		require.NotEmpty(t, why.Text(), why)
		require.Empty(t, said[why.Text()], "%s and another are said alike", why)
		said[why.Text()] = why
	}
	require.Empty(t, agentapi.Why("OfANewerAgent").Text())
}

func TestRatesAndTimesAreOfTheSubflow(t *testing.T) {
	rate := agentapi.Rate{SentBitsPerSecond: 3, ReceivedBitsPerSecond: 4}
	require.Equal(t, uint64(7), rate.BitsPerSecond(), "both directions together")
	subflow := agentapi.Subflow{RTTMicroseconds: 1500}
	require.Equal(t, 1500*time.Microsecond, subflow.RTT())
}

// parsed are the flags that a command has besides --pod, as its command line sets them.
func parsed(t *testing.T, arguments ...string) (agentapi.TraceFlags, *pflag.FlagSet) {
	t.Helper()
	var trace agentapi.TraceFlags
	flags := pflag.NewFlagSet("command", pflag.ContinueOnError)
	flags.String("pod", "", "")
	trace.Add(flags)
	require.NoError(t, flags.Parse(arguments))
	return trace, flags
}

// The plugin hands on to braid-trace what its own command line has of braid-trace's flags.
func TestTraceFlagsThatAreGivenAreHandedOn(t *testing.T) {
	for name, test := range map[string]struct{ arguments, given []string }{
		"none is handed on where none is given":          {[]string{"--pod=web"}, nil},
		"those of the plugin alone stay there":           {[]string{"--pod=web", "--type", "DSS", "--bytes", "10", "--token=0x1"}, []string{"--bytes=10", "--token=0x1", "--type=DSS"}},
		"a default that is given is handed on":           {[]string{"--direction=FromEndpoint"}, []string{"--direction=FromEndpoint"}},
		"numbers are handed on as numbers":               {[]string{"--sequence=4294967295", "--packet=0x10"}, []string{"--packet=16", "--sequence=4294967295"}},
		"the way in and the bound of a file are as well": {[]string{"--path=blue", "--most=5"}, []string{"--most=5", "--path=blue"}},
	} {
		t.Run(name, func(t *testing.T) {
			plugin, flags := parsed(t, test.arguments...)
			given := agentapi.GivenTraceFlags(flags)
			require.Equal(t, test.given, given)
			agent, _ := parsed(t, given...)
			require.Equal(t, plugin, agent, "what the agent understands")
		})
	}
}

func TestAPacketIsASYNOfThePodUnlessToldOtherwise(t *testing.T) {
	trace, flags := parsed(t)
	require.Equal(t, agentapi.TraceFlags{
		Direction: "FromEndpoint", Type: "MPCapable", Sequence: 1000, Acknowledgement: 1000, Bytes: 1000, Limit: 100,
	}, trace)
	for _, packet := range agentapi.TracePackets() {
		require.Regexp(t, `[ ,]`+string(packet)+`(,|$)`, flags.Lookup("type").Usage, "the help names each type")
	}
}
