// SPDX-License-Identifier: Apache-2.0

package endpoint

// SteadySlot is where a subflow is in the map steady_subflows, if it is there: the
// number that folded_key of bpf/include/endpoint/bypass_cache.h computes.
func SteadySlot(key *FromEndpointSubflowKey) uint32 {
	const mix = 0x9e3779b97f4a7c15
	local := uint64(key.Local.Word[3])<<32 | uint64(key.Local.Word[2])
	remote := uint64(key.Remote.Word[3])<<32 | uint64(key.Remote.Word[2])
	ports := uint64(key.RemotePort)<<16 | uint64(key.LocalPort)
	return uint32((local^remote^ports)*mix>>48) & (SteadySlots - 1)
}

// Complete adds to a record that was read what its subflow's packets have been since the
// programs visited it last. What is read here must be read after the record.
func (s *FromEndpointSteady) Complete(key *FromEndpointSubflowKey, record *FromEndpointSubflow) {
	if s.Word == 0 || s.Key != *key {
		return
	}
	for direction := range s.Way {
		way, traffic := &s.Way[direction], &record.Traffic[direction]
		if traffic.Begun == 0 {
			continue
		}
		traffic.Bytes, traffic.Packets = max(traffic.Bytes, way.Bytes), max(traffic.Packets, way.Packets)
		if ahead := int32(way.Highest - traffic.Highest); way.Types != 0 && ahead > 0 {
			traffic.Highest = way.Highest
			traffic.Position += uint64(ahead)
		}
	}
}
