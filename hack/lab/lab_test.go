// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// childVariable makes the test's program bring a lab up: its value is the lab's
// name, a colon, and what to do then.
const childVariable = "BRAID_LAB_TEST"

func TestMain(m *testing.M) {
	RunRole()
	if what := os.Getenv(childVariable); what != "" {
		child(what)
	}
	os.Exit(m.Run())
}

// Somebody may wait for the end of a pipe, or for a lock, while a lab is kept.
func TestTheLabsProgramsDoNotInheritTheCallersDescriptors(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	inherited := func() bool {
		return exec.Command("test", "-e", fmt.Sprintf("/proc/self/fd/%d", pipe[1])).Run() == nil
	}
	if !inherited() {
		t.Fatal("the test itself is wrong: the descriptor is not inherited")
	}
	if err := keepInherited(); err != nil {
		t.Fatal(err)
	}
	if inherited() {
		t.Error("the descriptor is inherited")
	}
}

// child tells its parent on standard output what is done.
func child(what string) {
	name, then, _ := strings.Cut(what, ":")
	l, err := Up(context.Background(), small(name))
	if err == nil {
		err = program(l)
	}
	if err == nil && then == "keep" {
		err = l.Keep()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("up")
	if then == "keep" {
		os.Exit(0)
	}
	select {}
}

// labName is one that no other run of the tests has.
func labName(test string) string { return fmt.Sprintf("%s%d", test, os.Getpid()) }

func small(name string) Options {
	pod := func(name string, node int) Pod {
		return Pod{Namespace: "default", Name: name, Node: node, Labels: map[string]string{"app": name}, Serves: name == "server"}
	}
	return Options{
		Name:    name,
		Network: network.Spec{Nodes: 2, Paths: []string{"blue", "green"}, LinkMbit: 100},
		Pods:    []Pod{pod("client", 1), pod("server", 2)},
	}
}

// program applies paths and a policy, and waits until the nodes carry it out.
func program(l *Lab) error {
	ctx := context.Background()
	policy := &v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "all"}}
	objects := []client.Object{policy}
	for _, path := range l.Network.Spec.Paths {
		objects = append(objects, &v1alpha1.MPTCPPath{
			ObjectMeta: metav1.ObjectMeta{Name: path},
			Spec:       v1alpha1.MPTCPPathSpec{Interfaces: []v1alpha1.InterfacePattern{v1alpha1.InterfacePattern(path)}},
		})
	}
	for _, object := range objects {
		if err := l.Client.Create(ctx, object); err != nil {
			return err
		}
	}
	return eventually(ctx, l.processes(), func(ctx context.Context) error {
		if err := l.Client.Get(ctx, client.ObjectKeyFromObject(policy), policy); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(policy.Status.Conditions, v1alpha1.ConditionProgrammed) {
			return fmt.Errorf("not programmed: %v", policy.Status.Conditions)
		}
		return nil
	})
}

// startChild starts the test's program as one that brings a lab up.
func startChild(t *testing.T, name, then string) (command *exec.Cmd, lines *bufio.Scanner) {
	t.Helper()
	command = exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), childVariable+"="+name+":"+then)
	command.Stderr = os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		if err := Down(context.Background(), name, func(string) {}); err != nil {
			t.Error(err)
		}
	})
	return command, bufio.NewScanner(out)
}

func expectUp(t *testing.T, lines *bufio.Scanner) {
	t.Helper()
	if !lines.Scan() || lines.Text() != "up" {
		t.Fatalf("the lab did not come up: %s", lines.Text())
	}
}

func TestALabThatWasKeptLeavesNothingAfterDown(t *testing.T) {
	name := labName("kept")
	machine := rootFootprint(t)
	command, lines := startChild(t, name, "keep")
	expectUp(t, lines)
	if err := command.Wait(); err != nil {
		t.Fatal(err)
	}
	found := tracesOf(t, name)
	found.expectSome(t)
	if err := Down(t.Context(), name, func(string) {}); err != nil {
		t.Fatal(err)
	}
	found.expectGone(t)
	if more, less := Difference(machine, rootFootprint(t)); len(more)+len(less) > 0 {
		t.Errorf("the machine's own network changed: %q came, %q went", more, less)
	}
}

