// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// modules finds a kernel's modules.
type modules struct {
	directory string
	paths     map[string]string   // by name
	needs     map[string][]string // by path, those to load last first
	builtin   map[string]bool     // by name
}

// readModules reads what depmod has written into lib/modules/RELEASE.
func readModules(directory string) (*modules, error) {
	m := &modules{directory: directory, paths: map[string]string{}, needs: map[string][]string{}, builtin: map[string]bool{}}
	depends, err := os.ReadFile(filepath.Join(directory, "modules.dep"))
	if err != nil {
		return nil, fmt.Errorf("reading what modules need: %w", err)
	}
	for line := range strings.Lines(string(depends)) {
		path, needs, _ := strings.Cut(line, ":")
		m.paths[moduleName(path)], m.needs[path] = path, strings.Fields(needs)
	}
	builtin, err := os.ReadFile(filepath.Join(directory, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("reading what is built in: %w", err)
	}
	for line := range strings.Lines(string(builtin)) {
		m.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	return m, nil
}

// moduleName is the name of the module in a file such as net/9p/9pnet.ko.xz.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	return strings.ReplaceAll(name, "-", "_")
}

// order is how to load these modules: each after what it needs.
func (m *modules) order(names []string) (paths []string, err error) {
	for _, name := range names {
		path, there := m.paths[name]
		switch {
		case m.builtin[name]:
			continue
		case !there:
			return nil, fmt.Errorf("the kernel has no module %s", name)
		}
		needed := slices.Clone(m.needs[path])
		slices.Reverse(needed)
		for _, next := range append(needed, path) {
			if !slices.Contains(paths, next) {
				paths = append(paths, next)
			}
		}
	}
	return paths, nil
}

// AddModules adds modules of a kernel, and what they need, to the directory "modules" of an
// archive: by names in whose order they are to be loaded. directory is the kernel's
// lib/modules/RELEASE.
func (a *Archive) AddModules(directory string, names ...string) error {
	known, err := readModules(directory)
	if err != nil {
		return err
	}
	paths, err := known.order(names)
	if err != nil {
		return err
	}
	for i, path := range paths {
		content, err := known.content(path)
		if err != nil {
			return err
		}
		a.File(fmt.Sprintf("modules/%02d-%s", i, moduleName(path)), content)
	}
	return nil
}

// content is a module as the kernel takes it.
func (m *modules) content(path string) ([]byte, error) {
	path = filepath.Join(m.directory, path)
	unpack := map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"}[filepath.Ext(path)]
	if unpack == "" {
		return os.ReadFile(path)
	}
	content, err := exec.Command(unpack, "-dc", path).Output()
	if err != nil {
		return nil, fmt.Errorf("unpacking %s: %w", path, err)
	}
	return content, nil
}
