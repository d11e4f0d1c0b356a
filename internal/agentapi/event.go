// SPDX-License-Identifier: Apache-2.0

// Package agentapi is what travels from an agent to `kubectl braid` and to the debug
// commands: what `braid-agent` and `braid-trace` print as JSON, and the flags that
// they take from the plugin. It reads no map and opens no socket.
package agentapi

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"
)

// EventType is what an event reports.
type EventType string

const (
	// EventConnection is a connection that began, or was met while it lasts.
	EventConnection EventType = "Connection"
	// EventSubflow is a subflow that began, or was met while it lasts.
	EventSubflow EventType = "Subflow"
	// EventSubflowEnd is the end of a subflow that was reported.
	EventSubflowEnd EventType = "SubflowEnd"
	// EventLost stands for events that came faster than they were read.
	EventLost EventType = "Lost"
)

// Event is one report of a rule, a line of `braid-agent events`. It has tokens, never
// keys.
type Event struct {
	// Time is when the packet was seen that caused it.
	Time time.Time `json:"time"`
	Type EventType `json:"type"`
	// Endpoint is the pod, as namespace/name.
	Endpoint string `json:"endpoint,omitempty"`
	// Token is the responder's, InitiatorToken the initiator's; 0 while unknown.
	Token          Token `json:"token,omitempty"`
	InitiatorToken Token `json:"initiatorToken,omitempty"`
	// Local is the endpoint's end of the subflow.
	Local  netip.AddrPort `json:"local,omitzero"`
	Remote netip.AddrPort `json:"remote,omitzero"`
	// Path is its name; empty while it is not known.
	Path string `json:"path,omitempty"`
	// Policy and Rule are those that asked for the report.
	Policy string `json:"policy,omitempty"`
	Rule   string `json:"rule,omitempty"`
	// SentBytes and ReceivedBytes are what the endpoint sent and received on the
	// subflow so far, repetitions left out.
	SentBytes     uint64 `json:"sentBytes,omitempty"`
	ReceivedBytes uint64 `json:"receivedBytes,omitempty"`
	// Count is how many events an event of EventLost stands for.
	Count uint64 `json:"count,omitempty"`
}

// Token names a connection, as in rules: 0x and eight hexadecimal digits.
type Token uint32

// String is empty for a token that is not known.
func (t Token) String() string {
	if t == 0 {
		return ""
	}
	return fmt.Sprintf("0x%08x", uint32(t))
}

// MarshalText implements encoding.TextMarshaler.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Token) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*t = 0
		return nil
	}
	value, err := strconv.ParseUint(string(text), 0, 32)
	if err != nil {
		return fmt.Errorf("reading token %q: %w", text, err)
	}
	*t = Token(value)
	return nil
}
