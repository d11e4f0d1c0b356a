// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/testutil"
)

// change runs a program and gives the frame that comes out.
func (h *host) change(t testutil.TB, program *ebpf.Program, frame []byte, context skBuff) (verdict, []byte) {
	t.Helper()
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: context}
	var result uint32
	require.NoError(t, h.Do(func() (err error) {
		result, err = program.Run(&options)
		return err
	}))
	return verdict(int32(result)), options.DataOut
}

// The actors have tests of their own: these are of their place in a run.
func TestALimitLastsBeyondThePacketsThatAskForIt(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		limit := action{Kind: actionRateLimit, Mechanism: 3, Rate: 1000}
		h.use(t, build(rule{when: is(types(typeSYN)), do: []action{limit}, directions: 1 << fromEndpoint}))
		h.begin(t, e)
		drops := 0
		for i := range uint32(200) {
			if h.sends(t, e.out().at(1001+i*1000).data(1000)) == dropped {
				drops++
			}
		}
		if drops < 50 {
			t.Errorf("%d of 200 packets were dropped", drops)
		}
		h.use(t, nothing())
		h.sends(t, e.out())
		time.Sleep(300 * time.Millisecond)
		h.sends(t, e.out())
		for range 5 {
			h.expect(t, e, e.out().at(1001).data(1000), false, "after the rule is gone")
		}
	})
}

func TestBackupIsToldInAnAcknowledgement(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(rule{do: []action{{Kind: actionSetBackup, Flag: 1}}}))
		frame := e.out().carrying(timestamps(5, 4), dataAck()).frame()
		v, after := h.change(t, h.from, frame, skBuff{Ifindex: h.pod})
		if v != next || !bytes.Contains(after, priority(1)) {
			t.Errorf("the verdict is %d, the packet\n%x", v, after)
		}
		data := e.out().carrying(timestamps(5, 4), mapping(1, 1, 9)).data(9).frame()
		if _, after := h.change(t, h.from, data, skBuff{Ifindex: h.pod}); !bytes.Equal(after, data) {
			t.Error("a packet with data was changed")
		}
	})
}

func TestAnAnnouncementIsHidden(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(rule{when: is(direction(toEndpoint)), do: []action{{Kind: actionSuppressAddAddr}}}))
		frame := e.in().carrying(timestamps(5, 4), dataAck(), addAddress(0)[:12]).frame()
		h.change(t, h.to, frame, skBuff{Ifindex: h.pod, IngressIfindex: h.nics[blue]})
		frame = e.in().carrying(timestamps(5, 4), addAddress(0)).frame()
		v, after := h.change(t, h.to, frame, skBuff{Ifindex: h.pod, IngressIfindex: h.nics[blue]})
		if v != next || bytes.Contains(after, []byte{10, 0, 0, 9}) {
			t.Errorf("the verdict is %d, the packet\n%x", v, after)
		}
	})
}

func TestAResetEndsTheRun(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(rule{when: is(types(typeJoin)), do: []action{{Kind: actionReset}, {Kind: actionStack}}}, rule{do: noops(1)}))
		frame := e.out().at(1000).flagged(syn).carrying(usual(join(77, 0))).frame()
		if v, _ := h.change(t, h.from, frame, skBuff{Ifindex: h.pod}); v != dropped {
			t.Errorf("the verdict is %d", v)
		}
		counters := h.counters(t)
		if counters.Rule[0].Hits != 1 || counters.Rule[0].Acted != 1 || counters.Rule[1].Hits != 0 {
			t.Errorf("the counters are %+v, %+v", counters.Rule[0], counters.Rule[1])
		}
	})
}
