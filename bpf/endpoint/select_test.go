// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"net/netip"
	"testing"

	"braid.dev/braid/internal/testutil"
)

const (
	localKey  = 0x1122334455667788
	remoteKey = 0x99aabbccddeeff00
)

// begin is the handshake of an MPTCP connection that the endpoint opens: its
// token is that of the peer's key.
func (h *host) begin(t testutil.TB, e ends) {
	t.Helper()
	h.sends(t, e.out().at(1000).flagged(syn).carrying(usual(capable)))
	h.receives(t, e.in().at(5000).answering(1001).flagged(syn|ack).carrying(usual(capableWithKey(remoteKey))))
	h.sends(t, e.out().carrying(timestamps(2, 1), capableWithBothKeys(localKey, remoteKey)))
}

// join is the handshake of a further subflow.
func (h *host) join(t testutil.TB, e ends, token uint32) {
	t.Helper()
	h.sends(t, e.out().at(1000).flagged(syn).carrying(usual(join(token, 0))))
	h.receives(t, e.in().at(5000).answering(1001).flagged(syn|ack).carrying(usual(joinAnswer())))
	h.sends(t, e.out().carrying(timestamps(2, 1), joinThird()))
}

// dropsOf tells which of the segments a chain drops.
func (h *host) expect(t *testing.T, e ends, s segment, expected bool, what string) {
	t.Helper()
	if got := h.passes(t, e, s) == dropped; got != expected {
		t.Errorf("%s: dropped %t", what, got)
	}
}

func cidr(a netip.Addr, bits4, bits6 int) string {
	if a.Is4() {
		return netip.PrefixFrom(a, bits4).Masked().String()
	}
	return netip.PrefixFrom(a, bits6).Masked().String()
}

// What is decided by addresses, ports and direction, for both directions.
func TestSelectorsOfASubflow(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		local, remote := e.local.Addr(), e.remote.Addr()
		for name, c := range map[string]struct {
			when    selector
			out, in bool
		}{
			"anything":                             {selector{Kind: selectAnything}, true, true},
			"an unknown kind":                      {selector{Kind: 31}, false, false},
			"an unknown kind of the packet":        {selector{Kind: 99}, false, false},
			"the local address":                    {prefix(selectLocalAddress, cidr(local, 32, 128)), true, true},
			"another local address":                {prefix(selectLocalAddress, cidr(remote, 32, 128)), false, false},
			"the remote address's range":           {prefix(selectRemoteAddress, cidr(remote, 24, 64)), true, true},
			"another remote range":                 {prefix(selectRemoteAddress, cidr(local, 24, 64)), false, false},
			"the source's range":                   {prefix(selectSourceAddress, cidr(local, 24, 48)), true, false},
			"the destination's range":              {prefix(selectDestinationAddress, cidr(local, 24, 48)), false, true},
			"every address of the family":          {prefix(selectSourceAddress, cidr(local, 0, 0)), true, true},
			"the local port":                       {port(selectLocalPort, 40000), true, true},
			"another local port":                   {port(selectLocalPort, 80), false, false},
			"the remote port":                      {port(selectRemotePort, 80), true, true},
			"a range that ends at the remote port": {within(selectRemotePort, 79, 80), true, true},
			"a range that ends before it":          {within(selectRemotePort, 1, 79), false, false},
			"a range that begins at it":            {within(selectRemotePort, 80, 90), true, true},
			"a range that begins behind it":        {within(selectRemotePort, 81, 65535), false, false},
			"the source port":                      {port(selectSourcePort, 40000), true, false},
			"the destination port":                 {port(selectDestinationPort, 40000), false, true},
			"what the endpoint sends":              {direction(fromEndpoint), true, false},
			"what it receives":                     {direction(toEndpoint), false, true},
			"what passes in any direction":         {selector{Kind: selectDirection, Mask: 3}, true, true},
		} {
			t.Run(name, func(t *testing.T) {
				h.forget(t)
				h.use(t, dropping(is(c.when)))
				h.expect(t, e, e.out(), c.out, "out")
				h.expect(t, e, e.in(), c.in, "in")
				h.forget(t)
				negated := c.when
				known := negated.Kind != 31 && negated.Kind != 99
				h.use(t, dropping(not(negated)))
				h.expect(t, e, e.out(), known && !c.out, "out, negated")
				h.expect(t, e, e.in(), known && !c.in, "in, negated")
			})
		}
	})
}

