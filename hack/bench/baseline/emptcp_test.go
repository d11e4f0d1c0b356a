// SPDX-License-Identifier: Apache-2.0

package baseline_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"braid.dev/braid/hack/bench/baseline"
)

var subflow = baseline.Subflow{
	Local: netip.MustParseAddrPort("10.1.0.1:1000"), Remote: netip.MustParseAddrPort("10.2.0.2:2000"), Token: 0x1234abcd,
}

const (
	ack    = 0x10
	syn    = 0x02
	next   = ^uint32(0) // TCX_NEXT
	dss    = 1 << 2
	prio   = 1 << 5
	window = 0x1234
)

var (
	timestamps = []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	dataACK    = []byte{30, 8, 2 << 4, 1, 0, 0, 0, 1}
)

// frame is a segment of the subflow, with right checksums.
func frame(flags byte, options []byte, payload int) []byte {
	local, remote := subflow.Local.Addr().As4(), subflow.Remote.Addr().As4()
	tcp := binary.BigEndian.AppendUint16(nil, subflow.Local.Port())
	tcp = binary.BigEndian.AppendUint16(tcp, subflow.Remote.Port())
	tcp = append(tcp, 0, 0, 0, 1, 0, 0, 0, 1, byte(5+len(options)/4)<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	tcp = append(append(tcp, options...), bytes.Repeat([]byte{7}, payload)...)
	ip := []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, 6, 0, 0}
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(tcp)))
	ip = append(append(ip, local[:]...), remote[:]...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo(ip, len(tcp)), tcp...)))
	ethernet := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}
	return append(append(ethernet, ip...), tcp...)
}

func pseudo(ip []byte, length int) []byte {
	header := append([]byte{}, ip[12:20]...)
	return append(header, 0, 6, byte(length>>8), byte(length))
}

func checksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i < len(data); i += 2 {
		word := uint32(data[i]) << 8
		if i+1 < len(data) {
			word |= uint32(data[i+1])
		}
		sum += word
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func expectChecksums(t *testing.T, frame []byte) {
	t.Helper()
	ip, tcp := frame[14:34], frame[34:]
	if checksum(ip) != 0 || checksum(append(pseudo(ip, len(tcp)), tcp...)) != 0 {
		t.Error("a checksum is wrong")
	}
	if int(binary.BigEndian.Uint16(ip[2:])) != len(ip)+len(tcp) {
		t.Error("the length in the IP header is wrong")
	}
}

func newChain(t *testing.T, selectors []baseline.Selector, actions ...baseline.Action) *baseline.Chain {
	t.Helper()
	chain, err := baseline.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := chain.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := chain.Set(subflow, selectors, actions); err != nil {
		t.Fatal(err)
	}
	return chain
}

// run returns the frame as it comes out.
func run(t *testing.T, chain *baseline.Chain, frame []byte) []byte {
	t.Helper()
	verdict, out, err := chain.Program().Test(frame)
	if err != nil || verdict != next {
		t.Fatalf("verdict %d, %v", verdict, err)
	}
	return out
}

func TestAPacketIsSelectedAsItsSelectorsAreCombined(t *testing.T) {
	hit, miss := baseline.SelectPacketType, baseline.Selector{Kind: baseline.SelectPacketType, Types: prio}
	all := []baseline.Selector{
		{Kind: baseline.SelectSubflow}, {Kind: baseline.SelectIPPair}, {Kind: baseline.SelectConnection}, {Kind: hit, Types: dss},
	}
	for name, test := range map[string]struct {
		selectors []baseline.Selector
		selected  bool
	}{
		"all of four match":                    {all, true},
		"the last of four does not match":      {append(append([]baseline.Selector{}, all[:3]...), miss), false},
		"none":                                 {nil, false},
		"the first of two alternatives":        {[]baseline.Selector{{Kind: hit, Types: dss, Or: true}, miss}, true},
		"the second of two alternatives":       {[]baseline.Selector{{Kind: miss.Kind, Types: miss.Types, Or: true}, all[0]}, true},
		"neither of two alternatives":          {[]baseline.Selector{{Kind: miss.Kind, Types: miss.Types, Or: true}, miss}, false},
		"the first misses and no other helps":  {[]baseline.Selector{miss, all[0]}, false},
		"one selector alone":                   {all[2:3], true},
		"an alternative at the end of a chain": {[]baseline.Selector{{Kind: hit, Types: dss, Or: true}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			chain := newChain(t, test.selectors, baseline.Action{Kind: baseline.ActRateLimit, Parameter: window})
			in := frame(ack, append(timestamps, dataACK...), 1000)
			out := run(t, chain, in)
			if test.selected != !bytes.Equal(in, out) {
				t.Errorf("selected: %v, changed: %v", test.selected, !bytes.Equal(in, out))
			}
			expectChecksums(t, out)
		})
	}
}

func TestAllActionsOfAChainRun(t *testing.T) {
	chain := newChain(t, []baseline.Selector{{Kind: baseline.SelectSubflow}},
		baseline.Action{Kind: baseline.ActGetSubflow},
		baseline.Action{Kind: baseline.ActRecord},
		baseline.Action{Kind: baseline.ActSetBackup, Parameter: 1},
		baseline.Action{Kind: baseline.ActRateLimit, Parameter: window},
	)
	data := frame(ack, append(timestamps, dataACK...), 1000)
	for range 3 { // the first makes the record
		out := run(t, chain, data)
		if len(out) != len(data) || binary.BigEndian.Uint16(out[14+20+14:]) != window {
			t.Error("a data segment grew, or kept its window")
		}
		expectChecksums(t, out)
	}
	packets, bytes, err := chain.Metrics(subflow)
	if err != nil || packets != 2 || bytes != 2000 {
		t.Errorf("recorded %d packets and %d bytes, %v", packets, bytes, err)
	}
}

func TestAPureACKGetsOneMPPrio(t *testing.T) {
	chain := newChain(t, []baseline.Selector{{Kind: baseline.SelectIPPair}}, baseline.Action{Kind: baseline.ActSetBackup, Parameter: 1})
	in := frame(ack, append(timestamps, dataACK...), 0)
	out := run(t, chain, in)
	if len(out) != len(in)+4 || !bytes.HasSuffix(out, []byte{30, 3, 0x51, 1}) {
		t.Errorf("got % x", out[len(in)-14-20:])
	}
	expectChecksums(t, out)
	if again := run(t, chain, out); !bytes.Equal(again, out) {
		t.Error("it got a second one")
	}
}

func TestAgainGivesThePacketBackWhatWasChanged(t *testing.T) {
	chain := newChain(t, nil)
	in := frame(ack, append(timestamps, dataACK...), 1000)
	again, err := baseline.NewAgain(in, chain.Program(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	changed := bytes.Clone(in)
	binary.BigEndian.PutUint16(changed[14+20+14:], window)
	_, out, err := again.Program().Test(changed)
	if err != nil || !bytes.Equal(out, in) {
		t.Errorf("not the same again, %v", err)
	}
	binary.BigEndian.PutUint32(in[14+20+4:], binary.BigEndian.Uint32(in[14+20+4:])+1000)
	_, out, err = again.Program().Test(changed)
	if err != nil || !bytes.Equal(out, in) {
		t.Errorf("not the next segment, %v", err)
	}
}

func TestTheStraightProgramLimitsWhatItSelects(t *testing.T) {
	for name, test := range map[string]struct {
		types    uint32
		selected bool
	}{"a packet of the type": {dss, true}, "a packet of another type": {prio, false}} {
		t.Run(name, func(t *testing.T) {
			straight, err := baseline.NewStraight(subflow, 4, 4, test.types, window)
			if err != nil {
				t.Fatal(err)
			}
			defer straight.Close()
			in := frame(ack, append(timestamps, dataACK...), 1000)
			_, out, err := straight.Program().Test(in)
			if err != nil {
				t.Fatal(err)
			}
			if test.selected != (binary.BigEndian.Uint16(out[14+20+14:]) == window) {
				t.Errorf("selected: %v, window %x", test.selected, out[14+20+14:][:2])
			}
			expectChecksums(t, out)
		})
	}
}

func TestASynOfAnotherSubflowIsTold(t *testing.T) {
	chain := newChain(t, []baseline.Selector{{Kind: baseline.SelectIPPair}}, baseline.Action{Kind: baseline.ActGetSubflow})
	join := []byte{30, 12, 1 << 4, 1, 0x12, 0x34, 0xab, 0xcd, 0, 0, 0, 0}
	run(t, chain, frame(syn, join, 0))
	event, err := chain.Event()
	if err != nil || event.Token != 0x1234abcd || event.Local != subflow.Local || event.Remote != subflow.Remote {
		t.Errorf("told of %+v, %v", event, err)
	}
}
