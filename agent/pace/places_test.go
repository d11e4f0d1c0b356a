// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/pace"
)

func TestNewSubflowsHaveThePlacesOfThoseThatAreGone(t *testing.T) {
	const places, perEndpoint = 2, 2
	spec, err := pace.LoadPace()
	require.NoError(t, err)
	small := func(name string) *ebpf.Map {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: spec.Maps[name].KeySize, ValueSize: spec.Maps[name].ValueSize, MaxEntries: places})
		require.NoError(t, err)
		t.Cleanup(func() { _ = m.Close() })
		return m
	}
	limiter, err := newLimiter(&objects{subflows: small(pace.PaceMapSubflows), paces: small(pace.PaceMapPaces)})
	require.NoError(t, err)
	record := pace.PaceSubflow{Paced: 1}
	record.Limit[fromEndpoint].Rate, record.Limit[fromEndpoint].Scope = 1e6, perEndpoint
	for first := range uint16(3) {
		var keys []pace.PaceSubflowKey
		for i := range uint16(places) {
			keys = append(keys, pace.PaceSubflowKey{Endpoint: 1, LocalPort: places*first + i})
			require.NoError(t, limiter.objects.subflows.Put(keys[i], record))
		}
		_, err := limiter.look(time.Now(), map[uint32]string{1: ""})
		require.NoError(t, err)
		for _, key := range keys {
			var rate uint64
			require.NoError(t, limiter.objects.paces.Lookup(key, &rate), "a subflow without a share")
			require.NoError(t, limiter.objects.subflows.Delete(key))
		}
	}
}
