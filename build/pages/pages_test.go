// SPDX-License-Identifier: Apache-2.0

package pages_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/build/pages"
)

const page = "# Page\n" +
	"\n<!-- not run (make; for c in): it needs a registry -->\n```sh\nmake images\nfor c in a b; do\n  push $c\ndone\nkubectl get pod   # and its state\n```\n" +
	"\n<!-- not run: it takes an hour -->\n```sh\nmake bench\nmake soak\n```\n" +
	"\n```console\n$ kubectl get mpath\nNAME\nblue\n$ kubectl get mpol\nNAME\n```\n" +
	"\n```text\n$ nothing\n```\n"

func TestCommandsOfAPageAreFoundWithTheirMarksAndOutput(t *testing.T) {
	var found []pages.Command
	for _, b := range pages.Blocks("page", page) {
		if !b.HasCommands() {
			require.Equal(t, "text", b.Kind)
			continue
		}
		commands, err := b.Commands()
		require.NoError(t, err)
		found = append(found, commands...)
	}
	require.Equal(t, []pages.Command{
		{Text: "make images", NotRun: "it needs a registry"},
		{Text: "for c in a b; do\n  push $c\ndone", NotRun: "it needs a registry"},
		{Text: "kubectl get pod", Comment: "and its state"},
		{Text: "make bench", NotRun: "it takes an hour"},
		{Text: "make soak", NotRun: "it takes an hour"},
		{Text: "kubectl get mpath", Shown: "NAME\nblue\n"},
		{Text: "kubectl get mpol", Shown: "NAME\n"},
	}, found)
}

func TestAMarkOfNoCommandIsAnError(t *testing.T) {
	_, err := pages.Blocks("page", "<!-- not run (make): no registry -->\n```sh\nkubectl get pod\n```\n")[0].Commands()
	require.ErrorContains(t, err, `no command begins with "make"`)
}
