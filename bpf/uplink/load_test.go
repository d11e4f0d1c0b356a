// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

// slice is what the programs count in, and a little more.
const slice = 1<<uplink.SliceBits*time.Nanosecond + 5*time.Millisecond

var errAnotherSlice = errors.New("another slice began")

func (n *node) loadOf(t testutil.TB, path int) (load uplink.ToUplinkLoad) {
	t.Helper()
	require.NoError(t, n.maps.PathLoads.Lookup(uint32(path), &load))
	return load
}

func (n *node) endpointLoad(t testutil.TB, id uint32) (load uplink.ToUplinkLoad) {
	t.Helper()
	require.NoError(t, n.maps.EndpointLoads.Lookup(id, &load))
	return load
}

// grows expects what a path's load grew by: what was moved in a slice, and its square.
func grows(t testutil.TB, before, after uplink.ToUplinkLoad, direction int, bytes uint32) {
	t.Helper()
	moved := uint64(bytes / uplink.LoadUnit)
	want := before
	want.Moved[direction] += moved
	want.Squares[direction] += moved * moved
	require.Equal(t, want, after)
}

func TestWhatAFlowSendsInASliceCountsOnItsPathOnceItIsAnswered(t *testing.T) {
	n := newNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		time.Sleep(slice)
		flow, before := *n.mustFlow(t, e.out()), n.loadOf(t, green)
		of := n.endpointLoad(t, flow.Endpoint)
		n.goesBy(t, e.sends(50_000))
		n.goesBy(t, e.sends(500_000))
		require.Equal(t, before, n.loadOf(t, green), "what is not answered does not count")
		n.ingress(t, green, e.hears(500_100, 0).frame())
		grows(t, before, n.loadOf(t, green), 0, mine+500_100-flow.CountedSent)
		require.NotZero(t, flow.Endpoint)
		grows(t, of, n.endpointLoad(t, flow.Endpoint), 0, mine+500_100-flow.CountedSent)
	})
}

func TestWhatAFlowReceivesInASliceCountsWithTheNextData(t *testing.T) {
	n := newNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		data := func(sequence uint32) []byte {
			return e.hears(100, 1000).with(func(s *segment) { s.sequence = theirs + sequence }).frame()
		}
		time.Sleep(slice) // what came before the first count is not known
		n.ingress(t, green, data(1000))
		time.Sleep(slice)
		flow, before := *n.mustFlow(t, e.out()), n.loadOf(t, green)
		n.ingress(t, green, data(300_000))
		grows(t, before, n.loadOf(t, green), 1, theirs+300_000-flow.CountedReceived)
	})
}

func TestTheNICByWhichTheOtherEndsPacketsComeIsNoted(t *testing.T) {
	n := newNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		for i, path := range []int{red, green, blue} {
			data := e.hears(100, 1000).with(func(s *segment) { s.sequence = theirs + 1000*uint32(i+1) })
			n.ingress(t, path, data.frame())
			require.Equal(t, uint8(path+1), n.mustFlow(t, e.out()).Incoming)
		}
	})
}

func TestAFlowIsCountedOnceInASlice(t *testing.T) {
	n := newNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		testutil.Retry(t, 10*time.Second, func() error { // a slice may end between two packets
			sequence := n.mustFlow(t, e.out()).Sent - mine
			time.Sleep(slice)
			n.goesBy(t, e.sends(sequence))
			n.ingress(t, green, e.hears(sequence+100, 0).frame())
			counted, once := n.mustFlow(t, e.out()).Counted, n.loadOf(t, green)
			n.goesBy(t, e.sends(sequence+100_000))
			n.ingress(t, green, e.hears(sequence+100_100, 0).frame())
			if n.mustFlow(t, e.out()).Counted != counted {
				return errAnotherSlice
			}
			require.Equal(t, once, n.loadOf(t, green))
			return nil
		})
	})
}

// A number that nobody can have sent in that time is no load.
func TestNumbersThatJumpDoNotCount(t *testing.T) {
	n := newNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		time.Sleep(slice)
		flow, before := *n.mustFlow(t, e.out()), n.loadOf(t, green)
		flow.CountedSent, flow.CountedReceived = flow.Sent-1<<31, 0
		n.putFlow(t, e.out(), flow)
		n.goesBy(t, e.sends(100))
		n.ingress(t, green, e.hears(200, 0).frame())
		require.Equal(t, before, n.loadOf(t, green))
		require.NotEqual(t, flow.Counted, n.mustFlow(t, e.out()).Counted)
	})
}
