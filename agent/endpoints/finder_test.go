// SPDX-License-Identifier: Apache-2.0

package endpoints_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/internal/lab/network"
)

// build makes two nodes whose pods' interfaces have the same names.
func build(t *testing.T, podsPerNode int) *network.Network {
	t.Helper()
	return network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: podsPerNode})
}

// look looks from a node, as its agent does.
func look(t *testing.T, node *network.Node, directories ...string) endpoints.Snapshot {
	t.Helper()
	return looking(t, node, directories...)()
}

func addresses(t *testing.T, texts ...string) (addresses []netip.Addr) {
	t.Helper()
	for _, text := range texts {
		address, err := netip.ParseAddr(text)
		require.NoError(t, err)
		addresses = append(addresses, address)
	}
	return addresses
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

// expectPod expects the pod to be found by each of its addresses alone.
func expectPod(t *testing.T, snapshot endpoints.Snapshot, pod *network.Pod) {
	t.Helper()
	index, err := pod.Node.Index(pod.HostInterface)
	require.NoError(t, err)
	want := endpoints.Endpoint{
		Inode: inode(t, pod.Path()), Path: pod.Path(),
		Interface: "eth0", HostInterface: pod.HostInterface, HostIndex: index,
	}
	for _, address := range addresses(t, pod.IPv4, pod.IPv6) {
		found, err := snapshot.Find([]netip.Addr{address})
		if err != nil || found != want {
			t.Errorf("%s was found as %+v (%v), want %+v", address, found, err, want)
		}
	}
	if path, ok := snapshot.Path(want.Inode); !ok || path != want.Path {
		t.Errorf("the path of namespace %d is %q, want %q", want.Inode, path, want.Path)
	}
}

func expectNone(t *testing.T, snapshot endpoints.Snapshot, texts ...string) {
	t.Helper()
	if found, err := snapshot.Find(addresses(t, texts...)); !errors.Is(err, endpoints.ErrNotFound) {
		t.Errorf("%v was found as %+v (%v), want ErrNotFound", texts, found, err)
	}
}

func TestANodeFindsItsOwnPodsAlone(t *testing.T) {
	n := build(t, 2)
	for _, node := range n.Nodes {
		snapshot := look(t, node, network.Directory)
		for _, other := range n.Nodes {
			for _, pod := range other.Pods {
				if other == node {
					expectPod(t, snapshot, pod)
				} else {
					expectNone(t, snapshot, pod.IPv4, pod.IPv6)
				}
			}
		}
	}
}

func TestAddressesThatNoPodHasAreNotFound(t *testing.T) {
	n := build(t, 1)
	snapshot := look(t, n.Nodes[0], network.Directory)
	expectNone(t, snapshot)
	expectNone(t, snapshot, "192.0.2.1", "2001:db8::1", "127.0.0.1", "::1")
	expectNone(t, snapshot, n.Nodes[0].Address(0, 4), n.Nodes[1].Address(0, 6))
	if path, ok := snapshot.Path(1); ok {
		t.Errorf("namespace 1 has the path %q", path)
	}
}

func TestANamespaceWithoutAFileIsFoundByItsProcess(t *testing.T) {
	n := build(t, 1)
	pod := n.Nodes[0].Pods[0]
	process := pod.Command(context.Background(), "sleep", "600")
	require.NoError(t, process.Start())
	defer func() {
		require.NoError(t, process.Process.Kill())
		_ = process.Wait() // says that it was killed
	}()
	var found endpoints.Endpoint
	for found.Path == "" { // nsenter enters a moment after it starts
		found, _ = look(t, n.Nodes[0]).Find(addresses(t, pod.IPv4))
	}
	if want := fmt.Sprintf("/proc/%d/ns/net", process.Process.Pid); found.Path != want {
		t.Errorf("the path is %q, want %q", found.Path, want)
	}
}

func TestADirectoryThatDoesNotExistIsNoError(t *testing.T) {
	n := build(t, 1)
	expectPod(t, look(t, n.Nodes[0], filepath.Join(t.TempDir(), "nothing"), network.Directory), n.Nodes[0].Pods[0])
}

func TestFilesThatAreNoNamespacesAreLeftOut(t *testing.T) {
	n := build(t, 1)
	directory := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(directory, "file"), []byte("no namespace"), 0o600))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(directory, "dangling")))
	expectPod(t, look(t, n.Nodes[0], directory, network.Directory), n.Nodes[0].Pods[0])
}

// pod is made by hand, to give it an address that another pod has or had.
func makePod(t *testing.T, node *network.Node, name, hostInterface, address string) *network.Namespace {
	t.Helper()
	pod, err := network.New(node.Name + "-" + name)
	require.NoError(t, err)
	require.NoError(t, network.Connect(pod, "eth0", node.Namespace, hostInterface, network.Options{AddressesA: []string{address + "/32"}}))
	return pod
}

