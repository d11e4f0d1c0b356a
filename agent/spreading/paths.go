// SPDX-License-Identifier: Apache-2.0

package spreading

import (
	"cmp"
	"slices"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// openPaths are those that an endpoint's packets may take while all is well, and why the
// others of its policy are not. Of preferred paths it is taken that they are good.
func openPaths(model *node.Model, endpoint *node.Endpoint) (open, shut []string) {
	for _, allowed := range endpoint.Paths {
		at := slices.IndexFunc(model.Paths, func(p node.Path) bool { return p.Name == string(allowed.Path) })
		switch {
		case at < 0:
			shut = append(shut, "path "+string(allowed.Path)+" does not exist here")
		case model.Paths[at].Interface == 0 || !model.Paths[at].Up:
			shut = append(shut, "path "+string(allowed.Path)+": "+cmp.Or(model.Paths[at].Found.Message, "its NIC is down"))
		default:
			open = append(open, string(allowed.Path))
		}
	}
	open, shut = only(open, shut, endpoint.Backup, false, "is a backup")
	if preference := endpoint.Preference; preference != nil && (preference.Weight == 0 || preference.Weight >= 100) {
		open, shut = only(open, shut, endpoint.Preferred, true, "is not preferred")
	}
	if len(open) == 1 {
		shut = append([]string{"path " + open[0] + " alone is left"}, shut...)
	}
	return open, shut
}

// only leaves of the open paths those that are among some names, or are not, where any is.
func only(open, shut []string, names []v1alpha1.PathName, among bool, why string) (left, others []string) {
	others = shut
	for _, path := range open {
		if slices.Contains(names, v1alpha1.PathName(path)) == among {
			left = append(left, path)
		} else {
			others = append(others, "path "+path+" "+why)
		}
	}
	if len(left) == 0 {
		return open, shut
	}
	return left, others
}
