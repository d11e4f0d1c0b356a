// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// AnnotationNames is the annotation of an MPTCPNodePlan that names its endpoints by their
// addresses. Whoever wants names alone asks the API server for the plans' metadata, which are a
// tenth of the plans. The controller writes it; see PlanNames.
const AnnotationNames = "braid.dev/names"

// maxNames is how long the names may be: all annotations of an object may have 256 KiB together.
const maxNames = 200 << 10

// PlanNames is the value of AnnotationNames for these endpoints in a plan of this generation. It
// is empty, which tells nothing, where there would be too much to tell.
func PlanNames(endpoints []PlanEndpoint, generation int64) string {
	var b strings.Builder
	b.WriteString(strconv.FormatInt(generation, 10))
	for i := range endpoints {
		endpoint := &endpoints[i]
		fmt.Fprintf(&b, " %s/%s=%s", endpoint.Namespace, endpoint.Name, strings.Join(endpoint.Addresses, ","))
	}
	if b.Len() > maxNames {
		return ""
	}
	return b.String()
}

// NamesIn has the endpoints, as namespace/name, by their addresses. It is false where the text
// is not of the plan's present generation: what an older controller changed since, it did not name.
func NamesIn(text string, generation int64) (map[netip.Addr]string, bool) {
	of, rest, _ := strings.Cut(text, " ")
	if of != strconv.FormatInt(generation, 10) {
		return nil, false
	}
	names := map[netip.Addr]string{}
	for entry := range strings.FieldsSeq(rest) {
		name, addresses, _ := strings.Cut(entry, "=")
		for each := range strings.SplitSeq(addresses, ",") {
			if address, err := netip.ParseAddr(each); err == nil {
				names[address] = name
			}
		}
	}
	return names, true
}
