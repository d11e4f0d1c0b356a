// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/endpoint"
)

const (
	eventConnection = 1
	eventSubflow    = 2
	eventEnd        = 3
)

type event struct {
	endpoint.FromEndpointEvent
	raw []byte
}

// events begins to listen; what it returns gives the events since.
func (h *host) events(t testing.TB) func() []event {
	t.Helper()
	reader, err := ringbuf.NewReader(h.maps.Events)
	require.NoError(t, err)
	t.Cleanup(func() { reader.Close() })
	return func() (events []event) {
		t.Helper()
		for {
			reader.SetDeadline(time.Now().Add(50 * time.Millisecond))
			record, err := reader.Read()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return events
			}
			require.NoError(t, err)
			e := event{raw: record.RawSample}
			require.NoError(t, binary.Read(bytes.NewReader(record.RawSample), binary.NativeEndian, &e.FromEndpointEvent))
			events = append(events, e)
		}
	}
}

// stripped is the context without the options' own numbers, which are the packet's.
func stripped(c endpoint.FromEndpointContext) endpoint.FromEndpointContext { return c }

func reporting() *endpoint.FromEndpointChain {
	return build(rule{do: []action{{Kind: actionReportConnection}, {Kind: actionReportSubflow}}})
}

func TestReportsComeOncePerConnectionAndSubflow(t *testing.T) {
	h := newHost(t)
	reader := h.events(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, reporting())
		second := e.port(41000)
		h.begin(t, e)
		h.join(t, second, tokenOf(remoteKey))
		for range 30 {
			h.sends(t, e.out().data(1))
			h.receives(t, second.in())
		}
		events := reader()
		if len(events) != 3 {
			t.Fatalf("there are %d events: %+v", len(events), events)
		}
		for i, expected := range []struct {
			of   ends
			kind uint32
		}{{e, eventConnection}, {e, eventSubflow}, {second, eventSubflow}} {
			got := events[i]
			if got.Type != expected.kind || got.Key != keyOf(expected.of) || got.Path != blue || got.Role != 1 || got.Time == 0 {
				t.Errorf("event %d is %+v", i, got.FromEndpointEvent)
			}
			if got.Token != tokenOf(remoteKey) || got.InitiatorToken != tokenOf(localKey) {
				t.Errorf("event %d has the tokens %#x and %#x", i, got.Token, got.InitiatorToken)
			}
		}
	})
}

// A report that a SYN asks for waits until the answer has told path and token.
func TestReportsWaitForWhatTheyTell(t *testing.T) {
	h := newHost(t)
	reader := h.events(t)
	e := endsOf[4]
	h.use(t, build(rule{when: is(types(typeSYN)), do: []action{{Kind: actionReportSubflow}}, directions: 1 << fromEndpoint}))
	h.sends(t, e.out().at(1000).flagged(syn).carrying(usual(capable)))
	if events := reader(); len(events) != 0 {
		t.Errorf("the SYN was reported at once: %+v", events)
	}
	h.receives(t, e.in().at(5000).flagged(syn|ack).carrying(usual(capableWithKey(remoteKey))))
	h.sends(t, e.out().carrying(capableWithBothKeys(localKey, remoteKey)))
	if events := reader(); len(events) != 1 || events[0].Token != tokenOf(remoteKey) || events[0].Path != blue {
		t.Errorf("the events are %+v", events)
	}
}

func TestARefusedSubflowIsReportedAtOnce(t *testing.T) {
	h := newHost(t)
	reader := h.events(t)
	e := endsOf[4]
	h.use(t, build(rule{when: is(types(typeJoin)), do: []action{{Kind: actionReportSubflow}, drop}}))
	h.expect(t, e, e.out().at(1000).flagged(syn).carrying(usual(join(77, 0))), true, "the join")
	if events := reader(); len(events) != 1 || events[0].Token != 77 {
		t.Errorf("the events are %+v", events)
	}
}

func TestTheEndOfAReportedSubflow(t *testing.T) {
	h := newHost(t)
	reader := h.events(t)
	for name, end := range map[string]func(e ends){
		"FINs": func(e ends) {
			h.sends(t, e.out().at(1101).flagged(fin|ack))
			h.receives(t, e.in().flagged(fin|ack))
			h.receives(t, e.in().flagged(fin|ack))
		},
		"a reset": func(e ends) {
			h.receives(t, e.in().flagged(rst))
			h.receives(t, e.in().flagged(rst))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := endsOf[4]
			h.forget(t)
			h.use(t, build(rule{when: is(types(typeSYN)), do: []action{{Kind: actionReportSubflow}}}))
			h.begin(t, e)
			h.sends(t, e.out().data(100))
			if events := reader(); len(events) != 1 {
				t.Fatalf("the events are %+v", events)
			}
			end(e)
			events := reader()
			if len(events) != 1 || events[0].Type != eventEnd || events[0].Sent[0] != 100 {
				t.Errorf("the events are %+v", events)
			}
		})
	}
}

func TestWhatIsNoConnectionIsNotReportedAsOne(t *testing.T) {
	h := newHost(t)
	reader := h.events(t)
	e := endsOf[4]
	h.use(t, build(rule{do: []action{{Kind: actionReportConnection}}}))
	h.sends(t, e.out().at(1000).flagged(syn).carrying(usual(nil)))
	h.receives(t, e.in().at(5000).flagged(syn|ack).carrying(usual(nil)))
	for range 20 {
		h.sends(t, e.out())
	}
	if events := reader(); len(events) != 0 {
		t.Errorf("the events are %+v", events)
	}
}

// A join that is refused before anything is known of it begins and ends with one
// packet.
func TestASubflowBeginsBeforeItEnds(t *testing.T) {
	h := newHost(t)
	reader := h.events(t)
	e := endsOf[4]
	h.use(t, build(rule{do: []action{{Kind: actionReportSubflow}}}))
	h.sends(t, e.out().at(1000).flagged(syn).carrying(usual(join(77, 0))))
	h.receives(t, e.in().flagged(rst|ack))
	events := reader()
	if len(events) != 2 || events[0].Type == eventEnd || events[1].Type != eventEnd {
		t.Errorf("the events are %+v", events)
	}
}

// The number of a rule counts in its own chain.
func TestTheEndIsReportedForTheRulesThatAreThere(t *testing.T) {
	const noRule = 0xff
	h := newHost(t)
	reader := h.events(t)
	report, other := rule{do: []action{{Kind: actionReportSubflow}}}, rule{do: []action{{Kind: actionRecord}}}
	for _, c := range []struct {
		name  string
		after []rule
		rule  uint8
	}{
		{"the rule is the second one now", []rule{other, report}, 1},
		{"no rule reports any more", []rule{other}, noRule},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := endsOf[4]
			h.forget(t)
			h.use(t, build(report))
			h.begin(t, e)
			h.sends(t, e.out().data(100))
			if events := reader(); len(events) != 1 || events[0].Rule != 0 {
				t.Fatalf("the events are %+v", events)
			}
			h.use(t, build(c.after...))
			h.sends(t, e.out().data(100))
			h.receives(t, e.in().flagged(rst))
			if events := reader(); len(events) != 1 || events[0].Type != eventEnd || events[0].Rule != c.rule {
				t.Errorf("the events are %+v", events)
			}
		})
	}
}
