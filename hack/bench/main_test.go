// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"braid.dev/braid/hack/bench/product"
)

func TestEachExperimentHasADescriptionFiguresAndAPlaceInTheDocumentation(t *testing.T) {
	documentation, err := os.ReadFile("../../docs/bench.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, one := range experiments(&product.Fleet{}) {
		about := one.About()
		if about.Measures == "" || len(about.Figures) == 0 || names[about.Name] {
			t.Errorf("%q has no description or no figures, or is there twice", about.Name)
		}
		if !strings.Contains(string(documentation), "`"+about.Name+"`") {
			t.Errorf("docs/bench.md does not name %s", about.Name)
		}
		names[about.Name] = true
	}
}
