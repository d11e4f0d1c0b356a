// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroupOf is the name of a lab's group in each cgroup tree.
func cgroupOf(lab string) string { return "braid-lab-" + lab }

// cgroupTrees are the roots of the trees: one for cgroup v2, one for each
// controller of v1.
func cgroupTrees() (trees []string, v2 bool) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{cgroupRoot}, true
	}
	entries, _ := filepath.Glob(filepath.Join(cgroupRoot, "*", "cgroup.procs"))
	for _, entry := range entries {
		trees = append(trees, filepath.Dir(entry))
	}
	return trees, false
}

// makeCgroup makes a group in every tree, with the controllers of its parents.
func makeCgroup(group string) error {
	trees, v2 := cgroupTrees()
	for _, tree := range trees {
		at := tree
		for _, part := range strings.Split(strings.Trim(group, "/"), "/") {
			parent := at
			at = filepath.Join(at, part)
			if err := os.MkdirAll(at, 0o755); err != nil {
				return fmt.Errorf("making a cgroup: %w", err)
			}
			if err := inherit(parent, at, v2); err != nil {
				return fmt.Errorf("setting up cgroup %s: %w", at, err)
			}
		}
	}
	return nil
}

// inherit gives a group what v2 and v1's cpuset do not give by themselves.
func inherit(parent, group string, v2 bool) error {
	if v2 {
		controllers, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
		if err != nil {
			return err
		}
		wanted := ""
		for controller := range strings.FieldsSeq(string(controllers)) {
			wanted += " +" + controller
		}
		return os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte(strings.TrimSpace(wanted)), 0o644)
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(group, file), value, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroups kills what runs in a lab's groups and removes them.
func removeCgroups(lab string) error {
	trees, _ := cgroupTrees()
	var failed error
	for _, tree := range trees {
		failed = errors.Join(failed, removeCgroup(filepath.Join(tree, cgroupOf(lab))))
	}
	return failed
}

func removeCgroup(root string) error {
	groups, err := groupsIn(root)
	if err != nil || len(groups) == 0 {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err = nil
		for _, group := range groups {
			killGroup(group)
			if removed := os.Remove(group); removed != nil && !errors.Is(removed, os.ErrNotExist) {
				err = removed
			}
		}
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("removing cgroup %s: %w", root, err)
		}
	}
}

// groupsIn lists a group and those below it, the innermost first.
func groupsIn(root string) (groups []string, err error) {
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() {
			groups = append(groups, path)
		}
		return err
	})
	slices.Reverse(groups)
	return groups, err
}

// killGroup kills what runs in a group, and says whether there was something.
func killGroup(group string) (found bool) {
	processes, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	for process := range strings.FieldsSeq(string(processes)) {
		if pid, err := strconv.Atoi(process); err == nil {
			found = true
			_ = unix.Kill(pid, unix.SIGKILL) // it may be gone; the caller looks again
		}
	}
	return found
}
