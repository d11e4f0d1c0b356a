// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/session"
)

func TestASessionIsAsNiceAsWhoStartsIt(t *testing.T) {
	runtime.LockOSThread() // for good: the thread ends with the test, and its niceness with it
	priority, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	require.NoError(t, err)
	nice := min(20-priority+3, 19)
	require.NoError(t, unix.Setpriority(unix.PRIO_PROCESS, 0, nice))

	command := exec.Command("sleep", "60")
	require.NoError(t, session.Start(command))
	t.Cleanup(func() { _, _ = command.Process.Kill(), command.Wait() })

	pid := command.Process.Pid
	leads, err := unix.Getsid(pid)
	require.NoError(t, err)
	require.Equal(t, pid, leads)
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", pid))
	if errors.Is(err, os.ErrNotExist) { // this kernel compares all tasks
		return
	}
	require.NoError(t, err)
	require.Regexp(t, fmt.Sprintf(`nice %d\n$`, nice), string(content))
}

func TestAProgramThatIsNotThereStartsNoSession(t *testing.T) {
	require.Error(t, session.Start(exec.Command("/no/such/program")))
}
