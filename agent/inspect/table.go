// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"unicode/utf8"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/output"
)

// width is what lines of a table keep within.
const width = 100

// lines collects the lines of a table, each cut to the width.
type lines struct{ bytes.Buffer }

func (l *lines) add(format string, arguments ...any) {
	line := []rune(fmt.Sprintf(format, arguments...))
	for len(line) > 0 && line[len(line)-1] == ' ' {
		line = line[:len(line)-1]
	}
	l.WriteString(clip(string(line), width) + "\n")
}

// addPair adds the ends of a subflow, on two lines where they do not fit on one.
func (l *lines) addPair(local, remote netip.AddrPort) {
	line := fmt.Sprintf("    %s -> %s", local, remote)
	if len(line) > width {
		line = fmt.Sprintf("    %s ->\n    %s", local, remote)
	}
	l.WriteString(line + "\n")
}

func (l *lines) writeTo(w io.Writer, what string) error {
	if _, err := l.WriteTo(w); err != nil {
		return fmt.Errorf("writing %s: %w", what, err)
	}
	return nil
}

const subflowFormat = "  %-10s  %-12s  %-6s  %-7s  %-15s  %-15s  %-9s  %-9s"

// WriteSubflows writes a table, grouped by endpoint in the order that they have.
// Pairs with a slash are bytes and packets in the columns SENT and RECEIVED, and
// packets sent and received in those after.
func WriteSubflows(w io.Writer, subflows []agentapi.Subflow) error {
	var table lines
	if len(subflows) == 0 {
		table.add("no subflows")
	}
	for i := range subflows {
		if i == 0 {
			table.add(subflowFormat, "TOKEN", "PATH", "STATE", "RTT", "SENT", "RECEIVED", "RETRANS", "REORDER")
		}
		if i == 0 || subflows[i].Endpoint != subflows[i-1].Endpoint {
			table.add("%s", subflows[i].Endpoint)
		}
		table.addSubflow(&subflows[i])
	}
	return table.writeTo(w, "subflows")
}

func (l *lines) addSubflow(s *agentapi.Subflow) {
	l.add(subflowFormat, tokenText(s.Token, s.InitiatorToken), clip(orDash(s.Carrier()), 12), state(s), output.Duration(s.RTT()),
		trafficText(s.Sent), trafficText(s.Received),
		amount(s.Sent.Retransmissions)+"/"+amount(s.Received.Retransmissions),
		amount(s.Sent.Reordered)+"/"+amount(s.Received.Reordered))
	l.addPair(s.Local, s.Remote)
	if s.StandIn != "" {
		l.add("    instead of path %s, which does not answer", s.Path)
	}
	if s.Incoming != "" {
		l.add("    what it receives comes by path %s", s.Incoming)
	}
	for _, limit := range s.Limits {
		l.addLimit(limit)
	}
}

func state(s *agentapi.Subflow) string {
	switch {
	case s.Ended:
		return "ended"
	case s.Backup:
		return "backup"
	}
	return "active"
}

// tokenText prefers the responder's; rules take either.
func tokenText(token, initiator agentapi.Token) string {
	if token == 0 {
		token = initiator
	}
	return orDash(token.String())
}

// addLimit names the rule on a line of its own where it does not fit on the first.
func (l *lines) addLimit(limit agentapi.Limit) {
	text := fmt.Sprintf("    limit %s %sbit/s per %s; %s",
		limit.Direction, amount(limit.BitsPerSecond), limit.Per, describe(limit.InUse, limit.Why))
	rule := "by rule " + limit.Rule
	switch {
	case limit.Rule == "":
		l.add("%s", text)
	case utf8.RuneCountInString(text)+len("; ")+utf8.RuneCountInString(rule) <= width:
		l.add("%s; %s", text, rule)
	default:
		l.add("%s;", text)
		l.add("      %s", rule)
	}
}

func trafficText(traffic agentapi.Traffic) string {
	return amount(traffic.Bytes) + "B/" + amount(traffic.Packets)
}

const ruleFormat = "  %-26s  %-38s  %-8s  %-8s  %-8s"

// WriteRules writes a table, grouped by endpoint in the order that they have.
func WriteRules(w io.Writer, rules []agentapi.Rule) error {
	var table lines
	if len(rules) == 0 {
		table.add("no rules")
	}
	for i := range rules {
		if i == 0 {
			table.add(ruleFormat, "RULE", "POLICY", "HITS", "BYTES", "ACTED")
		}
		rule := &rules[i]
		if i == 0 || rule.Endpoint != rules[i-1].Endpoint {
			table.add("%s", rule.Endpoint)
		}
		table.add(ruleFormat, clip(rule.Name, 26), clip(orDash(rule.Policy), 38),
			amount(rule.Hits), amount(rule.Bytes)+"B", amount(rule.Acted))
	}
	return table.writeTo(w, "rules")
}

const (
	eventFormat = "%-12s  %-10s  %-10s  %-12s  %-46s"
	timeFormat  = "15:04:05.000"
)

// EventWriter writes a table of events as they come.
type EventWriter struct {
	w      io.Writer
	headed bool
}

// NewEventWriter writes to w.
func NewEventWriter(w io.Writer) *EventWriter { return &EventWriter{w: w} }

// Write writes one more event, in local time.
func (e *EventWriter) Write(event agentapi.Event) error {
	var table lines
	if !e.headed {
		table.add(eventFormat, "TIME", "TYPE", "TOKEN", "PATH", "ENDPOINT")
		e.headed = true
	}
	when := event.Time.Local().Format(timeFormat)
	if event.Type == agentapi.EventLost {
		table.add("%-12s  %s: %d events were not read in time", when, event.Type, event.Count)
		return table.writeTo(e.w, "events")
	}
	table.add(eventFormat, when, event.Type, tokenText(event.Token, event.InitiatorToken),
		clip(orDash(event.Path), 12), clip(event.Endpoint, 46))
	table.addPair(event.Local, event.Remote)
	return table.writeTo(e.w, "events")
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// clip cuts a text that is too long, and shows that it did.
func clip(text string, limit int) string {
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	return string([]rune(text)[:limit-1]) + "…"
}

// amount writes a number with at most four digits and a decimal unit.
func amount(value uint64) string {
	if value < 10000 {
		return strconv.FormatUint(value, 10)
	}
	scaled := float64(value)
	for _, unit := range "kMGTPE" {
		scaled /= 1000
		switch {
		case scaled < 99.95:
			return strconv.FormatFloat(scaled, 'f', 1, 64) + string(unit)
		case scaled < 999.5:
			return strconv.FormatFloat(scaled, 'f', 0, 64) + string(unit)
		}
	}
	return strconv.FormatUint(value, 10) // not reached: 2^64 is 18.4E
}

// directionName is how the API calls a direction.
func directionName(toEndpoint bool) v1alpha1.Direction {
	if toEndpoint {
		return v1alpha1.DirectionToEndpoint
	}
	return v1alpha1.DirectionFromEndpoint
}
