// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"io"
	"net/http"
	"regexp"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// The policy names what is in the page, so that a browser runs it, and nothing else that
// somebody might get into it.
func TestTheScriptAndTheStyleInThePageAreThoseOfThePolicy(t *testing.T) {
	s, _ := serve(t, &made{})
	response, err := http.Get(s.Address())
	require.NoError(t, err)
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	policy := response.Header.Get("Content-Security-Policy")
	for directive, element := range map[string]string{"script-src": "script", "style-src": "style"} {
		inside := regexp.MustCompile("(?s)<" + element + ">(.+)</" + element + ">").FindSubmatch(page)
		require.NotNil(t, inside, element)
		require.Contains(t, policy, directive+" 'self' "+sum(inside[1])+";")
	}
}

func TestModulesBecomeOneScriptThatOthersCanImportFrom(t *testing.T) {
	files := fstest.MapFS{
		"one.js": {Data: []byte("// A comment.\nexport const a = 1;\nexport async function b() {}\nconst hidden = 2;\n")},
		"two.js": {Data: []byte("import { a,\n  b } from './one.js';\nexport class C {}\n")},
	}
	script, modules, err := bundle(files, []string{"one", "two"})
	require.NoError(t, err)
	require.Equal(t, "'use strict';\nconst braid = globalThis.braid = {};\n"+
		"braid.one = (() => {\nconst a = 1;\nasync function b() {}\nconst hidden = 2;\n\nreturn { a, b };\n})();\n"+
		"braid.two = (() => {\nconst { a,\n  b } = braid.one;\nclass C {}\n\nreturn { C };\n})();\n", string(script))
	require.Equal(t, "export const { a, b } = globalThis.braid.one;\n", string(modules["one"]))
}

func TestAModuleThatCannotBecomePartOfAScriptIsRefused(t *testing.T) {
	for _, text := range []string{"\nexport default 1;", "\nexport let a = 1;", "\nimport all from './one.js';", "\nimport './one.js';"} {
		_, _, err := bundle(fstest.MapFS{"one.js": {Data: []byte(text)}}, []string{"one"})
		require.ErrorContains(t, err, "one.js imports or exports in a way", text)
	}
	_, err := fill([]byte("<style></style>"), "<style></style>", []byte("a </style>"))
	require.Error(t, err, "an end in what is put in")
	_, err = fill([]byte("<p></p>"), "<style></style>", nil)
	require.Error(t, err, "a page without the place")
}
