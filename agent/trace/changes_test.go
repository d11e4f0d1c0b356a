// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
)

func madeFrame(t *testing.T, packet Packet) []byte {
	t.Helper()
	frame, err := packet.Frame()
	require.NoError(t, err)
	return frame
}

func TestChangesAreNamedByTheirFields(t *testing.T) {
	four := Packet{From: netip.MustParseAddrPort("10.0.0.1:1000"), To: netip.MustParseAddrPort("10.0.0.2:80"), Type: v1alpha1.PacketDSS, Bytes: 4}
	six := four
	six.From, six.To = netip.MustParseAddrPort("[fd00::1]:1000"), netip.MustParseAddrPort("[fd00::2]:80")
	for name, test := range map[string]struct {
		packet Packet
		at     int // of the byte that changes
		want   Change
	}{
		"the window":         {four, 14 + 20 + 14, Change{48, "TCP window", "ffff", "feff"}},
		"a port":             {four, 14 + 20 + 3, Change{36, "TCP destination port", "0050", "0051"}},
		"an address of IPv4": {four, 14 + 19, Change{30, "IP destination", "0a000002", "0a000003"}},
		"the hop limit":      {six, 14 + 7, Change{21, "IP hop limit", "40", "41"}},
		"an option":          {four, 14 + 20 + 20 + 3, Change{54, "TCP options", "1e142005000000010000000100000001" + "00040000", "1e142004000000010000000100000001" + "00040000"}},
		"payload":            {four, 14 + 20 + 40, Change{74, "payload", "00000000", "01000000"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := madeFrame(t, test.packet)
			after := append([]byte{}, before...)
			after[test.at] ^= 1
			found := changes(before, after)
			require.Len(t, found, 1)
			require.Equal(t, test.want, found[0])
		})
	}
}

func TestAnUntouchedFrameHasNoChanges(t *testing.T) {
	frame := madeFrame(t, Packet{From: netip.MustParseAddrPort("10.0.0.1:1"), To: netip.MustParseAddrPort("10.0.0.2:2"), Type: v1alpha1.PacketPureACK})
	require.Empty(t, changes(frame, append([]byte{}, frame...)))
}

// An option that was inserted is a longer field, and moves the payload. Both frames are
// short, and padded to the 60 bytes that Ethernet wants.
func TestAFrameThatGrewIsComparedFieldByField(t *testing.T) {
	packet := Packet{From: netip.MustParseAddrPort("10.0.0.1:1"), To: netip.MustParseAddrPort("10.0.0.2:2"), Type: v1alpha1.PacketPureACK}
	before := madeFrame(t, packet)
	packet.Type = v1alpha1.PacketMPPrio
	fields := []string{}
	for _, change := range changes(before, madeFrame(t, packet)) {
		fields = append(fields, change.Field)
	}
	require.Equal(t, []string{"IP length", "IP checksum", "TCP header length", "TCP checksum", "TCP options"}, fields)
}

func TestWhatIsNoSegmentIsComparedAsAWhole(t *testing.T) {
	require.Equal(t, []Change{{Field: "frame", Before: "01", After: "02"}}, changes([]byte{1}, []byte{2}))
}

func TestOutcomesNameWhoDroppedAPacketAndWhereItLeaves(t *testing.T) {
	refused := Step{Program: "from_endpoint", Verdict: Drop, Rules: []RuleHit{{Name: "watch"}, {Name: "refuse", Acted: true}}, Notes: []string{answered}}
	for want, step := range map[string]Step{
		"dropped by own_source": {Program: "own_source", Verdict: Drop},
		"dropped by from_endpoint, rule refuse; answered with a reset, which a replay does not send": refused,
		"leaves by path blue (ens1)":                          {Verdict: Redirect, Path: "blue", NIC: "ens1"},
		"leaves by a path that could not be found out":        {Verdict: Redirect},
		"leaves by ens0, as the cluster network's route says": {Verdict: Pass, Interface: "ens0"},
	} {
		require.Equal(t, want, leaves(step))
	}
}

func TestNamesOfPathsAreThoseOfTheirSlots(t *testing.T) {
	tracer := &Tracer{paths: [8]string{"", "blue"}}
	require.Equal(t, "blue", tracer.pathName(1))
	require.Equal(t, "#0", tracer.pathName(0), "a slot without a name")
	require.Equal(t, "#7", tracer.pathName(7), "a slot that does not exist")
	require.Equal(t, "blue, green", known([]string{"", "blue", "green"}))
	require.Equal(t, "none", known([]string{"", ""}))
}

func TestTheKernelKeepsTheBeginningOfANameAlone(t *testing.T) {
	require.Equal(t, "from_endpoint", kernelName("from_endpoint"))
	require.Equal(t, "attachments_ove", kernelName("attachments_overflow"))
}
