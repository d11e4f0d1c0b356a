// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Teardown removes every namespace of the network with this name and kills the
// processes inside. It needs nothing of whoever built it, and may be repeated.
func Teardown(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("network name %q: must be 1 to 16 small letters and digits", name)
	}
	namespaces, err := Namespaces(name)
	if err != nil {
		return err
	}
	errs := []error{killInside(namespaces)}
	for _, namespace := range namespaces {
		errs = append(errs, remove(namespace))
	}
	return errors.Join(errs...)
}

// Namespaces lists the namespaces that the network with this name has now.
func Namespaces(name string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(Directory, name+"-*"))
	if err != nil {
		return nil, fmt.Errorf("listing network namespaces: %w", err)
	}
	for i, file := range files {
		files[i] = filepath.Base(file)
	}
	return files, nil
}

// killInside kills every process whose network namespace is one of these, and
// waits until they are gone.
func killInside(namespaces []string) error {
	inodes, err := inodesOf(namespaces)
	if err != nil || len(inodes) == 0 {
		return err
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		inside := processesIn(inodes)
		if len(inside) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v in namespaces %v do not end", inside, namespaces)
		}
		for _, pid := range inside {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("killing process %d: %w", pid, err)
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func inodesOf(namespaces []string) (map[uint64]bool, error) {
	inodes := make(map[uint64]bool, len(namespaces))
	for _, namespace := range namespaces {
		var stat, home unix.Stat_t
		err := unix.Stat(filepath.Join(Directory, namespace), &stat)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading network namespace %s: %w", namespace, err)
		}
		if err := unix.Stat("/proc/self/ns/net", &home); err != nil {
			return nil, fmt.Errorf("reading this process's network namespace: %w", err)
		}
		// A file on which no namespace is mounted (its maker was killed in
		// between) has a device of its own, and nobody can be inside of it.
		if stat.Dev == home.Dev && stat.Ino != home.Ino {
			inodes[stat.Ino] = true
		}
	}
	return inodes, nil
}

func processesIn(inodes map[uint64]bool) (pids []int) {
	for _, process := range numbered("/proc") {
		pid, err := strconv.Atoi(filepath.Base(process))
		if err == nil && pid != os.Getpid() && inodes[namespaceInode(filepath.Join(process, "ns", "net"))] && !zombie(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// namespaceInode is 0 for a process that is gone.
func namespaceInode(file string) uint64 {
	var stat unix.Stat_t
	if err := unix.Stat(file, &stat); err != nil {
		return 0
	}
	return stat.Ino
}

// zombie tells whether only the parent's wait for the process is missing.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

func (ns *Namespace) closeHandle() {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.handle != nil {
		ns.handle.Close()
		ns.handle = nil
	}
}