func TestAddressesOfOneFamilyAreNotThoseOfTheOther(t *testing.T) {
	h := newHost(t)
	h.use(t, dropping(is(prefix(selectSourceAddress, "0.0.0.0/0"))))
	h.expect(t, endsOf[4], endsOf[4].out(), true, "IPv4")
	h.expect(t, endsOf[6], endsOf[6].out(), false, "IPv6")
}

// packetsOfAllTypes has packets by name and the types that they are of.
func packetsOfAllTypes(e ends) map[string]struct {
	segment segment
	types   uint32
} {
	stamps := timestamps(5, 4)
	return map[string]struct {
		segment segment
		types   uint32
	}{
		"SYN":                        {e.out().at(1000).flagged(syn).carrying(usual(nil)), typeSYN},
		"SYN/ACK":                    {e.out().flagged(syn | ack).carrying(usual(nil)), typeSYN},
		"SYN with MP_CAPABLE":        {e.out().at(1000).flagged(syn).carrying(usual(capable)), typeSYN | typeCapable},
		"SYN with MP_JOIN":           {e.out().at(1000).flagged(syn).carrying(usual(join(9, 0))), typeSYN | typeJoin},
		"ACK with MP_CAPABLE":        {e.out().carrying(stamps, capableWithBothKeys(1, 2)), typePureACK | typeCapable},
		"ACK with MP_JOIN":           {e.out().carrying(stamps, joinThird()), typePureACK | typeJoin},
		"data with MP_CAPABLE":       {e.out().carrying(stamps, capableWithData(1, 2, 9)).data(9), typeData | typeCapable},
		"data without options":       {e.out().data(9), typeData},
		"data with DSS":              {e.out().carrying(stamps, mapping(1, 1, 9)).data(9), typeData | typeDSS | typeDataACK},
		"data with DSS and no ACK":   {e.out().carrying(stamps, shortMapping(1, 1, 9)).data(9), typeData | typeDSS},
		"data ACK":                   {e.out().carrying(stamps, dataAck()), typePureACK | typeDSS | typeDataACK},
		"pure ACK":                   {e.out().carrying(stamps), typePureACK},
		"pure ACK without options":   {e.out(), typePureACK},
		"ADD_ADDR":                   {e.out().carrying(stamps, addAddress(0)), typePureACK | typeAddAddress},
		"ADD_ADDR's echo":            {e.out().carrying(stamps, addAddress(1)), typePureACK | typeAddAddressEcho},
		"echo beside a data ACK":     {e.out().carrying(stamps, dataAck(), addAddress(1)), typePureACK | typeDSS | typeDataACK | typeAddAddressEcho},
		"REMOVE_ADDR":                {e.out().carrying(stamps, removeAddress), typePureACK | typeRemoveAddress},
		"MP_PRIO":                    {e.out().carrying(stamps, priority(1)), typePureACK | typePriority},
		"MP_PRIO behind a data ACK":  {e.out().carrying(stamps, dataAck(), priority(1)), typePureACK | typeDSS | typeDataACK | typePriority},
		"MP_FAIL":                    {e.out().carrying(stamps, failed), typePureACK | typeFail},
		"FASTCLOSE":                  {e.out().carrying(stamps, fastClose), typePureACK | typeFastClose},
		"reset with FASTCLOSE":       {e.out().flagged(rst | ack).carrying(fastClose), typeReset | typeFastClose},
		"reset":                      {e.out().flagged(rst), typeReset},
		"FIN":                        {e.out().flagged(fin | ack).carrying(stamps), typeFIN},
		"FIN with data":              {e.out().flagged(fin | ack).data(3), typeFIN | typeData},
		"no flags at all":            {e.out().flagged(0), 0},
		"SACK-full ACK":              {e.out().carrying(stamps, sack(3)), typePureACK},
		"SACK and a data ACK":        {e.out().carrying(stamps, sack(1), dataAck()), typePureACK | typeDSS | typeDataACK},
		"DSS before timestamps":      {e.out().carrying(dataAck(), stamps), typePureACK | typeDSS | typeDataACK},
		"DSS behind the end":         {e.out().carrying(endOfOptions, nop, nop, nop, dataAck()), typePureACK},
		"an option that is too long": {e.out().carrying(nop, nop, []byte{30, 40, 2 << 4, 1}), typePureACK},
		"an option without a length": {e.out().carrying(nop, nop, nop, []byte{30}), typePureACK},
		"an option of length 0":      {e.out().carrying([]byte{30, 0, 2 << 4, 1}, dataAck()), typePureACK},
		"a DSS that is too short":    {e.out().carrying(stamps, []byte{30, 8, 2 << 4, 0xf, 0, 0, 0, 0}), typePureACK},
		"an unknown subtype":         {e.out().carrying(stamps, []byte{30, 4, 0xe << 4, 0}), typePureACK},
	}
}

