// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"braid.dev/braid/api/v1alpha1"
)

func TestMatcherRefusesWhatItCannotRead(t *testing.T) {
	for name, plan := range map[string]v1alpha1.PlanPath{
		"a range without a length":       {AddressRanges: []v1alpha1.CIDR{"192.0.2.0"}},
		"a range that is too long":       {AddressRanges: []v1alpha1.CIDR{"192.0.2.0/33"}},
		"one good range and one bad":     {AddressRanges: []v1alpha1.CIDR{"192.0.2.0/24", "x"}},
		"a good name and a bad range":    {Interfaces: []v1alpha1.InterfacePattern{"eth0"}, AddressRanges: []v1alpha1.CIDR{""}},
		"neither interfaces nor a range": {},
		"empty lists, as if left out":    {Interfaces: []v1alpha1.InterfacePattern{}, AddressRanges: []v1alpha1.CIDR{}},
		"an IPv6 range that is too long": {AddressRanges: []v1alpha1.CIDR{"2001:db8::/129"}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := newMatcher(plan); err == nil {
				t.Errorf("%+v was accepted", plan)
			}
		})
	}
}

func TestNamesMatchPatterns(t *testing.T) {
	for _, test := range []struct {
		pattern, name string
		want          bool
	}{
		{"eth1", "eth1", true},
		{"eth1", "eth10", false},
		{"eth*", "eth", true},
		{"eth*", "eth1.100", true},
		{"eth?", "eth", false},
		{"eth?", "eth9", true},
		{"ens*f0", "ens1f0np0", false},
		{"ens*f0", "ens801f0", true},
		{"*", "anything", true},
		{"[ab]", "a", false}, // only * and ? are special
		{"[ab]", "[ab]", true},
		{`a\*`, `a\b`, true},
		{"a-b", "a-b", true},
	} {
		m, err := newMatcher(v1alpha1.PlanPath{Interfaces: []v1alpha1.InterfacePattern{v1alpha1.InterfacePattern(test.pattern)}})
		if err != nil {
			t.Fatal(err)
		}
		if got := m.matchesName(test.name); got != test.want {
			t.Errorf("pattern %q and name %q: got %v, want %v", test.pattern, test.name, got, test.want)
		}
	}
}

// FuzzInterfacePattern compares with a second way to read patterns.
func FuzzInterfacePattern(f *testing.F) {
	for _, seed := range [][2]string{
		{"eth1", "eth1"}, {"ens*f0", "ens1f0"}, {"e??1", "eth1"}, {"*", ""}, {"", ""}, {"[a-z]", "a"}, {`\*`, `\x`},
		{"a*b*c?", "aXbYcZ"}, {"***", "x"}, {"]", "]"}, {"^", "^"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if !utf8.ValidString(pattern) || !utf8.ValidString(name) || strings.ContainsAny(pattern+name, "/\n") {
			return // no name of an interface
		}
		m, err := newMatcher(v1alpha1.PlanPath{Interfaces: []v1alpha1.InterfacePattern{v1alpha1.InterfacePattern(pattern)}})
		if err != nil {
			t.Fatalf("pattern %q: %v", pattern, err)
		}
		want := regexp.MustCompile(`^` + asExpression(pattern) + `$`).MatchString(name)
		if got := m.matchesName(name); got != want {
			t.Errorf("pattern %q and name %q: got %v, want %v", pattern, name, got, want)
		}
	})
}

func asExpression(pattern string) string {
	var expression strings.Builder
	for _, r := range pattern {
		switch r {
		case '*':
			expression.WriteString(`.*`)
		case '?':
			expression.WriteString(`.`)
		default:
			expression.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	return expression.String()
}

// FuzzAddressRange feeds texts as ranges: one is either refused, or holds exactly
// the addresses that share its first bits.
func FuzzAddressRange(f *testing.F) {
	f.Add("192.0.2.0/24", "192.0.2.7")
	f.Add("192.0.2.77/24", "192.0.2.7")
	f.Add("2001:db8::/32", "2001:db8:1::1")
	f.Add("0.0.0.0/0", "::1")
	f.Add("::ffff:192.0.2.0/120", "192.0.2.1")
	f.Add("fe80::1%eth0/64", "fe80::1")
	f.Add("10/8", "10.0.0.1")
	f.Fuzz(func(t *testing.T, text, host string) {
		m, err := newMatcher(v1alpha1.PlanPath{AddressRanges: []v1alpha1.CIDR{v1alpha1.CIDR(text)}})
		if err != nil {
			return
		}
		address, err := netip.ParseAddr(host)
		if err != nil || address.Zone() != "" {
			return
		}
		address = address.Unmap()
		r := m.ranges[0]
		want := r.Addr().Is4() == address.Is4() && sharesBits(r.Addr(), address, r.Bits())
		if got := m.matchesAddress([]netip.Prefix{netip.PrefixFrom(address, address.BitLen())}); got != want {
			t.Errorf("range %q and address %q: got %v, want %v", text, host, got, want)
		}
	})
}

func sharesBits(a, b netip.Addr, bits int) bool {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range bits {
		if (x[i/8]^y[i/8])&(0x80>>(i%8)) != 0 {
			return false
		}
	}
	return true
}
