// SPDX-License-Identifier: Apache-2.0

// Package namespace enters network namespaces and tells them apart.
package namespace

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Identity tells one network namespace from all others.
type Identity struct {
	// Inode is the number of the namespace's file. Another namespace may have it
	// after this one is gone.
	Inode uint64 `json:"inode"`
	// Cookie is never used twice while the kernel runs; 0 on kernels before 5.14,
	// which have none.
	Cookie uint64 `json:"cookie"`
}

// String names the namespace in messages.
func (i Identity) String() string { return fmt.Sprintf("net:[%d]", i.Inode) }

// Do runs f on a thread that is inside the namespace of this open file. What f
// starts on other goroutines runs outside of it. It needs CAP_SYS_ADMIN.
func Do(file *os.File, f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("finding the thread's network namespace: %w", err)
	}
	defer home.Close()
	if err := enter(file); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("entering network namespace %s: %w", file.Name(), err)
	}
	defer func() {
		// A thread that cannot get back stays locked, and ends with its goroutine.
		if enter(home) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return f()
}

func enter(file *os.File) error { return unix.Setns(int(file.Fd()), unix.CLONE_NEWNET) }

// Identify reads who the namespace of this open file is.
func Identify(file *os.File) (Identity, error) {
	var status unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &status); err != nil {
		return Identity{}, fmt.Errorf("reading the inode of %s: %w", file.Name(), err)
	}
	identity := Identity{Inode: status.Ino}
	err := Do(file, func() (err error) {
		identity.Cookie, err = cookie()
		return err
	})
	return identity, err
}

// IdentifyAt reads who the namespace is that can be opened at a path.
func IdentifyAt(path string) (Identity, error) {
	file, err := os.Open(path)
	if err != nil {
		return Identity{}, fmt.Errorf("opening a network namespace: %w", err)
	}
	defer file.Close()
	return Identify(file)
}

// cookie reads that of the thread's namespace.
func cookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("opening a socket: %w", err)
	}
	defer unix.Close(fd)
	value, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading the cookie of a network namespace: %w", err)
	}
	return value, nil
}
