// SPDX-License-Identifier: Apache-2.0

package optiontest

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/stretchr/testify/require"
)

// place is one peer's options.
type place [PlaceBytes]byte

// acceptance is one with bounds that cut, and two congestion controls.
func acceptance(allowed uint32) JudgeAcceptance {
	a := JudgeAcceptance{Allowed: allowed, MostUserTimeout: 90_000, MostInitialWindow: 40, LeastDelayedAck: 10_000, LeastRate: 125_000, LeastDelayThreshold: 20, MostInactivityTimeout: 600, CongestionControls: 2}
	a.Hash[0], a.Hash[1], a.Strategy[0] = 0x1234, 0x00ff, 0x5678
	return a
}

// expected is the verdict as docs/transport.md has it, in other words than the program's.
func expected(p *place, a *JudgeAcceptance) (v JudgeVerdict) {
	asked := map[byte]uint64{}
	if length := int(p[PlaceLength]); p[PlacePresent]&1 != 0 && length <= OptionSpace {
		for rest := p[RequestBytes:max(length, RequestBytes)]; len(rest) >= RequestBytes && rest[1] == RequestBytes; rest = rest[RequestBytes:] {
			if _, again := asked[rest[0]]; !again && rest[0] > RequestUserTimeout && rest[0] < Requests {
				asked[rest[0]] = uint64(binary.BigEndian.Uint16(rest[2:]))
			}
		}
	}
	if p[PlacePresent]&2 != 0 {
		asked[RequestUserTimeout] = uint64(binary.BigEndian.Uint16(p[PlaceTimeout+2:]))
	}
	for request, number := range asked {
		if a.Allowed&(1<<request) == 0 {
			v.Refused |= 1 << request
			continue
		}
		switch value, makesSense := bounded(request, number, a); {
		case makesSense:
			v.Accepted |= 1 << request
			v.Value[request] = value
		case request == RequestCongestionControl || request == RequestSchedule:
			v.Refused |= 1 << request
		}
	}
	return v
}

func bounded(request byte, number uint64, a *JudgeAcceptance) (value uint64, makesSense bool) {
	switch request {
	case RequestUserTimeout:
		unit := uint64(1000)
		if number >= 1<<15 {
			unit, number = 60_000, number-1<<15
		}
		return min(number*unit, uint64(a.MostUserTimeout)), number > 0
	case RequestSchedule:
		return number, number == 0x5678
	case RequestDelayThreshold:
		return max(number, uint64(a.LeastDelayThreshold)), number > 0
	case RequestInactivityTimeout:
		unit := uint64(1)
		if number >= 1<<15 {
			unit, number = 60, number-1<<15
		}
		return max(min(number*unit, uint64(a.MostInactivityTimeout)), 2), number > 0
	case RequestInitialWindow:
		return min(number, uint64(a.MostInitialWindow)), number > 0
	case RequestDelayedACK:
		return max(number*1000, uint64(a.LeastDelayedAck)), number > 0 && number <= 200
	case RequestRate:
		rate := number % 2048 << (number / 2048) * 125
		return max(rate, a.LeastRate), rate > 0
	default:
		for i, hash := range a.Hash[:a.CongestionControls] {
			if uint64(hash) == number {
				return uint64(i), true
			}
		}
		return 0, false
	}
}

// mutated is an option that asks for everything, with some bytes changed.
func mutated(random *rand.Rand) (p place) {
	copy(p[:], []byte{
		OptionExperiment, 32, Experiment >> 8, Experiment & 0xff,
		RequestInitialWindow, 4, 0, byte(random.Uint32()), RequestCongestionControl, 4, 0x12, 0x34,
		RequestDelayedACK, 4, 0, byte(random.Uint32()), RequestRate, 4, byte(random.Uint32()), byte(random.Uint32()),
		RequestSchedule, 4, 0x56, 0x78, RequestDelayThreshold, 4, 0, byte(random.Uint32()), RequestInactivityTimeout, 4, byte(random.Uint32()), byte(random.Uint32()),
	})
	copy(p[PlaceTimeout:], []byte{OptionUserTimeout, 4, byte(random.Uint32()), byte(random.Uint32()), 32, 3})
	for range random.IntN(8) {
		at := random.IntN(PlacePresent + 1)
		if random.IntN(2) == 0 {
			p[at] = byte(random.Uint32())
		} else {
			p[at] ^= 1 << random.IntN(8)
		}
	}
	return p
}

// A million options of whoever wishes harm change nothing but what is accepted, as it is
// accepted.
func TestOfAMillionMutatedOptionsOnlyWhatIsAcceptedIsTaken(t *testing.T) {
	require.NoError(t, rlimit.RemoveMemlock())
	var objects JudgeObjects
	require.NoError(t, LoadJudgeObjects(&objects, nil))
	defer objects.Close()
	random := rand.New(rand.NewPCG(6994, 5482))
	places, packet := make([]place, Places), make([]byte, 0, Places*PlaceBytes)
	var taken, refused int
	for round := range 1_000_000/Places + 1 {
		// Credits are heeded or not by whose they are, and no acceptance has them.
		bounds := acceptance(random.Uint32N(1<<Requests) &^ (1 << RequestCredit))
		if round%2 == 0 {
			bounds.Allowed = (1<<Requests - 1) &^ (1 << RequestCredit)
		}
		require.NoError(t, objects.Acceptances.Update(uint32(0), &bounds, ebpf.UpdateAny))
		packet = packet[:0]
		for i := range places {
			places[i] = mutated(random)
			packet = append(packet, places[i][:]...)
		}
		failed, _, err := objects.JudgeOptions.Test(packet)
		require.NoError(t, err)
		require.Zero(t, failed)
		var judged JudgeVerdicts
		require.NoError(t, objects.Judged.Lookup(uint32(0), &judged))
		for i := range places {
			want, got := expected(&places[i], &bounds), judged.Of[i]
			if got.Accepted != want.Accepted || got.Refused != want.Refused || got.Value != want.Value {
				t.Fatalf("options % x within %+v: got %+v, want %+v", places[i], bounds, got, want)
			}
			taken, refused = taken+int(got.Accepted), refused+int(got.Refused)
		}
	}
	if taken == 0 || refused == 0 {
		t.Error("nothing was taken, or nothing refused")
	}
}
