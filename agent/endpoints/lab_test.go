// SPDX-License-Identifier: Apache-2.0

package endpoints_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// lab is a node with pods, and a tree of cgroups that has what a kubelet makes: plain
// files with the numbers of real processes.
type lab struct {
	*network.Network
	t      testing.TB
	node   *network.Node
	groups string
	finder *endpoints.Finder
	pods   []endpoints.Pod
}

func newLab(t testing.TB, pods int) *lab {
	t.Helper()
	l := &lab{t: t, groups: t.TempDir()}
	l.Network = network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: pods})
	l.node = l.Nodes[0]
	l.restart()
	for _, pod := range l.node.Pods {
		l.run(pod, inBurstable(uid(pod.PodName))+"/sandbox")
		l.plan(pod)
	}
	return l
}

// restart begins anew, as an agent does.
func (l *lab) restart() {
	l.finder = endpoints.NewFinder(endpoints.Options{
		NamespaceDirectories: []string{network.Directory}, ProcPath: "/proc", CgroupPath: l.groups,
	})
}

// uid is a pod's, by its name.
func uid(name string) string {
	hex := fmt.Sprintf("%024x", name)
	return "00000000-aaaa-bbbb-cccc-" + hex[len(hex)-12:]
}

func inBurstable(uid string) string { return "kubepods/burstable/pod" + uid }

// plan adds a pod to those that are looked for.
func (l *lab) plan(pod *network.Pod) *endpoints.Pod {
	l.pods = append(l.pods, endpoints.Pod{
		UID: uid(pod.PodName), Addresses: []netip.Addr{netip.MustParseAddr(pod.IPv4), netip.MustParseAddr(pod.IPv6)},
	})
	return &l.pods[len(l.pods)-1]
}

// join notes processes in a group.
func (l *lab) join(group string, processes ...int) {
	l.t.Helper()
	directory := filepath.Join(l.groups, group)
	require.NoError(l.t, os.MkdirAll(directory, 0o700))
	file, err := os.OpenFile(filepath.Join(directory, "cgroup.procs"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(l.t, err)
	var lines []byte
	for _, process := range processes {
		lines = fmt.Appendln(lines, process)
	}
	_, err = file.Write(lines)
	require.NoError(l.t, errors.Join(err, file.Close()))
}

// leave removes a group.
func (l *lab) leave(group string) {
	l.t.Helper()
	require.NoError(l.t, os.RemoveAll(filepath.Join(l.groups, group)))
}

// inside is somewhere that a process can be started.
type inside interface {
	Command(ctx context.Context, name string, args ...string) *exec.Cmd
}

// run starts a process in a namespace, puts it into a group, and waits until it sleeps.
func (l *lab) run(in inside, group string, wrapped ...string) (process int) {
	l.t.Helper()
	command := append(wrapped, "sleep", "600")
	started := in.Command(context.Background(), command[0], command[1:]...)
	require.NoError(l.t, started.Start())
	l.t.Cleanup(func() {
		_ = started.Process.Kill() // it may be gone
		_ = started.Wait()
	})
	process = started.Process.Pid
	testutil.Retry(l.t, 10*time.Second, func() error {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", process))
		if err == nil && strings.TrimSpace(string(name)) != "sleep" {
			err = fmt.Errorf("process %d is %s", process, name)
		}
		return err
	})
	if group != "" {
		l.join(group, process)
	}
	return process
}

// look looks as the node's agent does.
func (l *lab) look() (snapshot endpoints.Snapshot) {
	l.t.Helper()
	require.NoError(l.t, l.node.Do(func() (err error) {
		snapshot, err = l.finder.Look(l.pods)
		return err
	}))
	for i := range l.pods { // as the registry remembers
		if found, err := snapshot.Find(l.pods[i].UID); err == nil {
			l.pods[i].Interface = found.HostIndex
		}
	}
	return snapshot
}

// expectFound expects a pod to be found by its own interface, and nothing to be said
// against it.
func (l *lab) expectFound(pod *network.Pod) endpoints.Endpoint {
	l.t.Helper()
	found, err := l.look().Find(uid(pod.PodName))
	if err != nil || found.HostInterface != pod.HostInterface || found.HostIndex != l.index(pod.HostInterface) || found.Contradiction != nil {
		l.t.Errorf("%s was found as %+v (%v), want its interface %s", pod.PodName, found, err, pod.HostInterface)
	}
	return found
}

func (l *lab) expectNone(name string) {
	l.t.Helper()
	found, err := l.look().Find(uid(name))
	require.ErrorIs(l.t, err, endpoints.ErrNotFound, "found as %+v", found)
}

func (l *lab) index(name string) int {
	l.t.Helper()
	index, err := l.node.Index(name)
	require.NoError(l.t, err)
	return index
}

// ip runs ip in a namespace.
func (l *lab) ip(in *network.Namespace, arguments ...string) {
	l.t.Helper()
	_, err := in.Run("ip", arguments...)
	require.NoError(l.t, err)
}

// withoutRoutes removes the node's routes to pods: their cluster network has others.
func (l *lab) withoutRoutes(pods ...*network.Pod) {
	l.t.Helper()
	for _, pod := range pods {
		l.ip(l.node.Namespace, "route", "del", pod.IPv4)
		l.ip(l.node.Namespace, "-6", "route", "del", pod.IPv6)
	}
}

func inode(t testing.TB, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

// moveAway starts a process of a pod in a network namespace that the pod made, and moves
// the pod's interface there.
func (l *lab) moveAway(pod *network.Pod, group string) (process int) {
	l.t.Helper()
	process = l.run(pod, group, "unshare", "--net")
	l.ip(pod.Namespace, "link", "set", "eth0", "netns", strconv.Itoa(process))
	return process
}
