// SPDX-License-Identifier: Apache-2.0

package policy

import "fmt"

// NothingSelected says which of its selectors is why a policy selects no running pod.
func (r *PolicyResult) NothingSelected() string {
	const nothing = "no running pod is selected"
	switch {
	case r.Error != "":
		return nothing
	case r.MatchedNamespaces == nil && r.AllPods:
		return nothing + ": its namespace has none"
	case r.MatchedNamespaces == nil:
		return nothing + ": spec.podSelector matches none of its namespace"
	case *r.MatchedNamespaces == 0:
		return nothing + ": spec.namespaceSelector matches no namespace"
	case r.AllPods:
		return fmt.Sprintf("%s: spec.namespaceSelector matches %s without a running pod", nothing, namespaces(*r.MatchedNamespaces))
	}
	return fmt.Sprintf("%s: spec.namespaceSelector matches %s, and spec.podSelector no pod there", nothing, namespaces(*r.MatchedNamespaces))
}

func namespaces(count int) string {
	if count == 1 {
		return "1 namespace"
	}
	return fmt.Sprintf("%d namespaces", count)
}
