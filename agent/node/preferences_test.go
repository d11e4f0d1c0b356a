// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"braid.dev/braid/api/v1alpha1"
)

// Endpoints in the kernel refer to classes by their indexes.
func TestPreferencesKeepTheirClassesWhateverComesAndGoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Preferences
		before := map[int32]int{}
		for range 6 {
			var endpoints []v1alpha1.PlanEndpoint
			wanted := rapid.SliceOfN(rapid.Int32Range(1, 12), 0, 14).Draw(t, "factors")
			for _, percent := range wanted {
				preference := &v1alpha1.PlanPreference{MaxRTTPercent: percent, Weight: rapid.Int32Range(1, 100).Draw(t, "weight")}
				endpoints = append(endpoints, v1alpha1.PlanEndpoint{Preferred: []v1alpha1.PathName{"green"}, Preference: preference})
			}
			c = c.assign(endpoints)
			after, owner := map[int32]int{}, map[int]int32{}
			for i := range endpoints {
				percent := wanted[i]
				class, exact := c.Class(&endpoints[i])
				if c[class] == nil || !c[class].Paths["green"] {
					t.Fatalf("factor %d has the class %d, of which nothing is known", percent, class)
				}
				if !exact {
					if class != MaxClasses-1 || slices.Contains(c[:], nil) {
						t.Fatalf("factor %d shares the class %d of %v", percent, class, c)
					}
					continue
				}
				if other, taken := owner[class]; taken && other != percent || c[class].MaxRTTPercent != percent {
					t.Fatalf("factor %d has the class %d of %v", percent, class, c[class].PlanPreference)
				}
				if was, had := before[percent]; had && was != class {
					t.Fatalf("factor %d moved from class %d to %d", percent, was, class)
				}
				owner[class], after[percent] = percent, class
			}
			before = after
		}
	})
}
