// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"math"
	"net/netip"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
)

// nested is any of the levels of a match.
type nested struct {
	selectors *v1alpha1.Selectors
	all, any  []nested
	not       *nested
}

func ofSelectors(s *v1alpha1.Selectors) nested { return nested{selectors: s} }

func ofNestedMatch(m *v1alpha1.NestedMatch) nested {
	n := nested{selectors: &m.Selectors, all: each(m.All, ofSelectors), any: each(m.Any, ofSelectors)}
	if m.Not != nil {
		not := ofSelectors(m.Not)
		n.not = &not
	}
	return n
}

func ofMatch(m *v1alpha1.Match) nested {
	n := nested{selectors: &m.Selectors, all: each(m.All, ofNestedMatch), any: each(m.Any, ofNestedMatch)}
	if m.Not != nil {
		not := ofNestedMatch(m.Not)
		n.not = &not
	}
	return n
}

func each[T, R any](values []T, f func(*T) R) (results []R) {
	for i := range values {
		results = append(results, f(&values[i]))
	}
	return results
}

func (c *compiler) match(match *v1alpha1.Match) (condition, error) {
	if match == nil {
		return condition{kind: always}, nil
	}
	return c.nested(ofMatch(match), field.NewPath("match"))
}

func (c *compiler) nested(n nested, at *field.Path) (condition, error) {
	parts := make([]condition, 3, 5)
	var err error
	if parts[0], err = c.selectorsOf(n.selectors, at); err != nil {
		return condition{}, err
	}
	if parts[1], err = c.list(n.all, at.Child("all"), allOf); err != nil {
		return condition{}, err
	}
	if parts[2], err = c.list(n.any, at.Child("any"), anyOf); err != nil {
		return condition{}, err
	}
	if n.not != nil {
		not, err := c.nested(*n.not, at.Child("not"))
		if err != nil {
			return condition{}, err
		}
		parts = append(parts, not.negation())
	}
	program, err := c.program(n.selectors, at)
	if err != nil {
		return condition{}, err
	}
	return allOf(append(parts, program)...), nil
}

// list joins conditions; a list that is not given always holds.
func (c *compiler) list(conditions []nested, at *field.Path, join func(...condition) condition) (condition, error) {
	if len(conditions) == 0 {
		return condition{kind: always}, nil
	}
	var parts []condition
	for i, n := range conditions {
		part, err := c.nested(n, at.Index(i))
		if err != nil {
			return condition{}, err
		}
		parts = append(parts, part)
	}
	return join(parts...), nil
}

// selectorsOf are all conditions of one set of selectors. What cannot change
// within a subflow comes first.
func (c *compiler) selectorsOf(s *v1alpha1.Selectors, at *field.Path) (condition, error) {
	var parts []condition
	for _, translate := range []func(*v1alpha1.Selectors, *field.Path) (condition, error){
		direction, token, subflow, addressPair, source, destination, c.paths, packetTypes, sequence, sent, backup,
	} {
		part, err := translate(s, at)
		if err != nil {
			return condition{}, err
		}
		parts = append(parts, part)
	}
	return allOf(parts...), nil
}

func direction(s *v1alpha1.Selectors, at *field.Path) (condition, error) {
	switch s.Direction {
	case "":
		return condition{kind: always}, nil
	case v1alpha1.DirectionFromEndpoint:
		return leafOf(Selector{Kind: endpoint.SelectDirection, Mask: fromEndpoint}), nil
	case v1alpha1.DirectionToEndpoint:
		return leafOf(Selector{Kind: endpoint.SelectDirection, Mask: toEndpoint}), nil
	}
	return condition{}, field.Invalid(at.Child("direction"), s.Direction, "is not known to this agent")
}

