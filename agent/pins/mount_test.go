// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestABPFFileSystemIsMountedOnce(t *testing.T) {
	directory := t.TempDir()
	for range 2 {
		if err := Mount(directory); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, 0); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(directory, 0); err == nil {
			t.Error("it was mounted twice")
		}
	})
	var status unix.Statfs_t
	if err := unix.Statfs(directory, &status); err != nil || status.Type != unix.BPF_FS_MAGIC {
		t.Errorf("what is mounted there is %#x (%v), not a BPF file system", status.Type, err)
	}
}

func TestABPFFileSystemNeedsADirectory(t *testing.T) {
	if err := Mount(t.TempDir() + "/missing"); err == nil {
		t.Error("a directory that is not there was accepted")
	}
}
