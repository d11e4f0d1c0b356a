// SPDX-License-Identifier: Apache-2.0

// Package boot is what the first processes of virtual machines share.
package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// LoadModules loads the modules of a directory in the order of their names.
func LoadModules(directory string) error {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return fmt.Errorf("listing modules: %w", err)
	}
	for _, entry := range entries {
		if err := loadModule(filepath.Join(directory, entry.Name())); err != nil {
			return fmt.Errorf("loading %s: %w", entry.Name(), err)
		}
	}
	return nil
}

func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.FinitModule(int(file.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// Mount is one file system.
type Mount struct {
	Source, Target, Kind string
	Flags                uintptr
	Options              string
}

// MountAll mounts file systems in their order, and makes the directories for that.
func MountAll(mounts []Mount) error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.Target, 0o755); err != nil {
			return fmt.Errorf("making %s: %w", m.Target, err)
		}
		if err := unix.Mount(m.Source, m.Target, m.Kind, m.Flags, m.Options); err != nil {
			return fmt.Errorf("mounting %s: %w", m.Target, err)
		}
	}
	return nil
}

// Raw has the line pass on what is written as it is, and give nothing back of what comes.
func Raw(line *os.File) error {
	settings, err := unix.IoctlGetTermios(int(line.Fd()), unix.TCGETS)
	if err != nil {
		return err
	}
	settings.Oflag &^= unix.OPOST
	settings.Lflag &^= unix.ECHO
	return unix.IoctlSetTermios(int(line.Fd()), unix.TCSETS, settings)
}

// Parameter is one of the kernel's command line.
func Parameter(name string) string {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return ""
	}
	for _, field := range strings.Fields(string(line)) {
		if value, ok := strings.CutPrefix(field, name+"="); ok {
			return value
		}
	}
	return ""
}
