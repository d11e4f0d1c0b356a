// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"braid.dev/braid/api/v1alpha1"
)

// matcher is a path's spec, ready to be compared with NICs.
type matcher struct {
	patterns []string // shell patterns, only * and ? special
	ranges   []netip.Prefix
}

// onlyWildcards takes the meaning from everything but * and ?.
var onlyWildcards = strings.NewReplacer(`\`, `\\`, `[`, `\[`, `]`, `\]`)

// newMatcher reads a path of a plan. What cannot be read matches nothing, so an
// error must keep the path from being used.
func newMatcher(plan v1alpha1.PlanPath) (matcher, error) {
	var m matcher
	for _, pattern := range plan.Interfaces {
		m.patterns = append(m.patterns, onlyWildcards.Replace(string(pattern)))
	}
	for _, text := range plan.AddressRanges {
		prefix, err := netip.ParsePrefix(string(text))
		if err != nil {
			return matcher{}, fmt.Errorf("reading address range %q: %w", text, err)
		}
		m.ranges = append(m.ranges, prefix.Masked())
	}
	if len(m.patterns) == 0 && len(m.ranges) == 0 {
		return matcher{}, fmt.Errorf("neither interfaces nor address ranges are given")
	}
	return m, nil
}

// matches: interfaces and address ranges must both hold where both are given.
func (m matcher) matches(c *candidate) bool {
	if c.loopback {
		return false
	}
	return m.matchesName(c.Name) && m.matchesAddress(c.Addresses)
}

func (m matcher) matchesName(name string) bool {
	if len(m.patterns) == 0 {
		return true
	}
	return slices.ContainsFunc(m.patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, name)
		return err == nil && matched
	})
}

func (m matcher) matchesAddress(addresses []netip.Prefix) bool {
	if len(m.ranges) == 0 {
		return true
	}
	return slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return inRanges(p.Addr(), m.ranges) })
}

// names is true when the path gives this very name, without wildcards.
func (m matcher) names(name string) bool {
	return slices.Contains(m.patterns, onlyWildcards.Replace(name))
}

func inRanges(address netip.Addr, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(address) })
}

// IsNamed tells whether one of the paths is formed by interfaces of this name, whatever
// their addresses.
func IsNamed(plan []v1alpha1.PlanPath, name string) bool {
	return slices.ContainsFunc(plan, func(path v1alpha1.PlanPath) bool {
		m, err := newMatcher(path)
		return err == nil && len(m.ranges) == 0 && m.matchesName(name)
	})
}
