// SPDX-License-Identifier: Apache-2.0

package planes

import (
	"net/netip"
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

// has: a NIC is one of a path's, as agents choose them. Its nodeSelector is not looked at.
func has(spec *v1alpha1.MPTCPPathSpec, member *Member) bool {
	byName := len(spec.Interfaces) == 0 || slices.ContainsFunc(spec.Interfaces, func(pattern v1alpha1.InterfacePattern) bool {
		matched, err := path.Match(string(pattern), member.NIC)
		return err == nil && matched
	})
	byAddress := len(spec.AddressRanges) == 0 || slices.ContainsFunc(member.Addresses, func(address netip.Prefix) bool {
		return slices.ContainsFunc(spec.AddressRanges, func(cidr v1alpha1.CIDR) bool {
			prefix, err := netip.ParsePrefix(string(cidr))
			return err == nil && prefix.Contains(address.Addr())
		})
	})
	return byName && byAddress
}

// maxRanges is how many a path may have.
const maxRanges = 16

// Path is the MPTCPPath of a plane. Ranges of addresses, and not names, since they stay
// when a NIC is replaced, and prove that what an agent reports may be its node's.
func (p *Plane) Path() *v1alpha1.MPTCPPath {
	object := &v1alpha1.MPTCPPath{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MPTCPPath"},
		ObjectMeta: metav1.ObjectMeta{Name: p.Name},
	}
	for _, subnet := range p.Subnets[:min(len(p.Subnets), maxRanges)] {
		object.Spec.AddressRanges = append(object.Spec.AddressRanges, v1alpha1.CIDR(subnet.String()))
	}
	if p.Routed {
		object.Spec.Underlay = v1alpha1.UnderlayRouted
	}
	if p.ByName {
		for _, member := range p.Members {
			if pattern := v1alpha1.InterfacePattern(member.NIC); !slices.Contains(object.Spec.Interfaces, pattern) {
				object.Spec.Interfaces = append(object.Spec.Interfaces, pattern)
			}
		}
	}
	if p.CapacityMbit > 0 {
		object.Spec.Capacity = resource.NewQuantity(p.CapacityMbit*1e6, resource.DecimalSI)
	}
	return object
}

// Policy is the simplest policy of a namespace: all its pods, all paths.
func Policy(namespace string) *v1alpha1.MPTCPPolicy {
	return &v1alpha1.MPTCPPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MPTCPPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "spread"},
	}
}
