// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"testing"

	"braid.dev/braid/policy"
)

// full is the cluster that the project's figures are about.
var full = Size{Nodes: 1000, Pods: 20_000, Namespaces: 200, Policies: 500}

func BenchmarkCompileOfAThousandNodes(b *testing.B) {
	in := full.Objects().Input()
	b.ReportAllocs()
	for b.Loop() {
		policy.Compile(in)
	}
}
