// SPDX-License-Identifier: Apache-2.0

package mptcpnl

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

func attribute(kind uint16, data ...byte) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: data}
}

func encode(t testing.TB, attributes ...netlink.Attribute) []byte {
	t.Helper()
	data, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func token(value uint32) netlink.Attribute {
	return attribute(eventToken, binary.NativeEndian.AppendUint32(nil, value)...)
}

func subflowAttributes() []netlink.Attribute {
	return []netlink.Attribute{
		token(7), attribute(eventLocalID, 1), attribute(eventRemoteID, 2),
		attribute(eventSourceIPv4, 10, 0, 0, 1), attribute(eventDestinationIPv4, 10, 0, 0, 2),
		attribute(eventSourcePort, 0x12, 0x34), attribute(eventDestinationPort, 0x00, 0x50),
		attribute(eventBackup, 1), attribute(eventError, byte(unix.ECONNRESET)),
	}
}

func TestEventsThatAreNotUnderstoodAreIgnored(t *testing.T) {
	whole := subflowAttributes()
	tests := map[string]struct {
		command    uint8
		attributes []netlink.Attribute
	}{
		"an event of a newer kernel":       {99, whole},
		"an event without attributes":      {uint8(SubflowClosed), nil},
		"a subflow without a token":        {uint8(SubflowClosed), whole[1:]},
		"a subflow without ports":          {uint8(SubflowClosed), whole[:5]},
		"a token of two bytes":             {uint8(ConnectionClosed), []netlink.Attribute{attribute(eventToken, 1, 2)}},
		"an address of five bytes":         {uint8(SubflowClosed), append(subflowAttributes(), attribute(eventSourceIPv4, 1, 2, 3, 4, 5))},
		"an announcement without address":  {uint8(AddressAnnounced), []netlink.Attribute{token(7), attribute(eventRemoteID, 2)}},
		"a listener without a port":        {uint8(ListenerCreated), []netlink.Attribute{attribute(eventSourceIPv4, 1, 2, 3, 4)}},
		"a removed address without its id": {uint8(AddressRemoved), []netlink.Attribute{token(7)}},
		"an event of kind 0":               {0, []netlink.Attribute{token(7)}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if event, ok := ParseEvent(test.command, encode(t, test.attributes...)); ok {
				t.Errorf("it was understood as %+v", event)
			}
		})
	}
	if _, ok := ParseEvent(uint8(SubflowClosed), []byte{1, 2, 3}); ok {
		t.Error("three stray bytes were understood")
	}
}

func TestUnknownAttributesAreIgnored(t *testing.T) {
	data := encode(t, append(subflowAttributes(), attribute(40, 1, 2, 3), attribute(8191))...)
	event, ok := ParseEvent(uint8(SubflowClosed), data)
	want := SubflowEvent{
		Kind: SubflowClosed, Token: 7, LocalID: 1, RemoteID: 2, Backup: true, Error: unix.ECONNRESET,
		Local: netip.MustParseAddrPort("10.0.0.1:4660"), Remote: netip.MustParseAddrPort("10.0.0.2:80"),
	}
	if !ok || event != want {
		t.Errorf("the event is %+v, want %+v", event, want)
	}
}

func TestTheRoleIsKnownFromOldAndNewKernels(t *testing.T) {
	tests := map[string]struct {
		attribute netlink.Attribute
		server    bool
	}{
		"attribute server-side":     {attribute(eventServerSide, 1), true},
		"attribute server-side, no": {attribute(eventServerSide, 0), false},
		"flag":                      {attribute(eventFlags, binary.NativeEndian.AppendUint16(nil, flagServerSide)...), true},
		"another flag":              {attribute(eventFlags, binary.NativeEndian.AppendUint16(nil, flagDenyJoinInitial)...), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			event, ok := ParseEvent(uint8(ConnectionCreated), encode(t, append(subflowAttributes(), test.attribute)...))
			if connection, _ := event.(ConnectionEvent); !ok || connection.ServerSide != test.server {
				t.Errorf("the event is %+v", event)
			}
		})
	}
}

func FuzzParseEvent(f *testing.F) {
	for _, command := range []Kind{
		0, ConnectionCreated, ConnectionEstablished, ConnectionClosed, AddressAnnounced, AddressRemoved,
		SubflowEstablished, SubflowClosed, SubflowPriority, ListenerCreated, ListenerClosed, 99,
	} {
		f.Add(uint8(command), encode(f, subflowAttributes()...))
	}
	f.Add(uint8(SubflowClosed), encode(f, token(1), attribute(eventSourceIPv6, make([]byte, 16)...)))
	f.Add(uint8(ConnectionClosed), []byte{0xff, 0xff, 1, 0})
	f.Fuzz(func(t *testing.T, command uint8, data []byte) {
		before := bytes.Clone(data)
		event, ok := ParseEvent(command, data)
		if !bytes.Equal(before, data) {
			t.Error("parsing changed the message")
		}
		if !ok {
			return
		}
		if subflow, is := event.(SubflowEvent); is && !(subflow.Local.IsValid() && subflow.Remote.IsValid()) {
			t.Errorf("a subflow without addresses: %+v", subflow)
		}
		if listener, is := event.(ListenerEvent); is && !listener.Address.IsValid() {
			t.Errorf("a listener without an address: %+v", listener)
		}
	})
}

func FuzzParseSocket(f *testing.F) {
	message := make([]byte, responseLength)
	message[0], message[1] = unix.AF_INET, stateEstablished
	nested := encode(f, attribute(subflowTokenLocal, 1, 0, 0, 0), attribute(subflowFlags, 3, 0, 0, 0))
	ulp := encode(f, attribute(attributeULPMPTCP, nested...))
	f.Add(append(message, encode(f, attribute(attributeULP, ulp...), attribute(attributeInfo, make([]byte, 80)...))...))
	f.Add(message)
	f.Add([]byte{unix.AF_INET6})
	f.Fuzz(func(t *testing.T, data []byte) {
		s, ok := parseSocket(data)
		if !ok {
			return
		}
		if !s.local.Addr().IsValid() || !s.remote.Addr().IsValid() {
			t.Errorf("a socket without addresses: %+v", s)
		}
		s.connection()
		s.subflow()
	})
}

func FuzzFindEndpoint(f *testing.F) {
	inner := encode(f, attribute(addressID, 3), attribute(addressIPv4, 10, 0, 0, 1), attribute(addressPort, 1, 2))
	f.Add(encode(f, attribute(attributeAddress, inner...)))
	f.Add([]byte{4, 0, 1, 128})
	f.Fuzz(func(_ *testing.T, data []byte) {
		if endpoint, ok := findEndpoint(data); ok {
			_ = endpoint.String()
		}
	})
}

func TestWhatWasSentAgainIsToldApartFromWhatWasSent(t *testing.T) {
	info := make([]byte, tcpInfoBytesEnd)
	binary.NativeEndian.PutUint64(info[tcpInfoBytesSent:], 5000)
	binary.NativeEndian.PutUint64(info[tcpInfoBytesRepeated:], 1400)
	if read := tcpInfo(info); read.SentBytes != 3600 || read.RepeatedBytes != 1400 {
		t.Errorf("%d bytes were sent and %d sent again, not 3600 and 1400", read.SentBytes, read.RepeatedBytes)
	}
	if read := tcpInfo(info[:tcpInfoBytesRepeated]); read.RepeatedBytes != 0 {
		t.Errorf("a kernel that does not count it tells of %d bytes that were sent again", read.RepeatedBytes)
	}
}
