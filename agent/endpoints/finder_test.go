// SPDX-License-Identifier: Apache-2.0

package endpoints_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/internal/lab/network"
)

func TestANodeFindsItsOwnPodsAlone(t *testing.T) {
	l := newLab(t, 2)
	for _, pod := range l.node.Pods {
		found := l.expectFound(pod)
		if found.Path != pod.Path() || found.Inode != inode(t, pod.Path()) {
			t.Errorf("its namespace is %+v, want %s", found, pod.Path())
		}
		if path, ok := l.look().Path(found.Inode); !ok || path != pod.Path() {
			t.Errorf("the path of namespace %d is %q", found.Inode, path)
		}
	}
	for _, pod := range l.Nodes[1].Pods { // its processes are on this machine, and no interface of this node leads there
		l.run(pod, inBurstable(uid(pod.PodName)))
		l.plan(pod)
		l.expectNone(pod.PodName)
	}
	if path, ok := l.look().Path(1); ok {
		t.Errorf("namespace 1 has the path %q", path)
	}
}

func TestPodsAreFoundByTheirCgroupsNames(t *testing.T) {
	const id, escaped, hash = "0a1b2c3d-0000-1111-2222-333344445555", "0a1b2c3d_0000_1111_2222_333344445555", "8f14e45fceea167a5a36dedd4bea2543"
	l := newLab(t, 1)
	pod := l.node.Pods[0]
	l.withoutRoutes(pod)
	l.leave("kubepods")
	for name, group := range map[string]string{
		"cgroupfs":                   "kubepods/burstable/pod" + id + "/0123abcd",
		"cgroupfs, guaranteed":       "kubepods/pod" + id + "/0123abcd",
		"systemd":                    "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + escaped + ".slice/cri-containerd-0123.scope",
		"systemd, guaranteed":        "kubepods.slice/kubepods-pod" + escaped + ".slice/crio-0123.scope",
		"a group inside a container": "kubepods/pod" + id + "/0123abcd/init.scope/deeper",
		"version 1":                  "pids/kubepods/besteffort/pod" + id + "/0123abcd",
		"version 1, systemd":         "systemd/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + escaped + ".slice/docker-0123.scope",
		"kind":                       "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" + escaped + ".slice/cri-containerd-0123.scope",
		"a root of its own":          "nodes/node1/kubepods/burstable/pod" + id + "/0123abcd",
		"a static pod":               "kubepods/burstable/pod" + hash + "/0123abcd",
	} {
		t.Run(name, func(t *testing.T) {
			l.restart()
			l.pods[0] = endpoints.Pod{UID: id}
			if name == "a static pod" {
				l.pods[0].GroupUID = hash
			}
			l.run(pod, group)
			found, err := l.look().Find(id)
			if err != nil || found.HostInterface != pod.HostInterface {
				t.Errorf("it was found as %+v (%v)", found, err)
			}
			entries, err := os.ReadDir(l.groups)
			require.NoError(t, err)
			for _, entry := range entries {
				l.leave(entry.Name())
			}
		})
	}
}

func TestANamespaceWithoutAFileIsFoundByItsProcess(t *testing.T) {
	l := newLab(t, 1)
	pod := l.node.Pods[0]
	l.finder = endpoints.NewFinder(endpoints.Options{ProcPath: "/proc", CgroupPath: l.groups, NamespaceDirectories: []string{filepath.Join(t.TempDir(), "nothing")}})
	found := l.expectFound(pod)
	if matched, _ := filepath.Match("/proc/*/ns/net", found.Path); !matched || found.Inode != inode(t, pod.Path()) {
		t.Errorf("it was found as %+v", found)
	}
}

func TestFilesThatAreNoNamespacesAreLeftOut(t *testing.T) {
	l := newLab(t, 1)
	directory := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(directory, "file"), []byte("no namespace"), 0o600))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(directory, "dangling")))
	l.finder = endpoints.NewFinder(endpoints.Options{ProcPath: "/proc", CgroupPath: l.groups, NamespaceDirectories: []string{directory, network.Directory}})
	if found := l.expectFound(l.node.Pods[0]); found.Path != l.node.Pods[0].Path() {
		t.Errorf("it was found as %+v", found)
	}
}

func TestAPodThatIsGoneIsNotFoundAndNotHeld(t *testing.T) {
	l := newLab(t, 2)
	pod := l.node.Pods[0]
	found := l.expectFound(pod)
	files, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	if slices.ContainsFunc(files, func(file string) bool {
		target, err := os.Readlink(file)
		return err == nil && target == fmt.Sprintf("net:[%d]", found.Inode)
	}) {
		t.Errorf("a file of namespace %d is open", found.Inode)
	}
	l.ip(l.node.Namespace, "link", "delete", pod.HostInterface)
	l.expectNone(pod.PodName)
	l.expectFound(l.node.Pods[1])
}

func TestAPodsNewSandboxIsFound(t *testing.T) {
	l := newLab(t, 1)
	pod := l.node.Pods[0]
	l.expectFound(pod)
	l.ip(l.node.Namespace, "link", "delete", pod.HostInterface)
	group := inBurstable(uid(pod.PodName))
	l.leave(group)
	again, err := network.New(l.node.Name + "-again")
	require.NoError(t, err)
	require.NoError(t, network.Connect(again, "eth0", l.node.Namespace, "veth9", network.Options{}))
	l.run(again, group+"/another")
	found, err := l.look().Find(uid(pod.PodName))
	if err != nil || found.HostInterface != "veth9" || found.Inode != inode(t, again.Path()) {
		t.Errorf("it was found as %+v (%v)", found, err)
	}
}

