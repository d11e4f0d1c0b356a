// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/plugin/manifest"
)

// described tells of each document its number, and its object or what is wrong.
func described(documents []manifest.Document) (lines []string) {
	for _, d := range documents {
		said := d.Problem
		if d.Object != nil {
			said = d.Object.GetKind() + " " + d.Object.GetName()
		}
		lines = append(lines, fmt.Sprintf("%d %s", d.Number, said))
	}
	return lines
}

func TestDocumentsAreToldApart(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"nothing at all has no document":             {"", nil},
		"comments alone are no document":             {"# later\n", nil},
		"an object is one document":                  {"kind: Pod\nmetadata: {name: a}\n", []string{"1 Pod a"}},
		"a marker at the beginning begins no second": {"---\nkind: Pod\nmetadata: {name: a}\n", []string{"1 Pod a"}},
		"a document of comments keeps its number": {
			"kind: Pod\nmetadata: {name: a}\n---\n# nothing\n---\nkind: Pod\nmetadata: {name: b}\n", []string{"1 Pod a", "3 Pod b"},
		},
		"lines may end as on Windows": {"kind: Pod\r\nmetadata: {name: a}\r\n---\r\nkind: Pod\r\nmetadata: {name: b}\r\n", []string{"1 Pod a", "2 Pod b"}},
		"JSON is read as well":        {`{"kind": "Pod", "metadata": {"name": "a"}}`, []string{"1 Pod a"}},
		"the objects of a List have the number of the List": {
			"kind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\nkind: List\nitems:\n- {kind: Pod, metadata: {name: b}}\n- {kind: Pod, metadata: {name: c}}\n",
			[]string{"1 Pod a", "2 Pod b", "2 Pod c"},
		},
		"a List has objects alone": {"apiVersion: v1\nkind: List\nitems: [text, {kind: Pod, metadata: {name: a}}]\n", []string{"1 items[0] is no object", "1 Pod a"}},
		"an empty List has none":   {"apiVersion: v1\nkind: List\nitems: []\n", nil},
		"a list is no object":      {"- kind: Pod\n", []string{"1 it is no object: a mapping with apiVersion, kind and metadata is expected"}},
		"text is no object":        {"Pod\n", []string{"1 it is no object: a mapping with apiVersion, kind and metadata is expected"}},
		"what follows a fault is read": {"kind: [Pod\n---\nkind: Pod\nmetadata: {name: b}\n", []string{
			"1 line 1: did not find expected ',' or ']'", "2 Pod b",
		}},
		"a key that comes twice is a fault": {"kind: Pod\nkind: Node\n", []string{`1 unmarshal errors:` + "\n" + `  line 2: key "kind" already set in map`}},
	} {
		t.Run(name, func(t *testing.T) {
			documents, err := manifest.Read([]string{"-"}, strings.NewReader(test.text))
			require.NoError(t, err)
			require.Equal(t, test.want, described(documents))
			for _, d := range documents {
				require.Equal(t, "-", d.File)
			}
		})
	}
}

// written makes files, and returns the directory that they are in.
func written(t *testing.T, files map[string]string) string {
	t.Helper()
	directory := t.TempDir()
	for name, text := range files {
		file := filepath.Join(directory, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	return directory
}

func TestADirectoryIsReadByTheNamesOfItsFiles(t *testing.T) {
	pod := func(name string) string { return "kind: Pod\nmetadata: {name: " + name + "}\n" }
	directory := written(t, map[string]string{
		"b.yml": pod("b"), "a.yaml": pod("a"), "c.json": `{"kind": "Pod", "metadata": {"name": "c"}}`,
		"README.md": "# no manifest", "d.yaml.bak": pod("d"), "below/e.yaml": pod("e"), "named.yaml/f.yaml": pod("f"),
	})
	documents, err := manifest.Read([]string{directory, filepath.Join(directory, "README.md")}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"1 Pod a", "1 Pod b", "1 Pod c"}, described(documents), "a file that is named is read whatever its name: it has a comment alone")
	require.Equal(t, filepath.Join(directory, "a.yaml"), documents[0].File)
}

func TestFilesAreReadInTheOrderInWhichTheyAreNamed(t *testing.T) {
	directory := written(t, map[string]string{"a": "kind: Pod\n", "b": "kind: Node\n"})
	documents, err := manifest.Read([]string{filepath.Join(directory, "b"), "-", filepath.Join(directory, "a")}, strings.NewReader("kind: Job"))
	require.NoError(t, err)
	require.Equal(t, []string{"1 Node ", "1 Job ", "1 Pod "}, described(documents))
}

func TestWhatCannotBeOpenedEndsTheReading(t *testing.T) {
	directory := written(t, map[string]string{"a.yaml": "kind: Pod\n", "empty/README.md": ""})
	for name, test := range map[string]struct{ file, says string }{
		"a file that is not there":      {"b.yaml", "no such file or directory"},
		"a directory without manifests": {"empty", "has no file that ends in .yaml, .yml, .json"},
	} {
		t.Run(name, func(t *testing.T) {
			documents, err := manifest.Read([]string{filepath.Join(directory, "a.yaml"), filepath.Join(directory, test.file)}, nil)
			require.ErrorContains(t, err, test.says)
			require.ErrorContains(t, err, filepath.Join(directory, test.file))
			require.Empty(t, documents)
		})
	}
}
