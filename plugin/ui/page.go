// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// firstModules are those that the map of the cluster needs, each after those that it imports.
// The page has them and its style in itself: a browser that was just started takes longer to
// fetch seven files than to draw the map.
var firstModules = []string{"dom", "store", "rows", "cluster", "app"}

// document is the page as it is served.
type document struct {
	// before and after are what stands around the state.
	before, after []byte
	// policy is the page's Content Security Policy.
	policy string
	// modules are the files of those in the page, for others that import them.
	modules map[string][]byte
}

func newDocument(files fs.FS) (*document, error) {
	page, err := fs.ReadFile(files, "index.html")
	if err != nil {
		return nil, err
	}
	style, err := fs.ReadFile(files, "style.css")
	if err != nil {
		return nil, err
	}
	script, modules, err := bundle(files, firstModules)
	if err != nil {
		return nil, err
	}
	plot, err := fs.ReadFile(files, "vendor/uPlot.iife.min.js")
	if err != nil {
		return nil, err
	}
	modules["vendor/uPlot"] = append(plot, "\nexport default uPlot;\n"...)
	d := &document{policy: fmt.Sprintf(policyFormat, sum(script), sum(style)), modules: modules}
	for place, content := range map[string][]byte{"<style></style>": style, "<script></script>": script} {
		if page, err = fill(page, place, content); err != nil {
			return nil, err
		}
	}
	before, after, found := bytes.Cut(page, []byte(` id="state">`))
	if !found {
		return nil, fmt.Errorf("the page has no place for the state")
	}
	d.before, d.after = append(before, ` id="state">`...), after
	return d, nil
}

// fill puts a content into an element of the page.
func fill(page []byte, place string, content []byte) ([]byte, error) {
	if bytes.Count(page, []byte(place)) != 1 || bytes.Contains(content, []byte("</")) {
		return nil, fmt.Errorf("the page has no place for %s, or its content ends it", place)
	}
	start, end, _ := strings.Cut(place, "><")
	return bytes.Replace(page, []byte(place), slices.Concat([]byte(start+">"), content, []byte("<"+end)), 1), nil
}

// sum is how a Content Security Policy names what may be in the page.
func sum(content []byte) string {
	sum := sha256.Sum256(content)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

var (
	imports = regexp.MustCompile(`(?m)^import \{([^}]*)\} from '\./(\w+)\.js';$`)
	exports = regexp.MustCompile(`(?m)^export ((?:async )?(?:const|function|class)) (\w+)`)
)

// bundle makes one script of modules that import each other alone, and of each a module that
// exports what the one in the script does. Comments for readers of the source stay there.
func bundle(files fs.FS, names []string) (script []byte, modules map[string][]byte, err error) {
	var b bytes.Buffer
	modules = map[string][]byte{}
	b.WriteString("'use strict';\nconst braid = globalThis.braid = {};\n")
	for _, name := range names {
		text, err := fs.ReadFile(files, name+".js")
		if err != nil {
			return nil, nil, err
		}
		var exported []string
		for _, match := range exports.FindAllSubmatch(text, -1) {
			exported = append(exported, string(match[2]))
		}
		all := strings.Join(exported, ", ")
		text = imports.ReplaceAll(text, []byte("const {$1} = braid.$2;"))
		text = exports.ReplaceAll(text, []byte("$1 $2"))
		if bytes.Contains(text, []byte("\nimport ")) || bytes.Contains(text, []byte("\nexport ")) {
			return nil, nil, fmt.Errorf("%s.js imports or exports in a way that is not known here", name)
		}
		fmt.Fprintf(&b, "braid.%s = (() => {\n%s\nreturn { %s };\n})();\n", name, withoutComments(text), all)
		modules[name] = fmt.Appendf(nil, "export const { %s } = globalThis.braid.%s;\n", all, name)
	}
	return b.Bytes(), modules, nil
}

var comments = regexp.MustCompile(`(?m)^\s*//.*\n`)

// withoutComments leaves out lines that are comments alone.
func withoutComments(text []byte) []byte { return comments.ReplaceAll(text, nil) }

// page serves the page with what is known of the cluster in it: it is data there, which no
// browser runs. JSON as it is written here has no <, so nothing in it ends the element.
func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	var state []byte
	if known, _ := s.history.since(0); known.Version > 0 {
		var err error
		if state, err = json.Marshal(known); err != nil {
			http.Error(w, "writing the cluster as JSON: "+err.Error(), http.StatusInternalServerError)
			return
		}
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(slices.Concat(s.document.before, state, s.document.after)) // a page that is gone needs none
}

// script serves a module, or another script as one.
func script(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
		_, _ = w.Write(content)
	}
}
