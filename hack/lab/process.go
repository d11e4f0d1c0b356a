// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// markVariable is in the environment of every process of a lab, so that each is
// found again whatever became of its parent.
const markVariable = "BRAID_LAB"

func mark(name string) string { return markVariable + "=" + name }

// Process is a process of the lab. It outlives the program that started it;
// Down ends it.
type Process struct {
	// Name of the process, and of its log.
	Name string
	// Log is the file with its output.
	Log string

	command *exec.Cmd
	done    chan struct{}
}

// start starts a command as a process of the lab.
func (l *Lab) start(name string, command *exec.Cmd, environment ...string) (*Process, error) {
	p := &Process{Name: name, Log: filepath.Join(l.LogDirectory(), name+".log"), command: command, done: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", name, err)
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	command.Env = append(os.Environ(), append(environment, mark(l.Name))...)
	// A session of its own keeps Ctrl-C away: the lab decides when it ends.
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		_ = command.Wait() // whoever waits for it learns from its log
		close(p.done)
	}()
	l.children.add(p)
	return p, nil
}

// restartAfter is how long what is kept running is away after it ended.
const restartAfter = time.Second

// keepRunning starts a process, and starts it again whenever it ends, as a kubelet does for the
// pods of a control plane.
func (l *Lab) keepRunning(name, program string, arguments ...string) error {
	p, err := l.start(name, exec.Command(program, arguments...))
	if err != nil {
		return err
	}
	go func() {
		<-p.done
		time.Sleep(restartAfter)
		err := l.children.unlessEnding(func() error { return l.keepRunning(name, program, arguments...) })
		if err != nil {
			l.options.Say(fmt.Sprintf("failed to start %s again: %v", name, err))
		}
	}()
	return nil
}

// children are the processes that a lab has started.
type children struct {
	mutex   sync.Mutex
	started []*Process

	keeping sync.Mutex
	ending  bool
}

func (c *children) add(one *Process) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.started = append(c.started, one)
}

// end has nothing be started again.
func (c *children) end() {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	c.ending = true
}

func (c *children) unlessEnding(f func() error) error {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	if c.ending {
		return nil
	}
	return f()
}

// LastWords is what the logs of the lab's processes say at their ends, and which of them are gone:
// for whoever asks why a lab does not do what it should.
func (l *Lab) LastWords() (reports []string) {
	l.children.mutex.Lock()
	defer l.children.mutex.Unlock()
	for _, p := range l.children.started {
		if err := p.ended(); err != nil {
			reports = append(reports, err.Error())
			continue
		}
		reports = append(reports, p.Name+" runs: "+p.lastWords())
	}
	return reports
}

// Pid is the process's number.
func (p *Process) Pid() int { return p.command.Process.Pid }

// Stop sends a signal and waits until the process is gone.
func (p *Process) Stop(signal os.Signal) error {
	if err := p.command.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("ending %s: %w", p.Name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("%s does not end on signal %v", p.Name, signal)
	}
}

// Ended tells whether the process is gone.
func (p *Process) Ended() bool { return p.ended() != nil }

// ended returns an error with the end of its log once the process is gone.
func (p *Process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %s", p.Name, p.lastWords())
	default:
		return nil
	}
}

func (p *Process) lastWords() string {
	const limit = 2000
	content, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	content = bytes.TrimSpace(content)
	return string(content[max(0, len(content)-limit):])
}

// killMarked kills all processes of a lab and waits until they are gone.
func killMarked(name string) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		pids := marked(name)
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v of lab %s do not end", pids, name)
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("killing process %d of lab %s: %w", pid, name, err)
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// marked lists the processes of a lab. The environment of a dead one is empty.
func marked(name string) (pids []int) {
	wanted := []byte(mark(name))
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is valid
	for _, file := range files {
		environment, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && pid != os.Getpid() && hasVariable(environment, wanted) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func hasVariable(environment, wanted []byte) bool {
	for variable := range bytes.SplitSeq(environment, []byte{0}) {
		if bytes.Equal(variable, wanted) {
			return true
		}
	}
	return false
}
