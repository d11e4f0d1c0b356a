// SPDX-License-Identifier: Apache-2.0

package health

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wakers are so many that files wait for.
func wakers(t *testing.T, f *files, count int) (all []waker) {
	t.Helper()
	for range count {
		w, err := newWaker()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(w.fd) })
		if err := f.add(w.fd); err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	return all
}

func TestFilesAreWaitedFor(t *testing.T) {
	f, err := openFiles()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.close() })
	all := wakers(t, f, 2*len(f.events))
	poll := func(wait time.Duration) (ready []int) {
		t.Helper()
		if err := f.poll(wait); err != nil {
			t.Fatal(err)
		}
		f.handle(func(fd int) { ready = append(ready, fd) })
		return ready
	}
	for _, wait := range []time.Duration{0, 10 * time.Millisecond, 0} {
		begun := time.Now()
		if ready := poll(wait); len(ready) > 0 || time.Since(begun) < wait {
			t.Errorf("waiting for %s found %v after %s", wait, ready, time.Since(begun))
		}
	}
	time.AfterFunc(10*time.Millisecond, all[0].wake)
	if ready := poll(-1); !slices.Equal(ready, []int{all[0].fd}) {
		t.Errorf("%v is ready, want %d", ready, all[0].fd)
	}
	if ready := poll(time.Minute); !slices.Equal(ready, []int{all[0].fd}) {
		t.Errorf("%v is ready, want %d: nobody has read from it", ready, all[0].fd)
	}
	for _, w := range all {
		w.wake()
	}
	for left := len(all); left > 0; { // more than are told of at once
		ready := poll(time.Minute)
		for _, fd := range ready {
			waker{fd}.drain()
		}
		left -= len(ready)
	}
	if ready := poll(0); len(ready) > 0 {
		t.Errorf("%v is ready after all was read", ready)
	}
}
