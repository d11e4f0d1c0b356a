// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// shareDirectory makes Directory a mount that is shared, as `ip netns add` does and with its
// lock. Whoever does so later mounts what is there twice, and the first mounts are out of
// reach then: their files are busy for ever.
func shareDirectory() (failed error) {
	if err := os.MkdirAll(Directory, 0o755); err != nil {
		return fmt.Errorf("making the directory of network namespaces: %w", err)
	}
	lock, err := os.Open(Directory)
	if err != nil {
		return fmt.Errorf("opening the directory of network namespaces: %w", err)
	}
	defer func() { failed = errors.Join(failed, lock.Close()) }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("locking the directory of network namespaces: %w", err)
	}
	share := func() error { return unix.Mount("", Directory, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err = share()
	if errors.Is(err, unix.EINVAL) { // no mount yet
		err = errors.Join(unix.Mount(Directory, Directory, "none", unix.MS_BIND|unix.MS_REC, ""), share())
	}
	if err != nil {
		return fmt.Errorf("mounting the directory of network namespaces: %w", err)
	}
	return nil
}
