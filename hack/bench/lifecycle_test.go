// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestFiguresOfATestAreRead(t *testing.T) {
	f := newFigures()
	if err := f.addLines("chaos.lost\t\t0\nchaos.converged_s\ts\t4.25\n"); err != nil {
		t.Fatal(err)
	}
	if got := f.Figures["chaos.converged_s"]; got.Value != 4.25 || got.Unit != "s" || got.N != 1 {
		t.Errorf("the figure is %+v", got)
	}
	if _, there := f.Figures["chaos.lost"]; !there {
		t.Error("a figure is missing")
	}
	for _, wrong := range []string{"chaos.lost 0\n", "chaos.lost\t\tnone\n"} {
		if err := f.addLines(wrong); err == nil {
			t.Errorf("%q is taken for a figure", wrong)
		}
	}
}
