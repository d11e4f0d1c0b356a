// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// process is a process of its own that is measured.
type process struct {
	command *exec.Cmd
	cancel  context.CancelFunc
	ended   chan struct{}
	err     error // once it has ended
}

// startProcess starts a program whose output goes to a file. It dies with this
// process.
func startProcess(ctx context.Context, log string, name string, arguments ...string) (*process, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", name, err)
	}
	defer output.Close()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // stop ends it
	p := &process{command: exec.CommandContext(ctx, name, arguments...), cancel: cancel, ended: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = output, output
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.command.Cancel = func() error { return p.command.Process.Signal(syscall.SIGTERM) }
	p.command.WaitDelay = 30 * time.Second
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig strikes when the thread ends that started it
		defer runtime.UnlockOSThread()
		err := p.command.Start()
		started <- err
		if err == nil {
			p.err = p.command.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		cancel()
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// stop ends it as Kubernetes would.
func (p *process) stop() error {
	p.cancel()
	<-p.ended
	var exit *exec.ExitError
	if errors.As(p.err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return fmt.Errorf("%s did not end when asked to", p.command.Path)
	}
	return nil // what else went wrong is in the log
}

// memoryOf is the memory of a process, in bytes.
func memoryOf(pid int) (procfs.ProcStatus, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStatus{}, fmt.Errorf("reading a process's memory: %w", err)
	}
	status, err := process.NewStatus()
	if err != nil {
		return procfs.ProcStatus{}, fmt.Errorf("reading a process's memory: %w", err)
	}
	return status, nil
}

// processor is the processor time that it has used, in seconds.
func (p *process) processor() (float64, error) {
	process, err := procfs.NewProc(p.command.Process.Pid)
	if err != nil {
		return 0, fmt.Errorf("reading a process's times: %w", err)
	}
	stat, err := process.Stat()
	if err != nil {
		return 0, fmt.Errorf("reading a process's times: %w", err)
	}
	return stat.CPUTime(), nil
}
