// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// rootInode is the inode of a cgroup hierarchy's root; no other group has it.
const rootInode = 1

// CgroupRoot returns where the root of the machine's cgroup2 tree is mounted: its
// programs see all sockets, also of tasks that cgroup v1 governs. The error is
// ErrUnsupported where it is not mounted.
func CgroupRoot() (string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("looking for the cgroup2 tree: %w", err)
	}
	for _, path := range cgroupMounts(string(table)) {
		if isRoot(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: the root of the machine's cgroup2 tree is not mounted here", ErrUnsupported)
}

// cgroupMounts are the mount points of cgroup2 in the form of /proc/self/mountinfo.
func cgroupMounts(table string) (paths []string) {
	for line := range strings.Lines(table) {
		mount, file, _ := strings.Cut(line, " - ")
		fields := strings.Fields(mount)
		if kind, _, _ := strings.Cut(file, " "); kind == "cgroup2" && len(fields) > 4 {
			paths = append(paths, unescape(fields[4]))
		}
	}
	return paths
}

// unescape undoes the kernel's way with blanks in paths: \040 and the like.
func unescape(path string) string {
	var plain strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '\\' && i+3 < len(path) {
			if code, err := strconv.ParseUint(path[i+1:i+4], 8, 8); err == nil {
				plain.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		plain.WriteByte(path[i])
	}
	return plain.String()
}

func isRoot(path string) bool {
	var status unix.Stat_t
	return unix.Stat(path, &status) == nil && status.Ino == rootInode
}
