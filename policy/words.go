// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"
	"unicode/utf8"

	"braid.dev/braid/api/v1alpha1"
)

// enumerate lists names for people.
func enumerate[S ~string](names []S) string { return join(names, ", ") }

func join[S ~string](texts []S, separator string) string {
	plain := make([]string, 0, len(texts))
	for _, text := range texts {
		plain = append(plain, string(text))
	}
	return strings.Join(plain, separator)
}

func sorted(names []v1alpha1.PathName) []v1alpha1.PathName {
	return slices.Sorted(slices.Values(names))
}

// shorten cuts a text to a number of bytes, not inside a character.
func shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const ellipsis = "…"
	cut := limit - len(ellipsis)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + ellipsis
}
