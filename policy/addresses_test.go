// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

// addressNode is a Node with addresses in its status; those with a slash are ranges
// of pods.
func addressNode(name string, addresses ...string) corev1.Node {
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": name}}}
	for _, text := range addresses {
		if strings.Contains(text, "/") {
			node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, text)
			continue
		}
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: text})
	}
	return node
}

func addressedPath(name string, ranges ...v1alpha1.CIDR) v1alpha1.MPTCPPath {
	path := v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: name}}
	path.Spec.Interfaces, path.Spec.AddressRanges = []v1alpha1.InterfacePattern{"eth1"}, ranges
	return path
}

// reporting is what an agent reports, and the controller confirmed before: words of
// the form path:address, :address for what is on no path, and +path:address for what
// was confirmed.
func reporting(name string, words ...string) v1alpha1.MPTCPNode {
	member := v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, word := range words {
		path, address, _ := strings.Cut(word, ":")
		if before, is := strings.CutPrefix(path, "+"); is {
			if member.Spec == nil {
				member.Spec = &v1alpha1.MPTCPNodeSpec{}
			}
			member.Spec.Confirmed = append(member.Spec.Confirmed, v1alpha1.ConfirmedAddress{Address: address, Path: v1alpha1.PathName(before)})
			continue
		}
		member.Status.Addresses = append(member.Status.Addresses, address)
		if path != "" {
			member.Status.Paths = append(member.Status.Paths, v1alpha1.NodePath{Name: v1alpha1.PathName(path), Addresses: []string{address}})
		}
	}
	return member
}

// words are what was decided of a node: what is confirmed, then what is refused.
func (a *NodeAddresses) words() (words []string) {
	for _, c := range a.Confirmed {
		words = append(words, fmt.Sprintf("%s:%s %s", c.Path, c.Address, c.Proof))
	}
	for _, r := range a.Contested {
		words = append(words, "contested "+r.Text)
	}
	for _, r := range a.Refused {
		words = append(words, r.Reason+" "+r.Text)
	}
	return words
}

