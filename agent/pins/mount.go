// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Mount mounts a BPF file system at a directory that exists, unless one is
// there. It needs CAP_SYS_ADMIN.
func Mount(directory string) error {
	var status unix.Statfs_t
	if err := unix.Statfs(directory, &status); err != nil {
		return fmt.Errorf("looking at %s: %w", directory, err)
	}
	if status.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if err := unix.Mount("bpf", directory, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mounting a BPF file system at %s: %w", directory, err)
	}
	return nil
}
