// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// temporaryPrefix begins the name of every temporary directory of a server.
const temporaryPrefix = "braid-apiserver-"

// prepareDir makes the directory and claims it for this process.
func (s *Server) prepareDir() error {
	if s.options.Dir == "" {
		if err := removeAbandoned(); err != nil {
			return err
		}
		dir, err := os.MkdirTemp("", temporaryPrefix)
		if err != nil {
			return fmt.Errorf("making a directory: %w", err)
		}
		s.options.Dir, s.temporary = dir, true
	}
	dir, err := filepath.Abs(s.options.Dir)
	if err != nil {
		return err
	}
	s.options.Dir = dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making a directory: %w", err)
	}
	how := syscall.LOCK_NB
	if s.temporary {
		// Another run may look for a moment whether it is abandoned.
		how = 0
	}
	if s.owner, err = claim(dir, how); err != nil {
		return err
	}
	return refuseIfUsed(dir)
}

func refuseIfUsed(dir string) error {
	running, err := processesOf(dir)
	if err != nil {
		return err
	}
	if len(running) > 0 {
		return fmt.Errorf("%s belongs to a running server: stop that one first", dir)
	}
	return nil
}

// claim locks a directory until the file is closed or this process ends,
// however it ends.
func claim(dir string, how int) (*os.File, error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("claiming %s: %w", dir, err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|how); err != nil {
		return nil, errors.Join(fmt.Errorf("claiming %s: %w", dir, err), file.Close())
	}
	return file, nil
}

// removeAbandoned removes temporary directories whose owner was killed.
func removeAbandoned() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), temporaryPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := removeIfAbandoned(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("removing what an earlier run left: %w", err)
		}
	}
	return nil
}

func removeIfAbandoned(dir string) error {
	owner, err := claim(dir, syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	defer owner.Close()
	if young, err := emptyAndYoung(owner); err != nil || young {
		return err
	}
	return errors.Join(StopDir(dir), os.RemoveAll(dir))
}

// emptyAndYoung is true for a directory that its owner may be about to claim.
func emptyAndYoung(dir *os.File) (bool, error) {
	info, err := dir.Stat()
	if err != nil {
		return false, err
	}
	entries, err := os.ReadDir(dir.Name())
	return len(entries) == 0 && time.Since(info.ModTime()) < time.Minute, err
}

// StopDir ends the processes of the server in a directory, whoever started
// them, and waits until they are gone. It leaves the files.
func StopDir(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	const patience, pause = 10 * time.Second, 20 * time.Millisecond
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(pause) {
		running, err := processesOf(dir)
		if err != nil || len(running) == 0 {
			return err
		}
		if err := killAll(dir, running); err != nil {
			return err
		}
	}
	return fmt.Errorf("the server in %s does not end", dir)
}

func killAll(dir string, pids []int) error {
	for _, pid := range pids {
		process, err := os.FindProcess(pid)
		if err != nil {
			return err
		}
		// The handle pins the process; only now is it sure whose it is.
		if !belongsTo(pid, dir) {
			continue
		}
		if err := process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("ending process %d: %w", pid, err)
		}
	}
	return nil
}

// processesOf finds the processes of the server in a directory by their
// arguments, because a list of ids in a file can be stale.
func processesOf(dir string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && belongsTo(pid, dir) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func belongsTo(pid int, dir string) bool {
	// A process that has ended meanwhile has no arguments to read.
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return false
	}
	for _, argument := range strings.Split(string(content), "\x00") {
		switch argument {
		case "--data-dir=" + filepath.Join(dir, dataDir), "--token-auth-file=" + filepath.Join(dir, tokensFile):
			return true
		}
	}
	return false
}
