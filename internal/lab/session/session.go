// SPDX-License-Identifier: Apache-2.0

// Package session starts the lasting processes of labs in sessions of their own, as nice as the
// program that starts them.
package session

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start starts a command as the leader of a session, so that Ctrl-C does not reach it.
func Start(command *exec.Cmd) error {
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return err
	}
	inheritNiceness(command.Process.Pid)
	return nil
}

// inheritNiceness: a kernel with CONFIG_SCHED_AUTOGROUP shares processors among sessions first,
// each of which begins with a niceness of 0, and compares that of tasks within a session alone.
func inheritNiceness(pid int) {
	// The system call answers with 20 less the niceness, which is never negative.
	priority, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if nice := 20 - priority; err == nil && nice != 0 {
		// Other kernels have no such file, and the process may have ended.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte(strconv.Itoa(nice)), 0o600)
	}
}
