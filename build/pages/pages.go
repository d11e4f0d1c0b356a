// SPDX-License-Identifier: Apache-2.0

// Package pages finds what README.md and docs/ tell users to type.
package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Read returns README.md and the pages of docs/, by their names.
func Read(repository string) (map[string]string, error) {
	names, err := filepath.Glob(filepath.Join(repository, "docs/*.md"))
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, name := range append(names, filepath.Join(repository, "README.md")) {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		found[name] = string(text)
	}
	return found, nil
}

// Block is a fenced block of a page: what its fence says it is, and its text.
type Block struct {
	Page, Kind, Text string
	Line             int
	// Marks stand above the fence, where readers do not see them.
	Marks []Mark
}

// Mark says why commands of a block cannot be run by a test.
type Mark struct {
	// Beginnings are those of the commands; all of the block where there is none.
	Beginnings []string
	Reason     string
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

var (
	fenced = regexp.MustCompile("(?ms)((?:^ *<!-- not run[^\n]*-->\n)*)^ *```([^\n]*)\n(.*?)^ *```$")
	mark   = regexp.MustCompile(`<!-- not run(?: \(([^)]*)\))?: (\S[^\n]*) -->`)
)

// Blocks are those of a page, in its order.
func Blocks(page, text string) (found []Block) {
	for _, at := range fenced.FindAllStringSubmatchIndex(text, -1) {
		b := Block{Page: page, Kind: text[at[4]:at[5]], Text: text[at[6]:at[7]], Line: strings.Count(text[:at[4]], "\n") + 1}
		for _, m := range mark.FindAllStringSubmatch(text[at[2]:at[3]], -1) {
			one := Mark{Reason: m[2]}
			if m[1] != "" {
				one.Beginnings = strings.Split(m[1], "; ")
			}
			b.Marks = append(b.Marks, one)
		}
		found = append(found, b)
	}
	return found
}

// HasCommands says whether it is something to type.
func (b Block) HasCommands() bool { return b.Kind == "sh" || b.Kind == "console" }

// Script is what of a block a user types.
func (b Block) Script() string {
	var typed strings.Builder
	for _, command := range b.dialogue() {
		typed.WriteString(command[0])
	}
	return typed.String()
}

// dialogue is each part that is typed, with what the page shows after it.
func (b Block) dialogue() (parts [][2]string) {
	if b.Kind != "console" {
		return [][2]string{{b.Text, ""}}
	}
	for line := range strings.Lines(b.Text) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			parts = append(parts, [2]string{command, ""})
		} else if len(parts) > 0 {
			parts[len(parts)-1][1] += line
		}
	}
	return parts
}

// Command is one that stands by itself, with the comment behind it and what the page shows
// after it.
type Command struct {
	Text, Comment, Shown string
	// NotRun says why no test can run it.
	NotRun string
}

// Commands are those of a block. Each mark must be of one of them at least.
func (b Block) Commands() (all []Command, err error) {
	for _, part := range b.dialogue() {
		file, err := syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)).Parse(strings.NewReader(part[0]), b.String())
		if err != nil {
			return nil, err
		}
		for _, statement := range file.Stmts {
			c := Command{Text: part[0][statement.Pos().Offset():statement.End().Offset()], Shown: part[1]}
			for _, comment := range statement.Comments {
				if comment.Pos().After(statement.Pos()) {
					c.Comment = strings.TrimSpace(comment.Text)
				}
			}
			all = append(all, c)
		}
	}
	for _, m := range b.Marks {
		if err := m.apply(all); err != nil {
			return nil, fmt.Errorf("%s: %w", b, err)
		}
	}
	return all, nil
}

// apply notes a reason at the commands that a mark is for.
func (m Mark) apply(all []Command) error {
	if len(m.Beginnings) == 0 {
		for i := range all {
			all[i].NotRun = m.Reason
		}
	}
	for _, beginning := range m.Beginnings {
		at := slices.IndexFunc(all, func(c Command) bool { return strings.HasPrefix(c.Text, beginning) })
		if at < 0 {
			return fmt.Errorf("no command begins with %q, of which the mark says that it is not run", beginning)
		}
		for i := range all {
			if strings.HasPrefix(all[i].Text, beginning) {
				all[i].NotRun = m.Reason
			}
		}
	}
	return nil
}
