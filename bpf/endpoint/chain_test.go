// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"braid.dev/braid/bpf/endpoint"
)

// The values of the enums in chain.h.
const (
	fromEndpoint = 0
	toEndpoint   = 1

	selectAnything           = 0
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

	needsOptions    = 1
	needsConnection = 2

	matched    = 0xffff
	notMatched = 0xfffe
)

const (
	typeSYN = 1 << iota
	typeCapable
	typeJoin
	typeDSS
	typeData
	typePureACK
	typeDataACK
	typeAddAddress
	typeAddAddressEcho
	typeRemoveAddress
	typePriority
	typeFail
	typeFastClose
	typeReset
	typeFIN
)

type selector = endpoint.FromEndpointSelector
type action = endpoint.FromEndpointAction

// condition builds its selectors, which lead to one of the two places, and returns
// the index of the first. Later ones are built first.
type condition func(graph *[]selector, ifTrue, ifFalse uint16) uint16

func is(s selector) condition {
	return func(graph *[]selector, ifTrue, ifFalse uint16) uint16 {
		s.IfTrue, s.IfFalse = ifTrue, ifFalse
		*graph = append(*graph, s)
		return uint16(len(*graph) - 1)
	}
}

func not(s selector) condition {
	s.Negated = 1
	return is(s)
}

func all(of ...condition) condition {
	return func(graph *[]selector, ifTrue, ifFalse uint16) uint16 {
		for _, c := range slices.Backward(of) {
			ifTrue = c(graph, ifTrue, ifFalse)
		}
		return ifTrue
	}
}

func anyOf(of ...condition) condition {
	return func(graph *[]selector, ifTrue, ifFalse uint16) uint16 {
		for _, c := range slices.Backward(of) {
			ifFalse = c(graph, ifTrue, ifFalse)
		}
		return ifFalse
	}
}

type rule struct {
	when       condition // nil: every packet
	do         []action
	directions uint8 // 0: both
}

// build compiles rules to a chain; all rules need all that there is.
func build(rules ...rule) *endpoint.FromEndpointChain {
	chain := &endpoint.FromEndpointChain{Rules: uint32(len(rules))}
	selectors, actions := 0, 0
	for i, r := range rules {
		compiled := &chain.Rule[i]
		compiled.FirstSelector = matched
		compiled.Directions = 3
		if r.directions != 0 {
			compiled.Directions = r.directions
		}
		if r.when != nil {
			var graph []selector
			r.when(&graph, matched, notMatched)
			for j, s := range graph {
				last := uint16(selectors + len(graph) - 1)
				s.IfTrue, s.IfFalse = place(s.IfTrue, last), place(s.IfFalse, last)
				compiled.Needs |= needsOf(s.Kind)
				chain.Selector[int(last)-j] = s
			}
			compiled.FirstSelector = uint16(selectors)
			selectors += len(graph)
		}
		compiled.FirstAction, compiled.Actions = uint16(actions), uint8(len(r.do))
		for _, a := range r.do {
			if a.Flag&binding != 0 {
				compiled.Enforces |= enforcedBit[a.Kind]
			}
			if a.Kind <= actionSuppressAddAddr || a.Kind == actionRecord {
				compiled.Needs |= needsOptions
			}
		}
		chain.Needs |= uint32(compiled.Needs)
		actions += copy(chain.Action[actions:], r.do)
	}
	return chain
}

// enforcedBit are the bits of enum rule_binds.
var enforcedBit = map[uint8]uint8{actionSetBackup: 1, actionSuppressAddAddr: 2, actionReleaseAddAddr: 4, actionRateLimit: 8}

// place turns the index into the order of building round.
func place(index, last uint16) uint16 {
	if index >= notMatched {
		return index
	}
	return last - index
}

func needsOf(kind uint8) uint8 {
	switch kind {
	case selectTypes, selectBackup:
		return needsOptions
	case selectDataSequence:
		return needsOptions | needsConnection
	case selectConnectionSent:
		return needsConnection
	}
	return 0
}

var drop = action{Kind: actionDrop}

// dropping is a chain that drops what meets the condition.
func dropping(when condition) *endpoint.FromEndpointChain {
	return build(rule{when: when, do: []action{drop}})
}

func types(of uint32) selector { return selector{Kind: selectTypes, Mask: of} }

func token(value uint32) selector { return selector{Kind: selectToken, Mask: value} }

func direction(d int) selector { return selector{Kind: selectDirection, Mask: 1 << d} }

func path(p int) selector { return selector{Kind: selectPath, Mask: 1 << p} }

func within(kind uint8, from, to uint64) selector { return selector{Kind: kind, From: from, To: to} }

func port(kind uint8, number uint64) selector { return within(kind, number, number) }

func prefix(kind uint8, text string) selector {
	p := netip.MustParsePrefix(text)
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	var mask [16]byte
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	network := p.Masked().Addr().As16()
	return selector{Kind: kind, Address: toAddress(network), Netmask: toAddress(mask)}
}

func toAddress(bytes [16]byte) (a endpoint.FromEndpointAddress) {
	for i := range a.Word {
		a.Word[i] = binary.NativeEndian.Uint32(bytes[i*4:])
	}
	return a
}
