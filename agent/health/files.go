// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// files are those that a thread waits for.
type files []unix.PollFd

func (f *files) add(fd int) { *f = append(*f, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}) }

// poll waits until one has something, or for so long; without a limit when negative.
func (f files) poll(wait time.Duration) error {
	var limit *unix.Timespec
	if wait >= 0 {
		timespec := unix.NsecToTimespec(wait.Nanoseconds())
		limit = &timespec
	}
	if _, err := unix.Ppoll(f, limit, nil); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("waiting for probes: %w", err)
	}
	return nil
}

// handle calls do for those that had something when poll returned.
func (f files) handle(do func(fd int)) {
	for i := range f {
		if f[i].Revents != 0 {
			f[i].Revents = 0
			do(int(f[i].Fd))
		}
	}
}

// waker interrupts a poll of sockets.
type waker struct{ fd int }

func newWaker() (waker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return waker{-1}, fmt.Errorf("making an eventfd: %w", err)
	}
	return waker{fd}, nil
}

func (w waker) wake() {
	one := uint64(1)
	_, _ = unix.Write(w.fd, (*[8]byte)(unsafe.Pointer(&one))[:]) // full means: awake already
}

func (w waker) drain() {
	var count [8]byte
	_, _ = unix.Read(w.fd, count[:]) // empty: woken by something else
}