func TestALabWhoseProgramWasKilledIsRemoved(t *testing.T) {
	moments := map[string]func(*testing.T, string, *bufio.Scanner){
		"while the API server starts": func(t *testing.T, name string, _ *bufio.Scanner) {
			waitForFile(t, filepath.Join(Directory(name), "apiserver", "etcd.log"))
		},
		"while Braid starts": func(t *testing.T, name string, _ *bufio.Scanner) {
			waitForFile(t, filepath.Join(Directory(name), "logs", "agent-node1.log"))
		},
		"when all is up": func(t *testing.T, _ string, lines *bufio.Scanner) { expectUp(t, lines) },
	}
	for moment, wait := range moments {
		t.Run(moment, func(t *testing.T) {
			name := labName("killed")
			command, lines := startChild(t, name, "wait")
			wait(t, name, lines)
			found := tracesOf(t, name)
			kill(t, command)
			waitForJanitor(t, name)
			found.expectGone(t)
		})
	}
}

// killJanitors fails where it finds none: one that lives on would remove the lab.
func killJanitors(t *testing.T, name string) {
	t.Helper()
	testutil.Retry(t, time.Minute, func() error {
		if len(janitors(name)) == 0 {
			return errors.New("the lab has no janitor")
		}
		return nil
	})
	for _, pid := range janitors(name) {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
}

func TestALabWhoseJanitorWasKilledTooIsRemovedByTheNext(t *testing.T) {
	name := labName("twice")
	command, lines := startChild(t, name, "wait")
	expectUp(t, lines)
	found := tracesOf(t, name)
	found.expectSome(t)
	killJanitors(t, name)
	kill(t, command)
	if len(tracesOf(t, name).processes) == 0 {
		t.Fatal("somebody removed the lab: this test tests nothing")
	}
	l, err := Up(t.Context(), small(name))
	if err != nil {
		t.Fatal(err)
	}
	found.expectGone(t)
	if err := l.Down(); err != nil {
		t.Fatal(err)
	}
}

func TestALabInUseIsNotTaken(t *testing.T) {
	name := labName("inuse")
	lock, err := acquire(t.Context(), name, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	waited := false
	if _, err := Up(ctx, Options{Name: name, Say: func(string) { waited = true }}); err == nil {
		t.Error("a lab in use was taken")
	}
	if !waited {
		t.Error("nobody was told that it waits")
	}
}

func kill(t *testing.T, command *exec.Cmd) {
	t.Helper()
	if err := command.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait()
}

func waitForFile(t *testing.T, file string) {
	t.Helper()
	testutil.Retry(t, time.Minute, func() error {
		_, err := os.Stat(file)
		return err
	})
}

// waitForJanitor waits until nobody holds the lab's name.
func waitForJanitor(t *testing.T, name string) {
	t.Helper()
	lock, err := acquire(t.Context(), name, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
}

func janitors(name string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		environment, err := os.ReadFile(file)
		if err != nil || !hasVariable(environment, []byte(roleVariable+"="+roleJanitor)) || !hasVariable(environment, []byte(inputVariable+"="+name)) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/environ", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// traces are what a lab has on the machine. Its BPF objects are known by the
// numbers that the kernel gives no second time.
type traces struct {
	name                  string
	processes             []int
	namespaces, mounts    []string
	identities            network.Identities
	programs, links, maps []uint64
}

func tracesOf(t *testing.T, name string) *traces {
	t.Helper()
	found := &traces{name: name, processes: processesOf(name)}
	var err error
	if found.namespaces, err = network.Namespaces(name); err != nil {
		t.Fatal(err)
	}
	if found.identities, err = network.IdentitiesOf(found.namespaces); err != nil {
		t.Fatal(err)
	}
	if found.mounts, err = mountsIn(Directory(name)); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range found.namespaces {
		found.addNamespace(t, namespace)
	}
	found.addPinned(t)
	return found
}

// processesOf finds marked ones and those of the API server.
func processesOf(name string) (pids []int) {
	pids = marked(name)
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, err := os.ReadFile(file)
		var pid int
		if err == nil && strings.Contains(string(line), Directory(name)) {
			if _, err := fmt.Sscanf(file, "/proc/%d/cmdline", &pid); err == nil && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func (f *traces) addNamespace(t *testing.T, namespace string) {
	t.Helper()
	ns, err := network.Open(namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if handle, err := ns.Handle(); err == nil {
			handle.Close()
		}
	}()
	err = ns.Do(func() error {
		handle, err := ns.Handle()
		if err != nil {
			return err
		}
		nics, err := handle.LinkList()
		for _, nic := range nics {
			f.addAttached(t, nic)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (f *traces) addAttached(t *testing.T, nic netlink.Link) {
	t.Helper()
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		result, err := link.QueryPrograms(link.QueryOptions{Target: nic.Attrs().Index, Attach: hook})
		if err != nil {
			t.Fatal(err)
		}
		for _, program := range result.Programs {
			f.programs = append(f.programs, uint64(program.ID))
			if id, ok := program.LinkID(); ok {
				f.links = append(f.links, uint64(id))
			}
		}
	}
}

func (f *traces) addPinned(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(Directory(f.name), "bpf"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return ignoreMissing(err)
		}
		pinned, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			return nil // not a map
		}
		defer pinned.Close()
		info, err := pinned.Info()
		if err != nil {
			return err
		}
		if id, ok := info.ID(); ok {
			f.maps = append(f.maps, uint64(id))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// expectSome makes sure that there is something to be gone later.
func (f *traces) expectSome(t *testing.T) {
	t.Helper()
	for kind, count := range map[string]int{
		"processes": len(f.processes), "namespaces": len(f.namespaces), "mounts": len(f.mounts),
		"programs": len(f.programs), "links": len(f.links), "pinned maps": len(f.maps),
	} {
		if count == 0 {
			t.Errorf("the lab has no %s: this test tests nothing", kind)
		}
	}
}

// expectGone waits a moment, because the kernel frees BPF objects and namespaces
// in its own time.
func (f *traces) expectGone(t *testing.T) {
	t.Helper()
	_, err := testutil.Until(10*time.Second, func() error {
		if left := f.left(t); len(left) > 0 {
			return errors.New(strings.Join(left, "\n"))
		}
		return nil
	})
	if err != nil {
		t.Errorf("left behind: %v", err)
	}
	if _, err := os.Stat(Directory(f.name)); f.replaced() == (err != nil) {
		t.Errorf("the lab's directory: %v", err)
	}
}

// replaced is true while another lab of the same name is up.
func (f *traces) replaced() bool {
	now, err := network.Namespaces(f.name)
	return err == nil && len(now) > 0
}

func (f *traces) left(t *testing.T) (left []string) {
	t.Helper()
	for _, pid := range f.processes {
		if unix.Kill(pid, 0) == nil {
			left = append(left, fmt.Sprintf("process %d", pid))
		}
	}
	for _, id := range f.programs {
		if program, err := ebpf.NewProgramFromID(ebpf.ProgramID(id)); err == nil {
			program.Close()
			left = append(left, fmt.Sprintf("program %d", id))
		}
	}
	for _, id := range f.maps {
		if m, err := ebpf.NewMapFromID(ebpf.MapID(id)); err == nil {
			m.Close()
			left = append(left, fmt.Sprintf("map %d", id))
		}
	}
	for _, id := range f.links {
		if l, err := link.NewFromID(link.ID(id)); err == nil {
			l.Close()
			left = append(left, fmt.Sprintf("link %d", id))
		}
	}
	return append(left, f.leftNamespaces(t)...)
}

// leftNamespaces looks at mounts and for threads inside.
func (f *traces) leftNamespaces(t *testing.T) (left []string) {
	t.Helper()
	for _, user := range f.identities.Users() {
		left = append(left, "network namespace of "+user)
	}
	if f.replaced() {
		return left
	}
	mounts, err := mountsIn(Directory(f.name))
	if err != nil {
		t.Fatal(err)
	}
	for _, mount := range mounts {
		left = append(left, "mount "+mount)
	}
	return left
}

// rootFootprint is what the lab must never touch.
func rootFootprint(t *testing.T) (lines []string) {
	t.Helper()
	handle, err := netlink.NewHandleAt(netns.None())
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	for _, part := range []func(*netlink.Handle) ([]string, error){links, routes} {
		found, err := part(handle)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, found...)
	}
	return lines
}
