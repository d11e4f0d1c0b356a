// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"braid.dev/braid/api/v1alpha1"
)

// condition is a match, or a part of one, with its place in the policy: all
// levels in one form.
type condition struct {
	*v1alpha1.Selectors
	at       *field.Path
	all, any []condition
	not      *condition
}

func matchCondition(m *v1alpha1.Match, at *field.Path) condition {
	c := condition{Selectors: &m.Selectors, at: at,
		all: conditions(m.All, at.Child("all"), nestedCondition),
		any: conditions(m.Any, at.Child("any"), nestedCondition),
	}
	if m.Not != nil {
		c.not = new(nestedCondition(m.Not, at.Child("not")))
	}
	return c
}

func nestedCondition(m *v1alpha1.NestedMatch, at *field.Path) condition {
	c := condition{Selectors: &m.Selectors, at: at,
		all: conditions(m.All, at.Child("all"), selectorsCondition),
		any: conditions(m.Any, at.Child("any"), selectorsCondition),
	}
	if m.Not != nil {
		c.not = new(selectorsCondition(m.Not, at.Child("not")))
	}
	return c
}

func selectorsCondition(s *v1alpha1.Selectors, at *field.Path) condition {
	return condition{Selectors: s, at: at}
}

func conditions[M any](matches []M, at *field.Path, convert func(*M, *field.Path) condition) []condition {
	converted := make([]condition, 0, len(matches))
	for i := range matches {
		converted = append(converted, convert(&matches[i], at.Index(i)))
	}
	return converted
}

// visit calls a function for the condition and every one inside it.
func (c *condition) visit(f func(*condition)) {
	f(c)
	for i := range c.all {
		c.all[i].visit(f)
	}
	for i := range c.any {
		c.any[i].visit(f)
	}
	if c.not != nil {
		c.not.visit(f)
	}
}

// together lists the parts that must hold at once: the condition itself and
// those in its lists all.
func (c *condition) together() []*condition {
	parts := []*condition{c}
	for i := range c.all {
		parts = append(parts, c.all[i].together()...)
	}
	return parts
}

// impossibility says why the condition can never hold, and where; the message
// is empty when it can.
func (c *condition) impossibility() (at *field.Path, message string) {
	var (
		direction v1alpha1.Direction
		backup    *bool
		paths     []v1alpha1.PathName
		family    string
	)
	for _, part := range c.together() {
		switch f := part.family(); {
		case part.Direction != "" && direction != "" && part.Direction != direction:
			return part.at.Child("direction"), fmt.Sprintf("no packet is both %s and %s", direction, part.Direction)
		case part.Backup != nil && backup != nil && *part.Backup != *backup:
			return part.at.Child("backup"), "no subflow is and is not a backup at once"
		case len(part.Paths) > 0 && len(paths) > 0 && !overlap(part.Paths, paths):
			return part.at.Child("paths"), "a subflow goes over one path, and this list has none in common with another one that must hold too"
		case f == mixed, f != "" && family != "" && f != family:
			return part.at, "its addresses are of both IPv4 and IPv6, and a packet has one of them"
		default:
			family = firstGiven(family, f)
			direction = firstGiven(direction, part.Direction)
		}
		if part.Backup != nil {
			backup = part.Backup
		}
		if len(part.Paths) > 0 {
			paths = part.Paths
		}
	}
	for _, part := range c.together() {
		if at, message := impossibleAlternatives(part); message != "" {
			return at, message
		}
	}
	return nil, ""
}

// impossibleAlternatives says when none of the conditions in any can hold.
func impossibleAlternatives(c *condition) (at *field.Path, message string) {
	for i := range c.any {
		if at, message = c.any[i].impossibility(); message == "" {
			return nil, ""
		}
	}
	return at, message
}

func firstGiven[S ~string](a, b S) S {
	if a != "" {
		return a
	}
	return b
}

func overlap(a, b []v1alpha1.PathName) bool {
	return slices.ContainsFunc(a, func(name v1alpha1.PathName) bool { return slices.Contains(b, name) })
}

// mixed stands for addresses of both families.
const mixed = "both"

// family is that of the selectors' addresses, mixed, or empty when they have
// none. What cannot be read as an address counts for none.
func (c *condition) family() string {
	found := ""
	for _, address := range c.addresses() {
		switch family := addressFamily(address); {
		case family == "" || family == found:
		case found == "":
			found = family
		default:
			return mixed
		}
	}
	return found
}

func (c *condition) addresses() []string {
	var addresses []string
	if s := c.Subflow; s != nil {
		addresses = append(addresses, string(s.SourceAddress), string(s.DestinationAddress))
	}
	for _, address := range c.AddressPair {
		addresses = append(addresses, string(address))
	}
	for _, side := range []*v1alpha1.Side{c.Source, c.Destination} {
		if side != nil {
			addresses = append(addresses, string(side.CIDR))
		}
	}
	return addresses
}

// addressFamily is the family of an address or a range.
func addressFamily(text string) string {
	address, err := netip.ParseAddr(text)
	if err != nil {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return ""
		}
		address = prefix.Addr()
	}
	if address.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// size is how many conditions the datapath needs for the selectors themselves.
func (c *condition) size() int {
	n := 0
	for _, given := range []bool{
		c.Token != "", c.Direction != "", len(c.PacketTypes) > 0, len(c.Paths) > 0, c.Backup != nil, c.Program != nil,
		c.Sequence != nil && c.Sequence.Data != nil, c.Sequence != nil && c.Sequence.Subflow != nil,
		c.Sent != nil && c.Sent.Connection != nil, c.Sent != nil && c.Sent.Subflow != nil,
	} {
		if given {
			n++
		}
	}
	if c.Subflow != nil {
		n += 8 // two addresses and two ports, in either order
	}
	if len(c.AddressPair) > 0 {
		n += 4
	}
	for _, side := range []*v1alpha1.Side{c.Source, c.Destination} {
		if side != nil && side.CIDR != "" {
			n++
		}
		if side != nil {
			n += len(side.Ports)
		}
	}
	return n
}
