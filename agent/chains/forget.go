// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/bpf/endpoint"
)

// forgetRecords removes what the programs remember of endpoints that are gone, because
// their numbers are given anew.
func (o *objects) forgetRecords(numbers map[uint32]bool) error {
	return errors.Join(
		forget[SubflowKey, SubflowRecord](o.maps["subflows"], func(key *SubflowKey) bool { return numbers[key.Endpoint] }),
		forget[endpoint.FromEndpointMptcpConnectionKey, endpoint.FromEndpointMptcpConnection](o.maps["mptcp_connections"],
			func(key *endpoint.FromEndpointMptcpConnectionKey) bool { return numbers[key.Endpoint] }),
		forget[endpoint.FromEndpointHiddenKey, endpoint.FromEndpointHidden](o.maps["hidden_addresses"],
			func(key *endpoint.FromEndpointHiddenKey) bool { return numbers[key.Subflow.Endpoint] }),
		forget[endpoint.FromEndpointBucketKey, endpoint.FromEndpointRateLoop](o.maps["buckets"],
			func(key *endpoint.FromEndpointBucketKey) bool { return numbers[key.Endpoint] }),
	)
}

// forget removes the entries of a large map whose keys are to go.
func forget[Key, Value any](from *ebpf.Map, goes func(*Key) bool) error {
	var gone []Key
	err := entries.Each(from, func(key *Key, _ *Value) {
		if goes(key) {
			gone = append(gone, *key)
		}
	})
	if err != nil {
		return err
	}
	return entries.Delete(from, gone...)
}