func TestPacketTypes(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		for bit := uint32(typeSYN); bit <= typeFIN; bit <<= 1 {
			h.use(t, dropping(is(types(bit))))
			for name, c := range packetsOfAllTypes(e) {
				h.forget(t)
				h.expect(t, e, c.segment, c.types&bit != 0, name)
				back := c.segment.with(func(s *segment) { s.from, s.to = s.to, s.from })
				h.expect(t, e, back, c.types&bit != 0, name+", received")
			}
		}
	})
}

func TestATypeIsOneOfSeveral(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, dropping(is(types(typeAddAddress|typeFIN))))
	h.expect(t, e, e.out().flagged(fin|ack), true, "FIN")
	h.expect(t, e, e.out().carrying(addAddress(0)), true, "ADD_ADDR")
	h.expect(t, e, e.out(), false, "pure ACK")
}

func TestOptionsAreFoundInEveryOrder(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, dropping(is(types(typeRemoveAddress))))
	parts := [][]byte{timestamps(1, 2), removeAddress, sack(1), nop}
	var try func(done, left [][]byte)
	try = func(done, left [][]byte) {
		if len(left) == 0 {
			h.expect(t, e, e.out().carrying(done...), true, "an order")
		}
		for i := range left {
			rest := append(append([][]byte{}, left[:i]...), left[i+1:]...)
			try(append(append([][]byte{}, done...), left[i]), rest)
		}
	}
	try(nil, parts)
}

func TestThePathIsThatOfThePeersPackets(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, dropping(is(path(green))))
		h.expect(t, e, e.out(), false, "before any answer")
		if h.receivesBy(t, blue, e.in()) != next {
			t.Error("a packet on blue was dropped")
		}
		h.expect(t, e, e.out(), false, "on blue")
		if h.receivesBy(t, green, e.in()) != dropped {
			t.Error("a packet on green was not dropped")
		}
		h.expect(t, e, e.out(), true, "after a move to green")
		h.receivesBy(t, blue, e.in())
		h.expect(t, e, e.out(), false, "back on blue")
	})
}

func TestNobodyIsOnAPathThatIsNotKnownYet(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, dropping(not(path(green))))
	h.expect(t, e, e.out(), false, "not green, but where")
	h.receivesBy(t, blue, e.in())
	h.expect(t, e, e.out(), true, "on blue")
}

func TestSubflowsMoveWhenTheyConcernNobodyYet(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, dropping(all(is(path(green)), is(direction(fromEndpoint)))))
	for range 20 {
		h.receivesBy(t, blue, e.in())
		h.expect(t, e, e.out(), false, "on blue")
	}
	h.receivesBy(t, green, e.in())
	h.expect(t, e, e.out(), true, "on green")
}

func TestBackupsAreThoseThatSaySo(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		for _, backup := range []uint32{0, 1} {
			h.forget(t)
			h.use(t, dropping(all(is(selector{Kind: selectBackup, Mask: backup}), is(types(typeData)))))
			data := e.out().carrying(timestamps(3, 3), mapping(1, 1, 9)).data(9)
			h.join(t, e, 77)
			h.expect(t, e, data, backup == 0, "at first")
			h.receives(t, e.in().carrying(timestamps(4, 3), priority(1)))
			h.expect(t, e, data, backup == 1, "after MP_PRIO")
			h.receives(t, e.in().carrying(timestamps(4, 3), priority(0)))
			h.expect(t, e, data, backup == 0, "after MP_PRIO without B")
			h.forget(t)
			h.sends(t, e.out().at(1000).flagged(syn).carrying(usual(join(77, 1))))
			h.expect(t, e, data, backup == 1, "joined as a backup")
		}
	})
}

