// SPDX-License-Identifier: Apache-2.0

package chains

import "encoding/binary"

// The binary form of chains, as bpf/include/endpoint/chain.h has it.

const (
	maxRules     = 64
	maxSelectors = 256
	maxActions   = 128
)

// Address is an IPv6 address, or an IPv4 address in its mapped form, in network
// byte order.
type Address struct{ Word [4]uint32 }

// Selector is one condition and where to go on with either result.
type Selector struct {
	Kind    uint8
	Negated uint8
	IfTrue  uint16
	IfFalse uint16
	Pad     uint16
	Mask    uint32
	Pad2    uint32
	From    uint64
	To      uint64
	Address Address
	Netmask Address
}

// Action is one thing to do.
type Action struct {
	Kind      uint8
	Mechanism uint8
	Scope     uint8
	Flag      uint8
	Limit     uint32
	Rate      uint64
	Value     int64
}

// Rule is a range of actions behind a graph of selectors.
type Rule struct {
	FirstSelector uint16
	FirstAction   uint16
	Actions       uint8
	Needs         uint8
	Directions    uint8
	Pad           uint8
}

// Chain is a whole chain, as one value of a map.
type Chain struct {
	Rules    uint32
	Needs    uint32
	Rule     [maxRules]Rule
	Selector [maxSelectors]Selector
	Action   [maxActions]Action
}

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
	actionBlockSubflow     = 3
	actionAddSubflow       = 4
	actionReportConnection = 5
	actionReportSubflow    = 6
	actionRecord           = 7
	actionDrop             = 8
	actionReset            = 9
	actionCustom           = 10
	actionStack            = 11
)

const (
	needsOptions    = 1
	needsConnection = 2
)

// toAddress takes the 16 bytes of an address, or of a netmask.
func toAddress(bytes [16]byte) Address {
	var a Address
	for i := range a.Word {
		a.Word[i] = binary.NativeEndian.Uint32(bytes[i*4:])
	}
	return a
}
