// SPDX-License-Identifier: Apache-2.0

// Package initramfs makes the file systems with which kernels of virtual machines begin.
package initramfs

import (
	"bytes"
	"fmt"
)

// Archive is a file system for a kernel to begin with, in the form "newc" of cpio.
type Archive struct {
	bytes.Buffer
	inode int
}

const (
	modeDirectory = 0o040755
	modeProgram   = 0o100755
)

// Directory adds a directory.
func (a *Archive) Directory(name string) { a.entry(name, modeDirectory, nil) }

// File adds a file that may be executed.
func (a *Archive) File(name string, content []byte) { a.entry(name, modeProgram, content) }

// End completes the archive.
func (a *Archive) End() { a.entry("TRAILER!!!", 0, nil) }

func (a *Archive) entry(name string, mode int, content []byte) {
	a.inode++
	const links = 1
	fmt.Fprintf(a, "070701%08x%08x%08x%08x%08x%08x%08x", a.inode, mode, 0, 0, links, 0, len(content))
	fmt.Fprintf(a, "%08x%08x%08x%08x%08x%08x", 0, 0, 0, 0, len(name)+1, 0)
	a.WriteString(name + "\x00")
	a.align()
	a.Write(content)
	a.align()
}

func (a *Archive) align() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}
