// SPDX-License-Identifier: Apache-2.0

// Package testlab is the lab that the tests of a package below e2e share, what they
// ask it for, and the packets that whoever may send raw ones can forge.
package testlab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

// Cluster is a lab that is up.
type Cluster struct {
	*lab.Lab
	// Untouched is the footprint before anything was applied.
	Untouched []string
	// Paths of the network.
	Paths []string
}

// Shared is a lab that all tests of a package share.
type Shared struct {
	options lab.Options
	cluster *Cluster // nil while the lab is not up
	err     error
	tried   bool
}

// NewShared describes a lab. The first test that uses it brings it up.
func NewShared(options lab.Options) *Shared { return &Shared{options: options} }

// Main runs the tests, and ends with a failure also when anything of the lab is left.
func (s *Shared) Main(m *testing.M) {
	lab.RunRole()
	code := m.Run()
	if err := s.Down(); err != nil {
		fmt.Fprintln(os.Stderr, "removing the lab:", err)
		code = 1
	}
	os.Exit(code)
}

// Use gives a test the lab. When the test ends, all paths and policies are deleted, and
// then nothing of Braid may be left on any node or pod.
func (s *Shared) Use(t testing.TB) *Cluster {
	t.Helper()
	if !s.tried {
		s.tried = true
		s.cluster, s.err = up(s.options)
	}
	if s.err != nil {
		t.Fatalf("bringing the lab up: %v", s.err)
	}
	c := s.cluster
	t.Cleanup(func() {
		if t.Failed() {
			c.LogProcesses(t)
		}
		c.DeleteAll(t)
		c.WaitFor(t, "nothing is left on nodes and pods", 30*time.Second, c.NothingLeft)
	})
	return c
}

func up(options lab.Options) (_ *Cluster, err error) {
	ctx := context.Background()
	if name := os.Getenv("BRAID_E2E_NETWORK"); name != "" && options.Network.Overlay == (network.Overlay{}) {
		if options.Network.Overlay, err = network.OverlayNamed(name); err != nil {
			return nil, err
		}
	}
	if err := lab.FetchKubernetes(ctx); err != nil {
		return nil, err
	}
	l, err := lab.Up(ctx, options)
	if err != nil {
		return nil, err
	}
	untouched, err := l.Footprint()
	if err != nil {
		return nil, errors.Join(err, l.Down())
	}
	return &Cluster{Lab: l, Untouched: untouched, Paths: options.Network.Paths}, nil
}

// Down removes the lab, and fails when anything of it is left.
func (s *Shared) Down() error {
	if s.cluster == nil {
		return nil
	}
	err := s.cluster.Down()
	s.cluster, s.err = nil, errDown
	if err != nil {
		return err
	}
	return nothingLeftOf(s.options.Name)
}

var errDown = errors.New("it is down again")

func nothingLeftOf(name string) error {
	namespaces, err := network.Namespaces(name)
	if err != nil {
		return err
	}
	processes, err := Processes(name)
	if err != nil {
		return err
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	_, err = os.Stat(lab.Directory(name))
	mounted := isMounted(string(mounts), lab.Directory(name))
	if len(namespaces)+len(processes) > 0 || mounted || !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the lab left behind: network namespaces %v, processes %v, a mount: %v, its directory: %v",
			namespaces, processes, mounted, err == nil)
	}
	return nil
}

// isMounted tells whether something is mounted at a directory or below. Another lab's name may
// begin with this one's.
func isMounted(mounts, directory string) bool {
	return strings.Contains(mounts, " "+directory+" ") || strings.Contains(mounts, " "+directory+"/")
}

// Processes are the commands of a lab's processes, which it marks in their
// environment.
func Processes(name string) (map[int]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil, err
	}
	processes := map[int]string{}
	for _, file := range files {
		environment, _ := os.ReadFile(file) // of a process that has just ended there is none
		if !strings.Contains(string(environment), "BRAID_LAB="+name+"\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		processes[pid] = string(command)
	}
	return processes, nil
}
