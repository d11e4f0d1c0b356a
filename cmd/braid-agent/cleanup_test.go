// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestADryRunListsWhatWouldBeRemoved(t *testing.T) {
	n := build(t)
	out, err := n.run("cleanup", "--dry-run")
	require.NoError(t, err)
	for _, text := range []string{"Pin", "endpoints", "Program    from_endpoint  pod0 ingress", "Program    to_endpoint  pod0 egress"} {
		if !strings.Contains(out, text) {
			t.Errorf("the list has no %q:\n%s", text, out)
		}
	}
	if _, err := n.run("cleanup", "--dry-run", "--check"); !errors.Is(err, errLeft) {
		t.Errorf("checking what is left: %v", err)
	}
}