func TestMPPrioEndsABackupThatNoRuleConcernsAnyMore(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, dropping(all(is(path(green)), is(selector{Kind: selectBackup, Mask: 1}), is(types(typeData)))))
		h.join(t, e, 77)
		h.receivesBy(t, green, e.in().carrying(timestamps(4, 3), priority(1)))
		for i := range uint32(20) {
			h.receivesBy(t, blue, e.in().carrying(timestamps(5+i, 4+i), dataAck()))
		}
		if backup := h.mustSubflow(t, e).Backup; backup == 0 {
			t.Error("it is no backup, though no MP_PRIO has ended that")
		}
		h.receivesBy(t, blue, e.in().carrying(timestamps(30, 29), priority(0)))
		if backup := h.mustSubflow(t, e).Backup; backup != 0 {
			t.Errorf("after MP_PRIO without B it is still a backup, of directions %b", backup)
		}
	})
}

func TestSequencesOfTheSubflowCountFromItsBeginning(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, dropping(is(within(selectSubflowSequence, 100, 199))))
		h.begin(t, e)
		for at, expected := range map[uint32]bool{0: false, 99: false, 100: true, 150: true, 199: true, 200: false} {
			h.expect(t, e, e.out().at(1001+at).data(1), expected, "out")
			h.expect(t, e, e.in().at(5001+at).data(1), expected, "in")
			h.expect(t, e, e.in().at(5001+at), false, "without data")
		}
	})
}

func TestSequencesGoOnBeyond32Bits(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	const far = 5 << 30
	h.use(t, dropping(is(within(selectSubflowSequence, far, far+9))))
	h.begin(t, e)
	at := uint32(1001)
	for range 5 * 1024 * 1024 / 60 / 16 {
		at += 60 * 1024 * 16
		h.expect(t, e, e.out().at(at).data(1), false, "on the way")
	}
	begin := uint32(1001)
	h.expect(t, e, e.out().at(begin+uint32(far&0xffffffff)).data(1), true, "far out")
	h.expect(t, e, e.out().at(begin+uint32(far&0xffffffff)+10).data(1), false, "farther")
}

func TestAStreamWithoutABeginningHasNoPositions(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, dropping(anyOf(is(within(selectSubflowSequence, 0, 1<<40)), is(within(selectDataSequence, 0, ^uint64(0))))))
	h.expect(t, e, e.out().carrying(timestamps(1, 1), mapping(1, 1, 9)).data(9), false, "from the middle")
}

func TestDataSequencesCountFromTheConnectionsBeginning(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, dropping(is(within(selectDataSequence, 100, 199))))
		h.begin(t, e)
		second := e.port(41000)
		h.join(t, second, tokenOf(remoteKey))
		for at, expected := range map[uint64]bool{0: false, 99: false, 100: true, 199: true, 200: false, 1 << 33: false} {
			for _, subflow := range []ends{e, second} {
				out := subflow.out().carrying(timestamps(2, 2), mapping(dataSequenceOf(localKey)+at, 1, 1))
				h.expect(t, subflow, out.data(1), expected, "out")
				in := subflow.in().carrying(timestamps(2, 2), mapping(dataSequenceOf(remoteKey)+at, 1, 1))
				h.expect(t, subflow, in.data(1), expected, "in")
				h.expect(t, subflow, out, false, "without data")
			}
		}
	})
}

// One mapping holds for all segments that it covers.
func TestASegmentWithinAMappingIsWhereItIs(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, dropping(is(within(selectDataSequence, 5000, 5999))))
	h.begin(t, e)
	options := [][]byte{timestamps(2, 2), mapping(dataSequenceOf(localKey)+4000, 1, 3000)}
	h.expect(t, e, e.out().at(1001).carrying(options...).data(1000), false, "the first segment")
	h.expect(t, e, e.out().at(2001).carrying(options...).data(1000), true, "the second segment")
	h.expect(t, e, e.out().at(3001).carrying(options...).data(1000), false, "the third segment")
}

func TestShortDataSequencesAreExtended(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	const far = 1<<32 + 100
	h.use(t, dropping(is(within(selectDataSequence, far, far))))
	h.begin(t, e)
	for _, at := range []uint64{0, 1 << 30, 1 << 31, 3 << 30, 1 << 32} {
		h.expect(t, e, e.out().carrying(timestamps(2, 2), shortMapping(uint32(dataSequenceOf(localKey)+at), 1, 1)).data(1), false, "on the way")
	}
	h.expect(t, e, e.out().carrying(timestamps(2, 2), shortMapping(uint32(dataSequenceOf(localKey)+far), 1, 1)).data(1), true, "there")
}