func token(s *v1alpha1.Selectors, at *field.Path) (condition, error) {
	if s.Token == "" {
		return condition{kind: always}, nil
	}
	value, err := strconv.ParseUint(s.Token, 0, 32)
	if err != nil || len(s.Token) != len("0x12345678") {
		return condition{}, field.Invalid(at.Child("token"), s.Token, "must be 0x and 8 hexadecimal digits")
	}
	return leafOf(Selector{Kind: endpoint.SelectToken, Mask: uint32(value)}), nil
}

// subflow matches the tuple in both orders: the endpoint may be either end.
func subflow(s *v1alpha1.Selectors, at *field.Path) (condition, error) {
	if s.Subflow == nil {
		return condition{kind: always}, nil
	}
	at = at.Child("subflow")
	source, err := addressOf(s.Subflow.SourceAddress, at.Child("sourceAddress"))
	if err != nil {
		return condition{}, err
	}
	destination, err := addressOf(s.Subflow.DestinationAddress, at.Child("destinationAddress"))
	if err != nil {
		return condition{}, err
	}
	between := func(local netip.Addr, localPort int32, remote netip.Addr, remotePort int32) condition {
		return allOf(
			port(endpoint.SelectLocalPort, localPort, localPort), port(endpoint.SelectRemotePort, remotePort, remotePort),
			address(endpoint.SelectRemoteAddress, remote), address(endpoint.SelectLocalAddress, local),
		)
	}
	sourcePort, destinationPort := s.Subflow.SourcePort, s.Subflow.DestinationPort
	return anyOf(
		between(source, sourcePort, destination, destinationPort),
		between(destination, destinationPort, source, sourcePort),
	), nil
}

func addressPair(s *v1alpha1.Selectors, at *field.Path) (condition, error) {
	if len(s.AddressPair) == 0 {
		return condition{kind: always}, nil
	}
	at = at.Child("addressPair")
	if len(s.AddressPair) != 2 {
		return condition{}, field.Invalid(at, s.AddressPair, "must be two addresses")
	}
	var pair [2]netip.Addr
	for i, text := range s.AddressPair {
		var err error
		if pair[i], err = addressOf(text, at.Index(i)); err != nil {
			return condition{}, err
		}
	}
	return anyOf(
		allOf(address(endpoint.SelectRemoteAddress, pair[0]), address(endpoint.SelectLocalAddress, pair[1])),
		allOf(address(endpoint.SelectRemoteAddress, pair[1]), address(endpoint.SelectLocalAddress, pair[0])),
	), nil
}

func source(s *v1alpha1.Selectors, at *field.Path) (condition, error) {
	return side(s.Source, at.Child("source"), endpoint.SelectSourceAddress, endpoint.SelectSourcePort)
}

func destination(s *v1alpha1.Selectors, at *field.Path) (condition, error) {
	return side(s.Destination, at.Child("destination"), endpoint.SelectDestinationAddress, endpoint.SelectDestinationPort)
}

func side(side *v1alpha1.Side, at *field.Path, addressKind, portKind uint8) (condition, error) {
	if side == nil {
		return condition{kind: always}, nil
	}
	inRange := condition{kind: always}
	if side.CIDR != "" {
		prefix, err := netip.ParsePrefix(string(side.CIDR))
		if err != nil {
			return condition{}, field.Invalid(at.Child("cidr"), side.CIDR, "must be an address range")
		}
		inRange = within(addressKind, prefix)
	}
	ports, err := portRanges(side.Ports, at.Child("ports"), portKind)
	if err != nil {
		return condition{}, err
	}
	return allOf(ports, inRange), nil
}

func portRanges(ranges []v1alpha1.PortRange, at *field.Path, kind uint8) (condition, error) {
	if len(ranges) == 0 {
		return condition{kind: always}, nil
	}
	var parts []condition
	for i, r := range ranges {
		last := r.EndPort
		if last == 0 {
			last = r.Port
		}
		if r.Port < 1 || last < r.Port || last > math.MaxUint16 {
			return condition{}, field.Invalid(at.Index(i), strconv.Itoa(int(r.Port))+" to "+strconv.Itoa(int(last)), "must be ports from 1 to 65535, the last one not before the first")
		}
		parts = append(parts, port(kind, r.Port, last))
	}
	return anyOf(parts...), nil
}

