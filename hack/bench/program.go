// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// program is a process of its own that is measured.
type program struct {
	command *exec.Cmd
	ended   chan struct{}
}

// startProgram starts a program whose output goes to a file. It dies with this
// process.
func startProgram(log string, name string, arguments ...string) (*program, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", name, err)
	}
	defer output.Close()
	p := &program{command: exec.Command(name, arguments...), ended: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = output, output
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.startAndWait(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// startAndWait keeps the thread that starts the program until it ends: Pdeathsig
// strikes when that thread ends.
func (p *program) startAndWait() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.command.Start()
		started <- err
		if err == nil {
			_ = p.command.Wait() // what went wrong is in the log
			close(p.ended)
		}
	}()
	return <-started
}

// stop ends it as Kubernetes would.
func (p *program) stop() error {
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("ending %s: %w", p.command.Path, err)
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(30 * time.Second):
	}
	if err := p.command.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("ending %s: %w", p.command.Path, err)
	}
	<-p.ended
	return fmt.Errorf("%s did not end when asked to", p.command.Path)
}

func (p *program) proc(file string) string {
	return filepath.Join("/proc", strconv.Itoa(p.command.Process.Pid), file)
}

// memory is the memory in use now, and the most that there was, in MiB.
func (p *program) memory() (now, peak float64, err error) {
	status, err := os.ReadFile(p.proc("status"))
	if err != nil {
		return 0, 0, fmt.Errorf("reading a process's memory: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(fields[1], 64) // other lines have no number
		switch fields[0] {
		case "VmRSS:":
			now = kib / 1024
		case "VmHWM:":
			peak = kib / 1024
		}
	}
	return now, peak, nil
}

// processor is the processor time that it has used, in seconds.
func (p *program) processor() (float64, error) {
	stat, err := os.ReadFile(p.proc("stat"))
	if err != nil {
		return 0, fmt.Errorf("reading a process's times: %w", err)
	}
	// The name, in brackets, may contain blanks; utime and stime are fields 14 and 15.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const utime, stime, ticks = 14 - 3, 15 - 3, 100
	user, errUser := strconv.ParseFloat(fields[utime], 64)
	system, errSystem := strconv.ParseFloat(fields[stime], 64)
	if err := errors.Join(errUser, errSystem); err != nil {
		return 0, fmt.Errorf("reading a process's times: %w", err)
	}
	return (user + system) / ticks, nil
}
