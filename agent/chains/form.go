// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"net/netip"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/endpoint"
)

// The binary form of chains (bpf/include/endpoint/chain.h).
type (
	// Address is an IPv6 address, or an IPv4 address in its mapped form, in network
	// byte order.
	Address = endpoint.FromEndpointAddress
	// Selector is one condition and where to go on with either result.
	Selector = endpoint.FromEndpointSelector
	// Action is one thing to do.
	Action = endpoint.FromEndpointAction
	// Rule is a range of actions behind a graph of selectors.
	Rule = endpoint.FromEndpointRule
	// Chain is a whole chain, as one value of a map.
	Chain = endpoint.FromEndpointChain
	// word says which chain an endpoint has.
	word = endpoint.Word
)

// The bits of directions in Rule.Directions and in the masks of selectors.
const (
	fromEndpoint = 1 << endpoint.FromEndpoint
	toEndpoint   = 1 << endpoint.ToEndpoint
)

// toAddress takes the 16 bytes of an address, or of a netmask.
func toAddress(bytes [16]byte) Address {
	return Address{Word: bpf.Words(netip.AddrFrom16(bytes))}
}