// The cluster of these cases has the nodes a and b with 192.0.2.1 and 192.0.2.2, and
// the paths blue, which has ranges, and green, which has none.
func TestConfirmAddresses(t *testing.T) {
	cases := map[string]struct {
		a, b []string
		want []string // of a
	}{
		"the Node's own address":                     {[]string{"blue:192.0.2.1"}, nil, []string{"blue:192.0.2.1 Node"}},
		"one on no path":                             {[]string{":192.0.2.1"}, nil, []string{":192.0.2.1 Node"}},
		"one in the path's range":                    {[]string{"blue:198.51.100.7"}, nil, []string{"blue:198.51.100.7 Range"}},
		"one out of it":                              {[]string{"blue:203.0.113.7"}, nil, []string{"OutOfRange 203.0.113.7"}},
		"one of a family without a range":            {[]string{"blue:2001:db8::1"}, nil, []string{"blue:2001:db8::1 FirstClaim"}},
		"one on a path without ranges":               {[]string{"green:203.0.113.7"}, nil, []string{"green:203.0.113.7 FirstClaim"}},
		"one of another Node":                        {[]string{"blue:192.0.2.2"}, nil, []string{"Duplicate 192.0.2.2"}},
		"one of another Node, on a path":             {[]string{"green:192.0.2.2"}, nil, []string{"Duplicate 192.0.2.2"}},
		"one of another Node, had before":            {[]string{"green:192.0.2.2", "+green:192.0.2.2"}, nil, []string{"Duplicate 192.0.2.2"}},
		"one of another Node, mapped":                {[]string{"green:::ffff:192.0.2.2"}, nil, []string{"Duplicate 192.0.2.2"}},
		"one of another Node, as hexadecimal digits": {[]string{"green:::ffff:c000:202"}, nil, []string{"Duplicate 192.0.2.2"}},
		"one of pods":                                {[]string{"green:10.244.2.9"}, nil, []string{"PodRange 10.244.2.9"}},
		"one of pods, mapped":                        {[]string{"green:::ffff:10.244.2.9"}, nil, []string{"PodRange 10.244.2.9"}},
		"one of pods, IPv6":                          {[]string{"green:fd00:244::9"}, nil, []string{"PodRange fd00:244::9"}},
		"of its own pods":                            {[]string{"green:10.244.1.1"}, nil, []string{"PodRange 10.244.1.1"}},
		"unspecified":                                {[]string{"green:0.0.0.0", "green:::"}, nil, []string{"NotUnicast 0.0.0.0", "NotUnicast ::"}},
		"loopback":                                   {[]string{"green:127.0.0.1", "green:::1", "green:::ffff:127.0.0.1"}, nil, []string{"NotUnicast 127.0.0.1", "NotUnicast ::1"}},
		"an IPv4 address in a form of IPv6 of old":   {[]string{"green:::127.0.0.1"}, nil, []string{"NotUnicast ::7f00:1"}},
		"multicast and broadcast":                    {[]string{"green:224.0.0.1", "green:ff02::1", "green:255.255.255.255"}, nil, []string{"NotUnicast 224.0.0.1", "NotUnicast ff02::1", "NotUnicast 255.255.255.255"}},
		"link-local":                                 {[]string{"green:169.254.1.1", "green:fe80::1"}, nil, []string{"NotUnicast 169.254.1.1", "NotUnicast fe80::1"}},
		"with a zone":                                {[]string{"green:fe80::1%eth0"}, nil, []string{`Malformed "fe80::1%eth0"`}},
		"garbage":                                    {[]string{"green:none"}, nil, []string{`Malformed "none"`}},
		"with leading zeros":                         {[]string{"green:203.0.113.007"}, nil, []string{`Malformed "203.0.113.007"`}},
		"very much text":                             {[]string{"green:" + strings.Repeat("1", 9999)}, nil, []string{`Malformed "` + strings.Repeat("1", 42) + `…"`}},
		"another form":                               {[]string{"green:2001:DB8:0:0::9"}, nil, []string{"green:2001:db8::9 FirstClaim"}},
		"the same on two paths":                      {[]string{"blue:198.51.100.7", "green:198.51.100.7"}, nil, []string{"blue:198.51.100.7 Range"}},
		"two that report it first":                   {[]string{"green:203.0.113.7"}, []string{"green:203.0.113.7"}, []string{"Duplicate 203.0.113.7"}},
		"had before another reports it":              {[]string{"green:203.0.113.7", "+green:203.0.113.7"}, []string{"green:203.0.113.7"}, []string{"green:203.0.113.7 FirstClaim", "contested 203.0.113.7"}},
		"another had it before":                      {[]string{"blue:198.51.100.7"}, []string{"blue:198.51.100.7", "+blue:198.51.100.7"}, []string{"Duplicate 198.51.100.7"}},
		"another has it on a path that is down":      {[]string{"green:203.0.113.7"}, []string{"+green:203.0.113.7"}, []string{"Duplicate 203.0.113.7"}},
		"another lost its IPv6 address":              {[]string{"green:2001:db8::7"}, []string{"green:203.0.113.8", "+green:2001:db8::7"}, []string{"Duplicate 2001:db8::7"}},
		"another gave it up for another":             {[]string{"green:203.0.113.7"}, []string{"green:203.0.113.8", "+green:203.0.113.7"}, []string{"green:203.0.113.7 FirstClaim"}},
		"both had it":                                {[]string{"green:203.0.113.7", "+green:203.0.113.7"}, []string{"+green:203.0.113.7"}, []string{"Duplicate 203.0.113.7"}},
		"kept while the path is down":                {[]string{"+green:203.0.113.7"}, nil, []string{"green:203.0.113.7 FirstClaim"}},
		"kept on a path that cannot be used":         {[]string{":203.0.113.7", "+green:203.0.113.7"}, nil, []string{"green:203.0.113.7 FirstClaim"}},
		"not kept out of the ranges":                 {[]string{"+blue:203.0.113.7"}, nil, []string{"OutOfRange 203.0.113.7"}},
		"moved to another path":                      {[]string{"green:198.51.100.7", "+blue:198.51.100.7"}, nil, []string{"green:198.51.100.7 FirstClaim"}},
		"on no path, in a path's range":              {[]string{":198.51.100.7"}, nil, []string{":198.51.100.7 Range"}},
		"on no path, and nothing known of it":        {[]string{":203.0.113.7"}, nil, []string{":203.0.113.7 FirstClaim"}},
		"on a path that does not exist":              {[]string{"purple:198.51.100.7"}, nil, []string{":198.51.100.7 Range"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := ConfirmAddresses(Claims{
				Nodes:   []corev1.Node{addressNode("a", "192.0.2.1", "10.244.1.0/24"), addressNode("b", "192.0.2.2", "10.244.2.0/24", "fd00:244::/64", "node-b")},
				Paths:   []v1alpha1.MPTCPPath{addressedPath("blue", "192.0.2.0/24", "198.51.100.0/24"), addressedPath("green")},
				Members: []v1alpha1.MPTCPNode{reporting("a", c.a...), reporting("b", c.b...)},
			})
			if diff := cmp.Diff(c.want, got["a"].words()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestConfirmedAddressesDependOnNodesAndPaths(t *testing.T) {
	twice := []corev1.Node{addressNode("a", "192.0.2.1"), addressNode("b", "192.0.2.1")}
	elsewhere := addressedPath("blue", "198.51.100.0/24")
	elsewhere.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "b"}}
	for name, c := range map[string]struct {
		nodes  []corev1.Node
		path   v1alpha1.MPTCPPath
		member v1alpha1.MPTCPNode
		want   []string
	}{
		"no Node":                                 {nil, addressedPath("blue"), reporting("a", "blue:192.0.2.1", "+blue:192.0.2.1"), []string{"NodeNotFound everything"}},
		"two Nodes with one address":              {twice, addressedPath("blue"), reporting("a", "blue:192.0.2.1"), []string{"Duplicate 192.0.2.1"}},
		"a path of other nodes":                   {twice[:1], elsewhere, reporting("a", "blue:198.51.100.7"), []string{"Unproven 198.51.100.7"}},
		"on no path, where all paths have ranges": {twice[:1], addressedPath("blue", "198.51.100.0/24"), reporting("a", ":203.0.113.7"), []string{"Unproven 203.0.113.7"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := ConfirmAddresses(Claims{Nodes: c.nodes, Paths: []v1alpha1.MPTCPPath{c.path}, Members: []v1alpha1.MPTCPNode{c.member}})
			if diff := cmp.Diff(c.want, got["a"].words()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestANodeHasNoMoreAddressesThanItsObjectHolds(t *testing.T) {
	var words []string
	for i := range 300 {
		words = append(words, fmt.Sprintf("green:203.0.%d.%d", 112+i/250, 1+i%250))
	}
	got := ConfirmAddresses(Claims{
		Nodes: []corev1.Node{addressNode("a")}, Paths: []v1alpha1.MPTCPPath{addressedPath("green")}, Members: []v1alpha1.MPTCPNode{reporting("a", words...)},
	})
	if len(got["a"].Confirmed) != maxConfirmed {
		t.Errorf("%d are confirmed", len(got["a"].Confirmed))
	}
}

// FuzzConfirmAddresses: whatever two agents report, and had before, no address is
// two nodes', nor a node's that must not have it.
func FuzzConfirmAddresses(f *testing.F) {
	f.Add("192.0.2.1 ::ffff:192.0.2.2", "192.0.2.2 203.0.113.7", "203.0.113.7", "10.244.2.9 fe80::1%x ::1")
	nodes := []corev1.Node{addressNode("a", "192.0.2.1"), addressNode("b", "192.0.2.2", "10.244.2.0/24")}
	f.Fuzz(func(t *testing.T, a, b, hadA, hadB string) {
		member := func(name, reported, had string) v1alpha1.MPTCPNode {
			m := reporting(name)
			m.Status.Addresses = strings.Fields(reported)
			m.Status.Paths = []v1alpha1.NodePath{{Name: "blue", Addresses: m.Status.Addresses}, {Name: "green", Addresses: m.Status.Addresses}}
			m.Spec = &v1alpha1.MPTCPNodeSpec{}
			for _, text := range strings.Fields(had) {
				m.Spec.Confirmed = append(m.Spec.Confirmed, v1alpha1.ConfirmedAddress{Address: text, Path: "green"})
			}
			return m
		}
		got := ConfirmAddresses(Claims{
			Nodes: nodes, Members: []v1alpha1.MPTCPNode{member("a", a, hadA), member("b", b, hadB)},
			Paths: []v1alpha1.MPTCPPath{addressedPath("blue", "198.51.100.0/24"), addressedPath("green")},
		})
		seen := map[string]bool{}
		for name, result := range got {
			for _, c := range result.Confirmed {
				address := netip.MustParseAddr(c.Address)
				of := slices.IndexFunc(nodes, func(n corev1.Node) bool { return n.Status.Addresses[0].Address == c.Address })
				wrong := seen[c.Address] || of >= 0 && nodes[of].Name != name || !address.IsGlobalUnicast() ||
					address.Is4In6() || address.String() != c.Address || netip.MustParsePrefix("10.244.2.0/24").Contains(address)
				if wrong {
					t.Errorf("node %s has %s", name, c.Address)
				}
				seen[c.Address] = true
			}
		}
	})
}
