// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockPatience is how long a lab waits for an earlier one of its name: long
// enough for a janitor to remove it.
const lockPatience = 20 * time.Second

// acquire makes this program the only one that uses the lab's name. The lock is
// an abstract socket, which the kernel frees when the last holder ends.
func acquire(ctx context.Context, name string, say func(string)) (*os.File, error) {
	address := &net.UnixAddr{Name: "@braid-lab-" + name, Net: "unix"}
	for deadline, first := time.Now().Add(lockPatience), true; ; first = false {
		listener, err := net.ListenUnix("unix", address)
		if err == nil {
			defer listener.Close()
			return listener.File()
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("locking lab %s: %w", name, err)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("lab %s is in use by a program that runs: stop that one first", name)
		}
		if first {
			say("Waiting for an earlier run to end")
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func sleep(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration):
		return nil
	}
}

// startPatience is how long a process may take until it does its work.
const startPatience = 30 * time.Second

// eventually asks again and again until there is no error, one of the processes
// is gone, or startPatience is over.
func eventually(ctx context.Context, processes []*Process, what func(context.Context) error) error {
	return eventuallyWithin(ctx, startPatience, processes, what)
}

func eventuallyWithin(ctx context.Context, patience time.Duration, processes []*Process, what func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := what(ctx)
		if err == nil {
			return nil
		}
		for _, process := range processes {
			if ended := process.ended(); ended != nil {
				return errors.Join(ended, err)
			}
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%w, after %v", err, patience)
		}
	}
}
