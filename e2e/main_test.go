// SPDX-License-Identifier: Apache-2.0

// Package e2e_test shows on a real API server, with the real controller and one
// real agent for each of three nodes, what Braid promises its users.
//
// All tests share one lab. Each begins and ends with a lab that no policy and no
// path was applied to, so each can be run alone.
package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

const (
	labName  = "e2e"
	linkMbit = 30
)

// paths of the lab; the routes between the nodes' pods use the first one alone.
var paths = []string{"blue", "green", "red"}

// The pods of the lab, in namespaces of their own kinds: shop is where most
// policies are, tenant has pods with the same labels that none of them selects,
// and the pod in quiet is on a node of its own.
var pods = []lab.Pod{
	pod("shop", "client", 1, "client"),
	pod("shop", "server", 2, "server"),
	pod("tenant", "tenant-client", 1, "client"),
	pod("tenant", "tenant-server", 2, "server"),
	pod("quiet", "third", 3, "third"),
}

func pod(namespace, name string, node int, app string) lab.Pod {
	return lab.Pod{
		Namespace: namespace, Name: name, Node: node,
		Labels: map[string]string{"app": app}, Serves: app == "server",
	}
}

func TestMain(m *testing.M) {
	lab.RunRole()
	code := m.Run()
	if err := down(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

// cluster is the lab that the tests share.
type cluster struct {
	*lab.Lab
	// untouched is the footprint before anything was applied.
	untouched []string
}

// up brings the lab up for the first test that needs it.
var up = sync.OnceValues(func() (*cluster, error) {
	ctx := context.Background()
	if err := lab.FetchKubernetes(ctx); err != nil {
		return nil, err
	}
	l, err := lab.Up(ctx, lab.Options{
		Name:    labName,
		Network: network.Spec{Nodes: 3, Paths: paths, LinkMbit: linkMbit},
		Pods:    pods,
	})
	if err != nil {
		return nil, err
	}
	shared = &cluster{Lab: l}
	shared.untouched, err = l.Footprint()
	return shared, err
})

var shared *cluster // nil while the lab is not up

// down removes the lab, and fails when anything of it is left.
func down() error {
	if shared == nil {
		return nil
	}
	if err := shared.Down(); err != nil {
		return err
	}
	return nothingOfTheLabIsLeft()
}

func nothingOfTheLabIsLeft() error {
	namespaces, err := network.Namespaces(labName)
	if err != nil {
		return err
	}
	processes, err := labProcesses()
	if err != nil {
		return err
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	_, err = os.Stat(lab.Directory(labName))
	mounted := strings.Contains(string(mounts), lab.Directory(labName))
	if len(namespaces)+len(processes) > 0 || mounted || !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the lab left behind: network namespaces %v, processes %v, a mount: %v, its directory: %v",
			namespaces, processes, mounted, err == nil)
	}
	return nil
}

// labProcesses are the commands of the lab's processes, which it marks in their
// environment.
func labProcesses() (map[int]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil, err
	}
	processes := map[int]string{}
	for _, file := range files {
		environment, _ := os.ReadFile(file) // of a process that has just ended there is none
		if !strings.Contains(string(environment), "BRAID_LAB="+labName+"\x00") {
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

// use gives a test the lab. When the test ends, all paths and policies are
// deleted, and then nothing of Braid may be left on any node or pod.
func use(t *testing.T) *cluster {
	t.Helper()
	c, err := up()
	if err != nil {
		t.Fatalf("bringing the lab up: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.logProcesses(t)
		}
		c.deleteAll(t)
		c.waitFor(t, "nothing is left on nodes and pods", 10*time.Second, c.nothingLeft)
	})
	return c
}