func TestARouteToABridgeFitsTheInterfaceThatTheBridgeHas(t *testing.T) {
	l := newLab(t, 1)
	pod := l.node.Pods[0]
	l.expectFound(pod)
	l.ip(l.node.Namespace, "link", "add", "bridge0", "type", "bridge")
	l.ip(l.node.Namespace, "link", "set", "bridge0", "up")
	l.withoutRoutes(pod)
	l.ip(l.node.Namespace, "link", "set", pod.HostInterface, "master", "bridge0")
	l.ip(l.node.Namespace, "route", "add", "10.244.1.0/24", "dev", "bridge0")
	require.NoError(t, network.Connect(pod.Namespace, "net1", l.node.Namespace, "other", network.Options{}))
	for range 2 {
		if found := l.expectFound(pod); found.MasterIndex != l.index("bridge0") || len(found.Others) > 0 {
			t.Errorf("it was found as %+v, want the bridge's interface alone", found)
		}
		l.restart()
		l.pods[0].Interface = 0
	}
}

func TestOfSeveralInterfacesTheRouteDecides(t *testing.T) {
	l := newLab(t, 1)
	pod := l.node.Pods[0]
	require.NoError(t, network.Connect(pod.Namespace, "net1", l.node.Namespace, "other", network.Options{}))
	if found := l.expectFound(pod); len(found.Others) > 0 {
		t.Errorf("it was found as %+v, want what the route leads to alone", found)
	}
	l.restart()
	l.withoutRoutes(pod)
	if found := l.expectFound(pod); !slices.Equal(found.Others, []int{l.index("other")}) {
		t.Errorf("it was found as %+v, want the other one too", found)
	}
}

func TestWithoutCgroupsTheRouteDecides(t *testing.T) {
	l := newLab(t, 2)
	l.leave("kubepods")
	l.expectFound(l.node.Pods[0])
	l.withoutRoutes(l.node.Pods[1])
	l.restart()
	l.pods[1].Interface = 0
	l.expectNone(l.node.Pods[1].PodName)
}

// A cluster network may route all pods' addresses to a device of its own, and go on from
// there without routes.
func TestAPodThatRoutesReachByAnotherDeviceIsFoundByItsProcesses(t *testing.T) {
	l := newLab(t, 1)
	pod := l.node.Pods[0]
	if found := l.expectFound(pod); found.RoutedBy != 0 {
		t.Errorf("routes lead to its own interface, and it was found as %+v", found)
	}
	l.withoutRoutes(pod)
	l.ip(l.node.Namespace, "link", "add", "network0", "type", "bridge")
	l.ip(l.node.Namespace, "link", "set", "network0", "up")
	l.ip(l.node.Namespace, "route", "add", "10.244.1.0/24", "dev", "network0")
	l.restart()
	if found := l.expectFound(pod); found.RoutedBy != l.index("network0") {
		t.Errorf("it was found as %+v, and routes lead to %d", found, l.index("network0"))
	}
}

func TestAllInterfacesOfAPodAreItsOwnAlsoThoseWithoutItsAddresses(t *testing.T) {
	l := newLab(t, 2)
	require.NoError(t, network.Connect(l.node.Pods[0].Namespace, "net1", l.node.Namespace, "second", network.Options{}))
	snapshot := l.look()
	for name, pod := range map[string]*network.Pod{"second": l.node.Pods[0], l.node.Pods[0].HostInterface: l.node.Pods[0], l.node.Pods[1].HostInterface: l.node.Pods[1]} {
		if owner := snapshot.Owners[l.index(name)]; owner != uid(pod.PodName) {
			t.Errorf("%s belongs to %q, want %s", name, owner, uid(pod.PodName))
		}
	}
	if end := snapshot.HostEnds[l.index("second")]; !end.IsOfPair() {
		t.Errorf("it is none of a pair: %+v", end)
	}
}

// Of two pods with the same right to an interface the one has it that does not yield, and
// the other one is no contradiction.
func TestAPodThatYieldsGetsNothingThatAnotherPodHasARightTo(t *testing.T) {
	for _, yields := range []bool{true, false} {
		l := newLab(t, 1)
		pod := l.node.Pods[0]
		l.withoutRoutes(pod)
		l.pods = append(l.pods, endpoints.Pod{UID: uid("thief"), GroupUID: uid(pod.PodName), Yields: yields})
		snapshot := l.look()
		found, err := snapshot.Find(uid(pod.PodName))
		if _, stolen := snapshot.Find(uid("thief")); stolen == nil || (err == nil && found.Contradiction == nil) != yields {
			t.Errorf("one that yields %t: the owner was found as %+v (%v), the other one: %v", yields, found, err, stolen)
		}
	}
}

// A pod that yields may be gone already, and another one have its address: a route is no
// proof that it is there, unless nothing else can be.
func TestAPodThatYieldsIsNotFoundByItsAddressWherePodsHaveCgroups(t *testing.T) {
	l := newLab(t, 2)
	gone := l.node.Pods[0]
	l.leave(inBurstable(uid(gone.PodName)))
	for _, cgroups := range []bool{true, false} {
		l.pods[0].Yields, l.pods[0].Interface = true, 0
		l.restart()
		if !cgroups {
			l.finder = endpoints.NewFinder(endpoints.Options{ProcPath: "/proc", CgroupPath: t.TempDir(), NamespaceDirectories: []string{network.Directory}})
		}
		if _, err := l.look().Find(uid(gone.PodName)); (err == nil) == cgroups {
			t.Errorf("pods have cgroups: %t; it was found: %t", cgroups, err == nil)
		}
	}
}