func port(kind uint8, first, last int32) condition {
	return leafOf(Selector{Kind: kind, From: uint64(first), To: uint64(last)})
}

func addressOf(text v1alpha1.IPAddress, at *field.Path) (netip.Addr, error) {
	parsed, err := netip.ParseAddr(string(text))
	if err != nil || parsed.Zone() != "" {
		return netip.Addr{}, field.Invalid(at, text, "must be an IPv4 or IPv6 address")
	}
	return parsed.Unmap(), nil
}

func address(kind uint8, wanted netip.Addr) condition {
	return within(kind, netip.PrefixFrom(wanted, wanted.BitLen()))
}

// mapped is where IPv4 lies among the addresses of IPv6.
var mapped = netip.MustParsePrefix("::ffff:0:0/96")

// within selects the addresses of a prefix. A range of IPv6 addresses that has
// the mapped ones in it does not mean those of IPv4.
func within(kind uint8, prefix netip.Prefix) condition {
	bits := prefix.Bits()
	if prefix.Addr().Is4() {
		bits += mapped.Bits()
	}
	wide := netip.PrefixFrom(netip.AddrFrom16(prefix.Addr().As16()), bits).Masked()
	selected := leafOf(prefixSelector(kind, wide))
	if bits < mapped.Bits() && wide.Contains(mapped.Addr()) {
		return allOf(selected, leafOf(prefixSelector(kind, mapped)).negation())
	}
	return selected
}

// prefixSelector takes a prefix of IPv6. netip treats mapped addresses as such.
func prefixSelector(kind uint8, prefix netip.Prefix) Selector {
	var netmask [16]byte
	for bit := range prefix.Bits() {
		netmask[bit/8] |= 0x80 >> (bit % 8)
	}
	return Selector{Kind: kind, Address: toAddress(prefix.Addr().As16()), Netmask: toAddress(netmask)}
}

// paths are never known by name: one that is not on this node has no bit.
func (c *compiler) paths(s *v1alpha1.Selectors, _ *field.Path) (condition, error) {
	if len(s.Paths) == 0 {
		return condition{kind: always}, nil
	}
	var mask uint32
	for _, name := range s.Paths {
		if slot, here := c.surroundings.Paths[string(name)]; here {
			mask |= 1 << slot
		}
	}
	if mask == 0 {
		return condition{kind: never}, nil
	}
	return leafOf(Selector{Kind: endpoint.SelectPath, Mask: mask}), nil
}

var packetTypeBits = map[v1alpha1.PacketType]uint32{
	v1alpha1.PacketSYN:         endpoint.TypeSYN,
	v1alpha1.PacketMPCapable:   endpoint.TypeMPCapable,
	v1alpha1.PacketMPJoin:      endpoint.TypeMPJoin,
	v1alpha1.PacketDSS:         endpoint.TypeDSS,
	v1alpha1.PacketData:        endpoint.TypeData,
	v1alpha1.PacketPureACK:     endpoint.TypePureACK,
	v1alpha1.PacketDataACK:     endpoint.TypeDataACK,
	v1alpha1.PacketAddAddr:     endpoint.TypeAddAddr,
	v1alpha1.PacketAddAddrEcho: endpoint.TypeAddAddrEcho,
	v1alpha1.PacketRemoveAddr:  endpoint.TypeRemoveAddr,
	v1alpha1.PacketMPPrio:      endpoint.TypeMPPrio,
	v1alpha1.PacketMPFail:      endpoint.TypeMPFail,
	v1alpha1.PacketFastClose:   endpoint.TypeFastClose,
	v1alpha1.PacketReset:       endpoint.TypeReset,
	v1alpha1.PacketFIN:         endpoint.TypeFIN,
}

