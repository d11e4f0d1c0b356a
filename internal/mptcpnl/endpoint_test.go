// SPDX-License-Identifier: Apache-2.0

package mptcpnl

import (
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// endpoints draws any endpoint that a message can carry.
func endpoints(t *rapid.T) Endpoint {
	e := Endpoint{
		ID:        rapid.Uint8().Draw(t, "id"),
		Port:      rapid.Uint16().Draw(t, "port"),
		Flags:     Flags(rapid.Uint32().Draw(t, "flags")),
		Interface: rapid.Int32().Draw(t, "interface"),
	}
	if size := rapid.SampledFrom([]int{0, 4, 16}).Draw(t, "size of the address"); size > 0 {
		e.Address, _ = netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "address"))
		e.Address = e.Address.Unmap() // the kernel knows IPv4 as such
	}
	return e
}

func TestWhatIsSentOfAnEndpointIsReadAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := endpoints(t)
		encoder := netlink.NewAttributeEncoder()
		want.attribute(attributeAddress)(encoder)
		data, err := encoder.Encode()
		require.NoError(t, err)
		got, found := findEndpoint(data)
		require.True(t, found)
		require.Equal(t, want, got)
	})
}

func TestAMessageWithoutAnEndpointHasNone(t *testing.T) {
	for name, data := range map[string][]byte{
		"nothing":             nil,
		"another attribute":   encode(t, token(7)),
		"one that is cut off": {40, 0, attributeAddress, 0x80, 5},
	} {
		_, found := findEndpoint(data)
		require.False(t, found, name)
	}
}

func TestEndpointsArePrintedAsByTheIPCommand(t *testing.T) {
	for want, endpoint := range map[string]Endpoint{
		"id 0":                               {},
		"10.0.0.1 id 3 subflow backup":       {ID: 3, Address: netip.MustParseAddr("10.0.0.1"), Flags: FlagSubflow | FlagBackup},
		"fd00::1 id 4 port 6001 signal":      {ID: 4, Address: netip.MustParseAddr("fd00::1"), Port: 6001, Flags: FlagSignal},
		"id 5 fullmesh implicit laminar":     {ID: 5, Flags: FlagFullmesh | FlagImplicit | FlagLaminar},
		"10.0.0.2 id 6 port 80":              {ID: 6, Address: netip.MustParseAddr("10.0.0.2"), Port: 80},
		"10.0.0.3 id 7 signal subflow":       {ID: 7, Address: netip.MustParseAddr("10.0.0.3"), Flags: FlagSignal | FlagSubflow},
		"10.0.0.4 id 8 port 9 signal backup": {ID: 8, Address: netip.MustParseAddr("10.0.0.4"), Port: 9, Flags: FlagSignal | FlagBackup},
	} {
		require.Equal(t, want, endpoint.String())
	}
}