func TestTheFirstDataMayComeWithTheKeys(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, dropping(is(within(selectDataSequence, 0, 0))))
	h.begin(t, e)
	h.expect(t, e, e.out().carrying(timestamps(2, 2), capableWithData(localKey, remoteKey, 9)).data(9), true, "MP_CAPABLE")
}

func TestAmountsSentBySubflow(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, dropping(is(within(selectSubflowSent, 2000, ^uint64(0)))))
		h.begin(t, e)
		for i, expected := range []bool{false, false, true} {
			h.expect(t, e, e.out().at(1001+uint32(i)*1000).data(1000), expected, "out")
		}
		h.expect(t, e, e.in().data(1000), false, "the other direction")
		h.expect(t, e, e.port(40001).out().data(1000), false, "another subflow")
	})
}

func TestRepetitionsAreNotSentTwice(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, dropping(is(within(selectSubflowSent, 2000, ^uint64(0)))))
	h.begin(t, e)
	for range 5 {
		h.expect(t, e, e.out().data(1000), false, "again and again")
	}
}

func TestAmountsSentByConnection(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		second := e.port(41000)
		h.use(t, dropping(is(within(selectConnectionSent, 2500, ^uint64(0)))))
		h.begin(t, e)
		h.join(t, second, tokenOf(remoteKey))
		h.expect(t, e, e.out().data(1000), false, "0")
		h.expect(t, second, second.out().data(1000), false, "1000")
		h.expect(t, e, e.out().at(2001).data(1000), false, "2000")
		h.expect(t, second, second.out().at(2001).data(1000), true, "3000")
		h.expect(t, second, second.in().data(1000), false, "the other direction")
	})
}

// What was sent while no rule asked counts all the same.
func TestAmountsAreKnownToRulesThatComeLater(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, dropping(is(port(selectRemotePort, 9))))
	h.begin(t, e)
	for i := range uint32(50) {
		h.sends(t, e.out().at(1001+i*1000).data(1000))
	}
	h.use(t, dropping(is(within(selectSubflowSent, 49000, ^uint64(0)))))
	h.expect(t, e, e.out().at(51001).data(1), true, "of the subflow")
	h.use(t, dropping(is(within(selectConnectionSent, 49000, ^uint64(0)))))
	h.expect(t, e, e.out().at(51002).data(1), true, "of the connection")
}

// Two conditions that packets meet or not: PSH is not looked at, so four packets
// tell all that there is.
func TestCombinations(t *testing.T) {
	h := newHost(t)
	a, b, c := port(selectRemotePort, 80), types(typeData), direction(fromEndpoint)
	for name, combined := range map[string]struct {
		when condition
		is   func(a, b, c bool) bool
	}{
		"all":                   {all(is(a), is(b), is(c)), func(a, b, c bool) bool { return a && b && c }},
		"any":                   {anyOf(is(a), is(b), is(c)), func(a, b, c bool) bool { return a || b || c }},
		"not":                   {not(b), func(_, b, _ bool) bool { return !b }},
		"all in any":            {anyOf(all(is(a), is(b)), is(c)), func(a, b, c bool) bool { return a && b || c }},
		"any in all":            {all(anyOf(is(a), is(b)), is(c)), func(a, b, c bool) bool { return (a || b) && c }},
		"not in all":            {all(is(a), not(b), is(c)), func(a, b, c bool) bool { return a && !b && c }},
		"not in any":            {anyOf(not(a), is(b), not(c)), func(a, b, c bool) bool { return !a || b || !c }},
		"neither, nor":          {all(not(a), not(b)), func(a, b, _ bool) bool { return !a && !b }},
		"one and not the other": {anyOf(all(is(a), not(b)), all(not(a), is(b))), func(a, b, _ bool) bool { return a != b }},
		"three levels":          {anyOf(all(anyOf(is(a), is(c)), not(b)), all(is(b), not(c))), func(a, b, c bool) bool { return (a || c) && !b || b && !c }},
	} {
		t.Run(name, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, e ends) {
				h.forget(t)
				h.use(t, dropping(combined.when))
				for i := range 8 {
					of := e
					if i&1 == 0 {
						of.remote = netip.AddrPortFrom(e.remote.Addr(), 81)
					}
					s := of.in()
					if i&4 != 0 {
						s = of.out()
					}
					if i&2 != 0 {
						s = s.data(5)
					}
					h.expect(t, of, s, combined.is(i&1 != 0, i&2 != 0, i&4 != 0), "a packet")
				}
			})
		})
	}
}
