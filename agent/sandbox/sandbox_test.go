// SPDX-License-Identifier: Apache-2.0

package sandbox_test

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/sandbox"
)

// inside tells the test's own process, run again, to enter the sandbox: there is no
// way out of it.
const inside = "BRAID_TEST_INSIDE_SANDBOX"

func TestWhoRunsCodeInAnAgentGetsNoFurther(t *testing.T) {
	if os.Getenv(inside) != "" {
		try(t)
		return
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	again.Env = append(os.Environ(), inside+"=1")
	out, err := again.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name()+"/runs_another_program")
}

func try(t *testing.T) {
	threads(t, 4) // those that exist already are bound too
	require.NoError(t, sandbox.Enter())
	attempts := map[string]func() error{
		"runs another program":      func() error { return exec.Command("/bin/true").Run() },
		"mounts a file system":      func() error { return unix.Mount("none", "/mnt", "tmpfs", 0, "") },
		"opens a file system":       func() error { _, err := unix.Fsopen("proc", 0); return err },
		"loads a kernel module":     func() error { return unix.InitModule([]byte("none"), "") },
		"looks into a process":      func() error { return unix.PtraceAttach(os.Getppid()) },
		"opens a file by its inode": func() error { _, err := unix.OpenByHandleAt(unix.AT_FDCWD, unix.FileHandle{}, 0); return err },
		"makes a device":            func() error { return unix.Mknod("device", unix.S_IFBLK, 0) },
		"sets the clock":            func() error { return unix.Settimeofday(&unix.Timeval{Sec: -1}) },
		"makes a namespace":         func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"starts an io_uring, which makes calls by itself": func() error {
			_, _, failed := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
			return failed
		},
	}
	for name, attempt := range attempts {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			require.ErrorIs(t, attempt(), unix.EPERM)
		})
	}
	t.Run("what an agent does is allowed", func(t *testing.T) {
		namespace, err := os.Open("/proc/self/ns/net")
		require.NoError(t, err)
		defer namespace.Close()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		require.NoError(t, unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET))
	})
}

// threads starts some that wait until the test ends.
func threads(t *testing.T, count int) {
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	var started sync.WaitGroup
	for range count {
		started.Add(1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			started.Done()
			<-done
		}()
	}
	started.Wait()
}
