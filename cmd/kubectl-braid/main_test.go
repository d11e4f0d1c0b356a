// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
)

func TestUnderTheNameThatKubectlLooksForItCompletes(t *testing.T) {
	tests := map[string]struct{ called, want []string }{
		"as the plugin":      {[]string{"/usr/local/bin/kubectl-braid", "top", "web"}, []string{"top", "web"}},
		"to complete":        {[]string{"/usr/local/bin/kubectl_complete-braid", "top", "w"}, []string{"__complete", "top", "w"}},
		"without any":        {[]string{"kubectl-braid"}, []string{}},
		"to complete a word": {[]string{"kubectl_complete-braid", ""}, []string{"__complete", ""}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := arguments(test.called); !slices.Equal(got, test.want) {
				t.Errorf("the arguments are %q, want %q", got, test.want)
			}
		})
	}
}
