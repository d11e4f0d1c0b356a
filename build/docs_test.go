// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"regexp"
	"strings"
	"testing"

	"braid.dev/braid/build/pages"
)

// allPages are README.md and docs/, by their names.
func allPages(t *testing.T) map[string]string {
	t.Helper()
	found, err := pages.Read("..")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// executed is what a page has run in one of Braid's own containers.
var executed = regexp.MustCompile(`kubectl exec [^\n]*braid[^\n]* -- (\S+)`)

// The images have no shell and no PATH: their programs are in the root directory.
func TestPagesRunProgramsOfTheImagesByTheirPaths(t *testing.T) {
	seen := 0
	for name, text := range allPages(t) {
		for _, command := range executed.FindAllStringSubmatch(text, -1) {
			seen++
			if !strings.HasPrefix(command[1], "/") {
				t.Errorf("%s: %s runs %s, which the container does not find", name, command[0], command[1])
			}
		}
	}
	if seen == 0 {
		t.Error("no page runs a program in a container: look for them otherwise")
	}
}

func TestTheReadmeHasImagesMadeBeforeTheyArePulled(t *testing.T) {
	readme := allPages(t)["../README.md"]
	made, pushed, installed := strings.Index(readme, "\nmake images\n"), strings.Index(readme, "skopeo copy"), strings.Index(readme, "\nhelm install")
	if made < 0 || pushed < made || installed < pushed || !strings.Contains(readme[installed:], "--set image.registry=") {
		t.Errorf("images are made at %d, pushed at %d, and installed at %d", made, pushed, installed)
	}
}
