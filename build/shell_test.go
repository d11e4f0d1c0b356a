// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"fmt"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"

	"braid.dev/braid/build/pages"
)

// kinds are what a fence may say: commands; commands after a prompt, with their output;
// output or a picture; and files.
var kinds = map[string]bool{"sh": true, "console": true, "text": true, "yaml": true, "json": true, "c": true}

func blocks(all map[string]string) (found []pages.Block) {
	for name, text := range all {
		found = append(found, pages.Blocks(name, text)...)
	}
	return found
}

// unknown stands for what only a shell would know, and is no name of anything.
const unknown = "VALUE"

// shell is what the blocks of a page have said so far.
type shell struct {
	variables map[string]string
	functions map[string]bool
}

// commands are the simple commands of a script, those in substitutions, functions and
// loops among them, each with its words.
func (s *shell) commands(b pages.Block) (all [][]string, err error) {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(b.Script()), b.String())
	if err != nil {
		return nil, err
	}
	syntax.Walk(file, func(node syntax.Node) bool {
		switch node := node.(type) {
		case *syntax.FuncDecl:
			s.functions[node.Name.Value] = true
		case *syntax.DeclClause:
			s.assign(node.Args)
		case *syntax.CallExpr:
			if len(node.Args) == 0 {
				s.assign(node.Assigns)
				return true
			}
			var words []string
			for _, word := range node.Args {
				words = append(words, s.value(word.Parts))
			}
			all = append(all, words)
		}
		return true
	})
	return all, nil
}

func (s *shell) assign(assigns []*syntax.Assign) {
	for _, one := range assigns {
		if one.Name != nil && one.Value != nil {
			s.variables[one.Name.Value] = s.value(one.Value.Parts)
		}
	}
}

// value is a word as the command gets it, as far as that is known.
func (s *shell) value(parts []syntax.WordPart) string {
	var value strings.Builder
	for _, part := range parts {
		switch part := part.(type) {
		case *syntax.Lit:
			value.WriteString(strings.ReplaceAll(part.Value, `\`, ""))
		case *syntax.SglQuoted:
			value.WriteString(part.Value)
		case *syntax.DblQuoted:
			value.WriteString(s.value(part.Parts))
		case *syntax.ParamExp:
			known, ok := s.variables[part.Param.Value]
			if !ok {
				known = unknown
			}
			value.WriteString(known)
		default:
			value.WriteString(unknown)
		}
	}
	return value.String()
}

func TestCommandsAreFoundWhereverAPageHasThem(t *testing.T) {
	b := pages.Block{Kind: "console", Text: "$ A=1 f=x; run --a=$A \"$(inner one | two)\" # no\nrun not\n$ for i in 1 2; do loop $i; done\n$ g() { called 'a b'; }\n$ export B=\"$A\"2; use $B\n"}
	s := &shell{variables: map[string]string{}, functions: map[string]bool{}}
	got, err := s.commands(b)
	if err != nil {
		t.Fatal(err)
	}
	want := "[[run --a=1 VALUE] [inner one] [two] [loop VALUE] [called a b] [use 12]]"
	if fmt.Sprint(got) != want || !s.functions["g"] {
		t.Errorf("got %v, functions %v, want %s", got, s.functions, want)
	}
}
