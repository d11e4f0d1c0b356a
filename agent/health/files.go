// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// files are those that a goroutine waits for: an epoll has them, for which Go's poller waits. A
// thread that waited in a system call would keep Go's watch over those busy, and so does a timer of
// Go's, which its poller knows to a millisecond: both take more than all that is done for probes.
type files struct {
	epoll  *os.File
	raw    syscall.RawConn
	timer  int
	events [32]unix.EpollEvent
	ready  []int
}

func openFiles() (_ *files, err error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making an epoll: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // else Go's poller does not take it
		return nil, errors.Join(fmt.Errorf("setting an epoll to not block: %w", err), unix.Close(fd))
	}
	f := &files{epoll: os.NewFile(uintptr(fd), "epoll")}
	if f.raw, err = f.epoll.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("waiting for an epoll: %w", err), f.epoll.Close())
	}
	if f.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("making a timer: %w", err), f.epoll.Close())
	}
	if err := f.add(f.timer); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (f *files) close() error { return errors.Join(f.epoll.Close(), unix.Close(f.timer)) }

// add has one waited for too. It is no more once it is closed.
func (f *files) add(fd int) (err error) {
	failed := f.raw.Control(func(epoll uintptr) {
		err = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	})
	if err = errors.Join(failed, err); err != nil {
		return fmt.Errorf("waiting for a socket: %w", err)
	}
	return nil
}

// openSocket opens a socket that is waited for.
func (f *files) openSocket(at place, port uint16, accepts uint8) (*socket, error) {
	opened, err := openSocket(at, port, accepts)
	if err != nil {
		return nil, err
	}
	if err := f.add(opened.fd); err != nil {
		return nil, errors.Join(err, opened.close())
	}
	return opened, nil
}

// poll waits until one has something, or for so long; without a limit when negative.
func (f *files) poll(wait time.Duration) error {
	var limit unix.ItimerSpec
	if wait >= 0 {
		limit.Value = unix.NsecToTimespec(max(1, wait.Nanoseconds())) // 0 would be no limit
	}
	var failed error
	err := unix.TimerfdSettime(f.timer, 0, &limit, nil)
	if err == nil {
		err = f.raw.Read(func(epoll uintptr) (over bool) {
			over, failed = f.look(int(epoll))
			return over
		})
	}
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("waiting for probes: %w", err)
	}
	return nil
}

// look finds those that have something. The wait is over where there are any, where its time has
// come, and with an error.
func (f *files) look(epoll int) (over bool, _ error) {
	f.ready = f.ready[:0]
	n, err := unix.EpollWait(epoll, f.events[:], 0)
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	for i := range n {
		if fd := int(f.events[i].Fd); fd != f.timer {
			f.ready = append(f.ready, fd)
		}
	}
	return n > 0, nil
}

// handle calls do for those that had something when poll returned.
func (f *files) handle(do func(fd int)) {
	for _, fd := range f.ready {
		do(fd)
	}
	f.ready = f.ready[:0]
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
