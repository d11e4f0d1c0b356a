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
)

const (
	maxRules     = len(Chain{}.Rule)
	maxSelectors = len(Chain{}.Selector)
	maxActions   = len(Chain{}.Action)
)

const (
	matched    = 0xffff
	notMatched = 0xfffe
)

const (
	fromEndpoint = 1 << 0
	toEndpoint   = 1 << 1
)

const (
	selectToken              = 1
	selectLocalAddress       = 2
	selectRemoteAddress      = 3
	selectSourceAddress      = 4
	selectDestinationAddress = 5
	selectLocalPort          = 6
	selectRemotePort         = 7
	selectSourcePort         = 8
	selectDestinationPort    = 9
	selectDirection          = 10
	selectPath               = 11
	selectTypes              = 32
	selectDataSequence       = 33
	selectSubflowSequence    = 34
	selectSubflowSent        = 35
	selectConnectionSent     = 36
	selectBackup             = 37
)

const (
	actionRateLimit        = 1
	actionSetBackup        = 2
	actionSuppressAddAddr  = 3
	actionReleaseAddAddr   = 4
	actionReportConnection = 5
	actionReportSubflow    = 6
	actionRecord           = 7
	actionDrop             = 8
	actionReset            = 9
	actionRunProgram       = 10
	actionStack            = 11
)

// Bits of Action.Flag beside the choice of the action itself.
const (
	flagMetered = 0x40
	flagBinding = 0x80
)

const (
	needsOptions    = 1
	needsConnection = 2
)

// toAddress takes the 16 bytes of an address, or of a netmask.
func toAddress(bytes [16]byte) Address {
	return Address{Word: bpf.Words(netip.AddrFrom16(bytes))}
}
