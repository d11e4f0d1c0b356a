// SPDX-License-Identifier: Apache-2.0

// Package programtest compiles programs for tests, as docs/programs.md tells admins to.
package programtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// TB is what is used of *testing.T, so that what ships does not depend on testing.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	TempDir() string
	Context() context.Context
}

// Compiler of blocks; hack/deps.sh installs it.
const Compiler = "clang-19"

// compiled has the objects of this process by source and macros.
var compiled sync.Map

// Compile returns the object of a source file, named relative to bpf/program or, an
// example, to docs, with these macros defined.
func Compile(t TB, source string, defines ...string) []byte {
	t.Helper()
	name := strings.Join(append([]string{source}, defines...), " ")
	if object, there := compiled.Load(name); there {
		return object.([]byte)
	}
	object := compile(t, source, defines)
	compiled.Store(name, object)
	return object
}

func compile(t TB, source string, defines []string) []byte {
	t.Helper()
	directory := directory(t)
	from := directory
	if strings.HasPrefix(source, "examples/") {
		from = filepath.Join(directory, "..", "..", "docs")
	}
	object := filepath.Join(t.TempDir(), "block.o")
	arguments := []string{"-target", "bpf", "-O2", "-g", "-mcpu=v3", "-Wall", "-Wextra", "-Werror",
		"-I", directory, "-I", filepath.Join(directory, "..", "include")}
	for _, define := range defines {
		arguments = append(arguments, "-D"+define)
	}
	arguments = append(arguments, "-c", filepath.Join(from, source), "-o", object)
	if output, err := exec.CommandContext(t.Context(), Compiler, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("compiling %s: %v\n%s", source, err, output)
	}
	content, err := os.ReadFile(object)
	if err != nil {
		t.Fatalf("reading the object: %v", err)
	}
	return content
}

// directory is bpf/program of the repository in whose directories tests run.
func directory(t TB) string {
	here, err := os.Getwd()
	if err != nil {
		t.Fatalf("looking for bpf/program: %v", err)
	}
	for {
		candidate := filepath.Join(here, "bpf", "program")
		if _, err := os.Stat(candidate); err == nil {
			return candidate
		}
		above := filepath.Dir(here)
		if above == here {
			t.Fatalf("no bpf/program here or above: run this inside the repository")
			return ""
		}
		here = above
	}
}