func TestAPodThatIsGoneIsNotFound(t *testing.T) {
	n := build(t, 0)
	node := n.Nodes[0]
	pod := makePod(t, node, "pod", "veth1", "10.244.1.9")
	found, err := look(t, node, network.Directory).Find(addresses(t, "10.244.1.9"))
	require.NoError(t, err)
	expectNotHeld(t, found.Inode)
	require.NoError(t, pod.Delete())
	expectNone(t, look(t, node, network.Directory), "10.244.1.9")
}

// expectNotHeld expects no open file to keep the namespace alive.
func expectNotHeld(t *testing.T, inode uint64) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	held := slices.ContainsFunc(files, func(file string) bool {
		target, err := os.Readlink(file)
		return err == nil && target == fmt.Sprintf("net:[%d]", inode)
	})
	if held {
		t.Errorf("a file of namespace %d is open", inode)
	}
}

func TestAPodThatComesAgainIsFoundInItsNewNamespace(t *testing.T) {
	n := build(t, 0)
	node := n.Nodes[0]
	require.NoError(t, makePod(t, node, "first", "veth1", "10.244.1.9").Delete())
	second := makePod(t, node, "second", "veth2", "10.244.1.9")
	found, err := look(t, node, network.Directory).Find(addresses(t, "10.244.1.9"))
	require.NoError(t, err)
	if found.Inode != inode(t, second.Path()) || found.HostInterface != "veth2" {
		t.Errorf("it was found as %+v", found)
	}
}

func TestTheNewestOfTwoPodsWithOneAddressIsFound(t *testing.T) {
	n := build(t, 0)
	node := n.Nodes[0]
	// The names decide the order in which the namespaces are looked at.
	for i, name := range []string{"b", "a", "c"} {
		hostInterface := fmt.Sprintf("veth%d", i+1)
		newest := makePod(t, node, name, hostInterface, "10.244.1.9")
		found, err := look(t, node, network.Directory).Find(addresses(t, "10.244.1.9"))
		require.NoError(t, err)
		if found.Inode != inode(t, newest.Path()) || found.HostInterface != hostInterface {
			t.Errorf("with %s as the newest, it was found as %+v", name, found)
		}
	}
}

// run runs ip in a node.
func run(t *testing.T, node *network.Node, arguments ...string) {
	t.Helper()
	_, err := node.Run("ip", arguments...)
	require.NoError(t, err)
}

// looking looks with one finder again and again, as an agent does.
func looking(t *testing.T, node *network.Node, directories ...string) (look func() endpoints.Snapshot) {
	t.Helper()
	finder := endpoints.NewFinder(directories, "/proc")
	return func() (snapshot endpoints.Snapshot) {
		require.NoError(t, node.Do(func() (err error) {
			snapshot, err = finder.Look()
			return err
		}))
		return snapshot
	}
}

func TestAFinderThatLookedBeforeSeesWhatIsNew(t *testing.T) {
	const address = "10.244.1.9"
	n := build(t, 1)
	node, other := n.Nodes[0], n.Nodes[0].Pods[0]
	look := looking(t, node, network.Directory)
	expectNone(t, look(), address)
	pod := makePod(t, node, "pod", "veth8", address)
	first, err := look().Find(addresses(t, address))
	require.NoError(t, err)
	for _, change := range []struct {
		what, hostInterface string
		make                func()
	}{
		{"another interface in its place", "veth9", func() {
			run(t, node, "link", "delete", "veth8")
			require.NoError(t, network.Connect(pod, "eth0", node.Namespace, "veth9", network.Options{AddressesA: []string{address + "/32"}}))
		}},
		{"another namespace in its place", "veth10", func() {
			require.NoError(t, pod.Delete())
			pod = makePod(t, node, "again", "veth10", address)
		}},
	} {
		change.make()
		found, err := look().Find(addresses(t, address))
		if err != nil || found.HostInterface != change.hostInterface || found.Inode != inode(t, pod.Path()) {
			t.Errorf("with %s it was found as %+v (%v), before as %+v", change.what, found, err, first)
		}
		expectPod(t, look(), other)
	}
	require.NoError(t, pod.Delete())
	expectNone(t, look(), address)
}

func TestAnInterfaceThatGetsAMasterIsSeen(t *testing.T) {
	n := build(t, 1)
	node, pod := n.Nodes[0], n.Nodes[0].Pods[0]
	look := looking(t, node, network.Directory)
	expectPod(t, look(), pod)
	run(t, node, "link", "add", "bridge0", "type", "bridge")
	run(t, node, "link", "set", pod.HostInterface, "master", "bridge0")
	bridge, err := node.Index("bridge0")
	require.NoError(t, err)
	found, err := look().Find(addresses(t, pod.IPv4))
	if err != nil || found.MasterIndex != bridge {
		t.Errorf("it was found as %+v (%v), want the master %d", found, err, bridge)
	}
}
