// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// runDirectory holds one directory for each lab that is up.
const runDirectory = "/run/braid-lab"

// Directory is where a lab keeps its state, its logs and its BPF file system.
func Directory(name string) string { return filepath.Join(runDirectory, name) }

func (l *Lab) path(elements ...string) string {
	return filepath.Join(append([]string{Directory(l.Name)}, elements...)...)
}

// LogDirectory has one log for each process.
func (l *Lab) LogDirectory() string { return l.path("logs") }

// PinPath is the directory on the lab's BPF file system for a node's agent.
func (l *Lab) PinPath(node string) string { return l.path("bpf", node) }

// StatePath is the directory of what a node's agent must know after a restart.
func (l *Lab) StatePath(node string) string { return l.path("state", node) }

// SavedPath is the directory of what a node's agent starts from without API server.
func (l *Lab) SavedPath(node string) string { return l.path("saved", node) }

// prepareDirectory makes the lab's directories and mounts its BPF file system.
func (l *Lab) prepareDirectory() error {
	directories := []string{l.LogDirectory(), l.path("bpf"), l.path("apiserver")}
	for _, directory := range directories {
		if err := os.MkdirAll(directory, 0o700); err != nil {
			return fmt.Errorf("making the lab's directory: %w", err)
		}
	}
	if err := unix.Mount("bpf", l.path("bpf"), "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mounting a BPF file system: %w", err)
	}
	return nil
}

// removeDirectory unmounts what is mounted in the lab's directory and removes it.
func removeDirectory(name string) error {
	mounts, err := mountsIn(Directory(name))
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmounting %s: %w", mount, err)
		}
	}
	if err := os.RemoveAll(Directory(name)); err != nil {
		return fmt.Errorf("removing the lab's directory: %w", err)
	}
	// Another lab may be up, and then this directory is not empty.
	err = os.Remove(runDirectory)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("removing the directory of labs: %w", err)
	}
	return nil
}

// mountsIn lists the mount points in a directory, the newest first.
func mountsIn(directory string) (mounts []string, err error) {
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && strings.HasPrefix(fields[1], directory+"/") {
			mounts = append([]string{fields[1]}, mounts...)
		}
	}
	return mounts, nil
}
