// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
)

// inNamespace runs f in a network namespace; in another than the process's on a thread of its own.
// The thread comes back: the process's first one would not end with its goroutine, and stay there.
func inNamespace(namespace netns.NsHandle, f func() error) error {
	if !namespace.IsOpen() {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- enterAndBack(namespace, f)
	}()
	return <-done
}

func enterAndBack(namespace netns.NsHandle, f func() error) (err error) {
	home, err := netns.Get()
	if err != nil {
		return fmt.Errorf("finding the thread's network namespace: %w", err)
	}
	defer func() {
		if back := netns.Set(home); back != nil { // the thread stays locked, and nobody else uses it
			err = errors.Join(err, fmt.Errorf("leaving the node's network namespace: %w", back))
		} else {
			runtime.UnlockOSThread()
		}
		err = errors.Join(err, home.Close())
	}()
	if err := netns.Set(namespace); err != nil {
		return fmt.Errorf("entering the node's network namespace: %w", err)
	}
	return f()
}
