// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// errEndedEarly is a process that ended before it was ready.
var errEndedEarly = errors.New("ended before it was ready")

// collectRarely has Go collect its garbage less often than it would by itself: an API server
// then computes a fifth less, and takes 0.8 GB in the place of 0.4.
var collectRarely = []string{"GOGC=400", "GOMEMLIMIT=2GiB"}

// process is a child that this process waits for.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
}

// launch starts a program whose output goes to a log in the directory.
func launch(path string, arguments []string, dir string, detach bool) (*process, error) {
	name := filepath.Base(path)
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", name, err)
	}
	defer log.Close()
	p.cmd = exec.Command(path, arguments...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	// Etcd would take flags from the environment of whoever runs the tests.
	p.cmd.Env = slices.Concat([]string{"HOME=" + dir}, collectRarely)
	p.cmd.SysProcAttr = attributes(detach)
	if err := p.startAndWait(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// attributes keep Ctrl-C from the child in either case: who started it decides
// when it ends.
func attributes(detach bool) *syscall.SysProcAttr {
	if detach {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// startAndWait keeps the thread that starts the child until the child ends,
// because Pdeathsig strikes when that thread ends, not when the process does.
func (p *process) startAndWait() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			// How it ended does not matter: nobody expects it to end by itself.
			_ = p.cmd.Wait()
			close(p.done)
		}
	}()
	return <-started
}

// kill ends the process at once and waits until it is gone. Nothing is lost:
// what etcd has taken is in its files.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("ending %s: %w", p.name, err)
	}
	<-p.done
	return nil
}

// waitReady asks again and again until the process says that it is ready.
func (p *process) waitReady(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s %w: %s", p.name, errEndedEarly, p.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (%w): %s", p.name, ctx.Err(), err, p.lastWords())
		case <-tick.C:
		}
	}
}

// lastWords are the last lines of the log.
func (p *process) lastWords() string {
	const limit = 2000
	content, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	content = bytes.TrimSpace(content)
	if len(content) > limit {
		content = content[len(content)-limit:]
	}
	return string(content)
}
