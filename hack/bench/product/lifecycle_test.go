// SPDX-License-Identifier: Apache-2.0

package product

import (
	"testing"

	"braid.dev/braid/hack/bench/rig"
)

func TestFiguresOfATestAreRead(t *testing.T) {
	m := rig.NewMeasurement(rig.Options{}, []rig.Unit{{"chaos.lost", ""}, {"chaos.converged_s", "s"}})
	if err := addLines(m, "chaos.lost\t\t0\nchaos.converged_s\ts\t4.25\n"); err != nil {
		t.Fatal(err)
	}
	if got := m.Values("chaos.converged_s"); len(got) != 1 || got[0] != 4.25 {
		t.Errorf("the figure is %v", got)
	}
	if got := m.Values("chaos.lost"); len(got) != 1 || got[0] != 0 {
		t.Errorf("the figure is %v", got)
	}
	for _, wrong := range []string{"chaos.lost 0\n", "chaos.lost\t\tnone\n"} {
		if err := addLines(m, wrong); err == nil {
			t.Errorf("%q is taken for a figure", wrong)
		}
	}
}
