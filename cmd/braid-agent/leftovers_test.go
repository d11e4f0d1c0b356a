// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLeftoversAreListed(t *testing.T) {
	n := build(t)
	out, err := n.run("leftovers")
	require.NoError(t, err)
	for _, text := range []string{"Pin", "endpoints", "Program    from_endpoint  pod0 ingress", "Program    to_endpoint  pod0 egress"} {
		if !strings.Contains(out, text) {
			t.Errorf("the leftovers have no %q:\n%s", text, out)
		}
	}
	if _, err := n.run("leftovers", "--check"); !errors.Is(err, errLeft) {
		t.Errorf("checking leftovers: %v", err)
	}
}
