// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Programs are those that a match asks, at all of its levels; none where it is nil.
func (m *Match) Programs() []ProgramSelector {
	if m == nil {
		return nil
	}
	found := programsOf(&m.Selectors)
	for _, list := range [][]NestedMatch{m.All, m.Any} {
		for i := range list {
			found = append(found, list[i].programs()...)
		}
	}
	if m.Not != nil {
		found = append(found, m.Not.programs()...)
	}
	return found
}

func (m *NestedMatch) programs() []ProgramSelector {
	found := programsOf(&m.Selectors)
	for _, list := range [][]Selectors{m.All, m.Any} {
		for i := range list {
			found = append(found, programsOf(&list[i])...)
		}
	}
	if m.Not != nil {
		found = append(found, programsOf(m.Not)...)
	}
	return found
}

func programsOf(s *Selectors) []ProgramSelector {
	if s.Program == nil {
		return nil
	}
	return []ProgramSelector{*s.Program}
}
