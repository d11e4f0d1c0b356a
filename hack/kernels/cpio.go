// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
)

// archive is a file system for a kernel to begin with, in the form "newc" of cpio.
type archive struct {
	bytes.Buffer
	inode int
}

const (
	modeDirectory = 0o040755
	modeProgram   = 0o100755
)

func (a *archive) directory(name string) { a.entry(name, modeDirectory, nil) }

func (a *archive) file(name string, content []byte) { a.entry(name, modeProgram, content) }

// end completes the archive.
func (a *archive) end() { a.entry("TRAILER!!!", 0, nil) }

func (a *archive) entry(name string, mode int, content []byte) {
	a.inode++
	const links = 1
	fmt.Fprintf(a, "070701%08x%08x%08x%08x%08x%08x%08x", a.inode, mode, 0, 0, links, 0, len(content))
	fmt.Fprintf(a, "%08x%08x%08x%08x%08x%08x", 0, 0, 0, 0, len(name)+1, 0)
	a.WriteString(name + "\x00")
	a.align()
	a.Write(content)
	a.align()
}

func (a *archive) align() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}
