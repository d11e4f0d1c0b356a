// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cgroups finds the processes of pods. A kubelet runs each pod in a group that has the
// pod's UID in its name, and runtimes put the pod's containers into groups below that. A
// pod may make further groups there, with any name: below a pod's group no other pod is
// looked for.
type cgroups struct {
	root  string   // where the tree of cgroup v2 is mounted, or the trees of v1
	roots []string // the kubelets' groups
	// searched is when the kubelets' groups were looked for.
	searched time.Time
	// listed: the pods' groups were read in this look.
	listed bool
	pods   map[string]string // groups by UID
}

// What a pod can make a look read at most.
const (
	mostGroups    = 64
	mostEntries   = 512
	mostProcesses = 512
	mostBytes     = 4096
	kubeletDepth  = 4
)

// searchAgain is after how long the kubelets' groups are looked for again, where a pod
// was found in none of them.
const searchAgain = 10 * time.Second

// trees are those that hold pods, in order: the one of v2, and of v1 some that each
// container is in.
var trees = []string{"", "pids", "memory", "systemd", "unified"}

// find returns the group of a pod; false where it has none.
func (c *cgroups) find(uid string) (string, bool) {
	uid = inName(uid)
	if group, ok := c.pods[uid]; ok && exists(group) {
		return group, true
	}
	if uid == "" {
		return "", false
	}
	c.list()
	group, ok := c.pods[uid]
	return group, ok
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// inName is a UID as names of groups have it: systemd's names have no dashes.
func inName(uid string) string { return strings.ReplaceAll(uid, "-", "_") }

// list reads the groups of all pods, once a look.
func (c *cgroups) list() {
	if c.listed {
		return
	}
	c.listed = true
	if time.Since(c.searched) >= searchAgain || !slices.ContainsFunc(c.roots, exists) {
		c.search()
	}
	c.pods = map[string]string{}
	for _, root := range c.roots {
		for _, group := range subgroups(root, -1) {
			if isClass(group) {
				for _, below := range subgroups(group, -1) {
					c.note(below)
				}
			}
			c.note(group)
		}
	}
}

// isClass: it is the group of a quality of service.
func isClass(group string) bool {
	name := strings.TrimSuffix(filepath.Base(group), ".slice")
	return strings.HasSuffix(name, "burstable") || strings.HasSuffix(name, "besteffort")
}

// note keeps a group if it is a pod's: podUID, or kubepods-CLASS-podUID.slice.
func (c *cgroups) note(group string) {
	name := filepath.Base(group)
	if short, ok := strings.CutSuffix(name, ".slice"); ok {
		name = short[strings.LastIndex(short, "-")+1:]
	}
	if uid, ok := strings.CutPrefix(name, "pod"); ok {
		c.pods[inName(uid)] = group
	}
}

// search looks for the kubelets' groups in the first tree that has some.
func (c *cgroups) search() {
	c.searched = time.Now()
	for _, tree := range trees {
		if c.roots = kubelets(filepath.Join(c.root, tree), kubeletDepth); len(c.roots) > 0 {
			return
		}
	}
}

// kubelets are the groups called kubepods, down to a depth. Services and scopes have no
// kubelet's groups, and containers of others might have made some that look like it.
func kubelets(group string, depth int) (found []string) {
	if depth == 0 {
		return nil
	}
	for _, below := range subgroups(group, -1) {
		name := filepath.Base(below)
		slice := strings.TrimSuffix(name, ".slice")
		switch {
		case slice == "kubepods" || strings.HasSuffix(slice, "-kubepods"):
			found = append(found, below)
		case !strings.HasSuffix(name, ".service") && !strings.HasSuffix(name, ".scope"):
			found = append(found, kubelets(below, depth-1)...)
		}
	}
	return found
}

// subgroups lists the groups right below one, of its first entries.
func subgroups(group string, entries int) (below []string) {
	opened, err := os.Open(group)
	if err != nil {
		return nil
	}
	defer opened.Close()
	all, _ := opened.ReadDir(entries) // what was read until an error
	for _, entry := range all {
		if entry.IsDir() {
			below = append(below, filepath.Join(group, entry.Name()))
		}
	}
	return below
}

// below are a group and those in it, as many as a pod may have.
func below(group string) []string {
	groups := []string{group}
	for i := 0; i < len(groups) && len(groups) < mostGroups; i++ {
		groups = append(groups, subgroups(groups[i], mostEntries)...)
	}
	return groups[:min(len(groups), mostGroups)]
}

// processesOf reads the first numbers of a group's file. They are those of this
// process's namespace of numbers: an agent in a container needs the host's.
func processesOf(group, file string) (all []int) {
	opened, err := os.Open(filepath.Join(group, file))
	if err != nil {
		return nil
	}
	defer opened.Close()
	content := make([]byte, mostBytes)
	n, _ := opened.Read(content)
	for line := range bytes.Lines(content[:n]) {
		whole, ok := bytes.CutSuffix(line, []byte{'\n'})
		if number, err := strconv.Atoi(string(whole)); ok && err == nil && number > 0 {
			all = append(all, number)
		}
	}
	return all
}
