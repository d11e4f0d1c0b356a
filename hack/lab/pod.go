// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Container is a container of a pod, or its sandbox, on a node with a kubelet.
type Container struct {
	// Group is its directory in the cgroup tree that counts memory.
	Group string
	// Program is the name of its oldest process, and PID that one's number.
	Program string
	PID     int
}

// Containers are those of a pod that run on a node.
func (l *Lab) Containers(node string, pod types.UID) (containers []Container, err error) {
	tree := cgroupRoot
	if _, v2 := cgroupTrees(); !v2 {
		tree = filepath.Join(tree, "memory")
	}
	base := filepath.Join(tree, cgroupOf(l.Name), node, "kubepods")
	for _, pattern := range []string{"pod" + string(pod), "*/pod" + string(pod)} {
		groups, err := filepath.Glob(filepath.Join(base, pattern, "*", "cgroup.procs"))
		if err != nil {
			return nil, fmt.Errorf("looking for the containers of pod %s: %w", pod, err)
		}
		for _, group := range groups {
			if container, ok := containerIn(filepath.Dir(group)); ok {
				containers = append(containers, container)
			}
		}
	}
	return containers, nil
}

// containerIn is false where nothing runs.
func containerIn(group string) (Container, bool) {
	text, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	first, _, found := strings.Cut(string(text), "\n")
	if err != nil || !found {
		return Container{}, false
	}
	pid, err := strconv.Atoi(first)
	if err != nil {
		return Container{}, false
	}
	program, err := os.ReadFile(filepath.Join("/proc", first, "comm"))
	return Container{Group: group, Program: strings.TrimSpace(string(program)), PID: pid}, err == nil
}
