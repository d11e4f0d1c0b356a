// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	span    = regexp.MustCompile("`[^`\n]+`")
	link    = regexp.MustCompile(`\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} (.+?) *#*$`)
	label   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	// mention is a page that a message, a comment or an alert names.
	mention = regexp.MustCompile(`\bdocs/([a-z0-9-]+)\.(?:md|html)(#[\w-]+)?`)
)

func TestEveryLinkOfAPageLeadsSomewhere(t *testing.T) {
	seen := 0
	for name, text := range allPages(t) {
		for _, found := range link.FindAllStringSubmatch(prose(text), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			seen++
			file, anchor, _ := strings.Cut(found[1], "#")
			if file = filepath.Join(filepath.Dir(name), file); strings.HasPrefix(found[1], "#") {
				file = name
			}
			if err := leads(file, anchor); err != nil {
				t.Errorf("%s: %s: %v", name, found[1], err)
			}
		}
	}
	if seen < 100 {
		t.Errorf("the pages have %d links: look for them otherwise", seen)
	}
}

func TestEveryPageThatAFileNamesIsThere(t *testing.T) {
	seen := 0
	for _, name := range tracked(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range mention.FindAllStringSubmatch(string(text), -1) {
			seen++
			if err := leads("../docs/"+found[1]+".md", strings.TrimPrefix(found[2], "#")); err != nil {
				t.Errorf("%s names %s: %v", name, found[0], err)
			}
		}
	}
	if seen < 50 {
		t.Errorf("files name pages %d times: look for them otherwise", seen)
	}
}

func TestEveryPageIsOnOneShelf(t *testing.T) {
	index := allPages(t)["../docs/README.md"]
	for name := range allPages(t) {
		page := filepath.Base(name)
		if page == "README.md" {
			continue
		}
		if n := strings.Count(index, "\n| ["+page+"]("+page+") |"); n != 1 {
			t.Errorf("docs/README.md has %d lines for %s, want 1", n, page)
		}
	}
}

func TestTheFirstPageOfTheReadmeHasSixtyLines(t *testing.T) {
	first, _, found := strings.Cut(allPages(t)["../README.md"], "\n## See it without a cluster\n")
	if lines := strings.Count(first, "\n"); !found || lines > 60 {
		t.Errorf("the README has %d lines before what is beyond its first page", lines)
	}
}

func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	got := anchors("# One\n## `a.b: c` and [a link](x.md)\n### One\n```\n# none\n```\n## With `x_y`, 2nd: (why)\n")
	for _, want := range []string{"one", "ab-c-and-a-link", "one-1", "with-x_y-2nd-why"} {
		if !got[want] {
			t.Errorf("there is no %s among %v", want, got)
		}
	}
	if len(got) != 4 {
		t.Errorf("got %v", got)
	}
}

// leads says why a link to a file, and to a heading of it, leads nowhere.
func leads(file, anchor string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return fmt.Errorf("%s is a directory, which the site has no page of", file)
	}
	if anchor == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !anchors(string(text))[anchor] {
		return fmt.Errorf("%s has no heading #%s", file, anchor)
	}
	return nil
}

// prose is a page without its code.
func prose(text string) string {
	return span.ReplaceAllString(fence.ReplaceAllString(text, ""), "")
}

// anchors are the names by which a page's headings are linked to.
func anchors(text string) map[string]bool {
	found, times := map[string]bool{}, map[string]int{}
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := anchor(match[1])
		times[name]++
		if n := times[name]; n > 1 {
			name = fmt.Sprintf("%s-%d", name, n-1)
		}
		found[name] = true
	}
	return found
}

func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, label.ReplaceAllString(title, "$1"))
}

// tracked are the repository's text files outside of docs: those of git, or all where
// there is no history.
func tracked(t *testing.T) []string {
	t.Helper()
	var names []string
	out, err := exec.Command("git", "-C", "..", "ls-files", "-z", "--cached").Output()
	if err == nil {
		names = strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	} else if err := fs.WalkDir(os.DirFS(".."), ".", func(name string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.IsDir() && (name == "_out" || name == ".git") {
			return fs.SkipDir
		}
		if err == nil && entry.Type().IsRegular() {
			names = append(names, name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range names {
		if _, err := os.Stat("../" + name); err == nil && !strings.HasPrefix(name, "docs/") && path.Ext(name) != ".o" {
			found = append(found, "../"+name)
		}
	}
	return found
}
