// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

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

// forget removes the entries whose keys are to go.
func forget[Key, Value any](from *ebpf.Map, goes func(*Key) bool) error {
	var gone []Key
	err := eachEntry(from, func(key *Key, _ *Value) {
		if goes(key) {
			gone = append(gone, *key)
		}
	})
	if err != nil {
		return err
	}
	for i := range gone {
		if err := from.Delete(&gone[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forgetting an entry of %s: %w", from, err)
		}
	}
	return nil
}