// typesOfHeader can be told without the TCP options.
var typesOfHeader = packetTypeBits[v1alpha1.PacketSYN] | packetTypeBits[v1alpha1.PacketData] |
	packetTypeBits[v1alpha1.PacketPureACK] | packetTypeBits[v1alpha1.PacketReset] | packetTypeBits[v1alpha1.PacketFIN]

func packetTypes(s *v1alpha1.Selectors, at *field.Path) (condition, error) {
	if len(s.PacketTypes) == 0 {
		return condition{kind: always}, nil
	}
	var mask uint32
	for i, name := range s.PacketTypes {
		value, known := packetTypeBits[name]
		if !known {
			return condition{}, field.Invalid(at.Child("packetTypes").Index(i), name, "is not known to this agent")
		}
		mask |= value
	}
	return leafOf(Selector{Kind: endpoint.SelectTypes, Mask: mask}), nil
}

func sequence(s *v1alpha1.Selectors, at *field.Path) (condition, error) {
	if s.Sequence == nil {
		return condition{kind: always}, nil
	}
	return twoRanges(s.Sequence.Data, endpoint.SelectDataSequence, at.Child("sequence", "data"),
		s.Sequence.Subflow, endpoint.SelectSubflowSequence, at.Child("sequence", "subflow"))
}

func sent(s *v1alpha1.Selectors, at *field.Path) (condition, error) {
	if s.Sent == nil {
		return condition{kind: always}, nil
	}
	return twoRanges(s.Sent.Subflow, endpoint.SelectSubflowSent, at.Child("sent", "subflow"),
		s.Sent.Connection, endpoint.SelectConnectionSent, at.Child("sent", "connection"))
}

func twoRanges(first *v1alpha1.ByteRange, firstKind uint8, firstAt *field.Path,
	second *v1alpha1.ByteRange, secondKind uint8, secondAt *field.Path) (condition, error) {
	a, err := byteRange(first, firstKind, firstAt)
	if err != nil {
		return condition{}, err
	}
	b, err := byteRange(second, secondKind, secondAt)
	if err != nil {
		return condition{}, err
	}
	return allOf(a, b), nil
}

// byteRange includes the last byte, where the API names the first one beyond.
func byteRange(r *v1alpha1.ByteRange, kind uint8, at *field.Path) (condition, error) {
	if r == nil {
		return condition{kind: always}, nil
	}
	selector := Selector{Kind: kind, To: math.MaxUint64}
	if r.From != nil {
		from, err := amount(r.From, at.Child("from"))
		if err != nil {
			return condition{}, err
		}
		selector.From = from
	}
	if r.To != nil {
		to, err := amount(r.To, at.Child("to"))
		if err != nil {
			return condition{}, err
		}
		if to <= selector.From {
			return condition{}, field.Invalid(at.Child("to"), r.To.String(), "must be more than from")
		}
		selector.To = to - 1
	}
	return leafOf(selector), nil
}

func amount(quantity *resource.Quantity, at *field.Path) (uint64, error) {
	bytes := quantity.Value()
	if bytes < 0 || quantity.CmpInt64(bytes) != 0 {
		return 0, field.Invalid(at, quantity.String(), "must be a whole number of bytes, 0 or more")
	}
	return uint64(bytes), nil
}

func backup(s *v1alpha1.Selectors, _ *field.Path) (condition, error) {
	if s.Backup == nil {
		return condition{kind: always}, nil
	}
	return leafOf(Selector{Kind: endpoint.SelectBackup, Mask: uint32(bit(*s.Backup))}), nil
}

// program is asked while the packet runs through the chain (bpf/include/endpoint/run_rules.h):
// after everything else that could spare it.
func (c *compiler) program(s *v1alpha1.Selectors, at *field.Path) (condition, error) {
	if s.Program == nil {
		return condition{kind: always}, nil
	}
	slot, err := c.call(c.at, s.Program.Name, at.Child("program"), "name")
	if err != nil {
		return condition{}, err
	}
	c.asked++
	return leafOf(Selector{Kind: endpoint.SelectProgram, Mask: slot, From: uint64(s.Program.Value)}), nil
}
