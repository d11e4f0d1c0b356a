// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"braid.dev/braid/hack/kernels/initramfs"
	"braid.dev/braid/hack/lab/guestline"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// MachineSpec is a virtual machine to be booted.
type MachineSpec struct {
	Name string
	// Node is the number of its node, from 1.
	Node int
	// Suite of Debian whose kernel it boots.
	Suite string
	// Serves says that it runs a server for traffic on TrafficPort.
	Serves bool
	// MemoryMiB is what it has; 0 means 512.
	MemoryMiB int
	// GuestAgent has QEMU's guest agent run in it, with its socket at Machine.AgentSocket, and
	// leaves the limits of MPTCP as its kernel has them.
	GuestAgent bool
	// Libvirt has a libvirt of its own run it, as in a pod of KubeVirt, which holds the channel
	// of its guest agent; the daemon's socket is at Machine.AgentSocket.
	Libvirt bool
}

// Machine is a virtual machine that is up: the kernel of a Debian release, with the traffic
// generator as all that runs there.
type Machine struct {
	*network.Pod
	// Kernel is its release.
	Kernel string

	spec      MachineSpec
	process   *Process
	arguments []string // of the hypervisor, but for those of its place
	monitor   *monitor
	mu        sync.Mutex
	line      net.Conn
	answers   chan said
}

// said is a line of the machine's, or why none comes.
type said struct {
	line []byte
	err  error
}

// machineMemory is in MiB, where nothing else is asked for.
const machineMemory = 512

// machineModules are those of the machine's NIC, and of what the traffic generator asks of its
// sockets.
var machineModules = []string{"virtio_pci", "virtio_net", "inet_diag", "tcp_diag", "mptcp_diag"}

// FetchMachines has QEMU installed and the kernel of a suite in the cache; the first time that
// takes minutes, and it says how far it is.
func FetchMachines(ctx context.Context, suite string) error {
	if _, err := runBuildScript(ctx, "kernels/tools.sh"); err != nil {
		return fmt.Errorf("getting QEMU: %w", err)
	}
	_, err := fetchKernel(ctx, suite)
	return err
}

func fetchKernel(ctx context.Context, suite string) (directory string, err error) {
	out, err := runBuildScript(ctx, "kernels/fetch.sh", suite)
	if err != nil {
		return "", fmt.Errorf("getting the kernel of %s: %w", suite, err)
	}
	return strings.TrimSpace(out), nil
}

// acceleration is how a machine's processor is run, and how long it may take to boot then.
type acceleration struct {
	arguments []string
	patience  time.Duration
}

// accelerations in the order in which they are tried: KVM does not work in each virtual
// machine that has its device.
var accelerations = []acceleration{
	{[]string{"-accel", "kvm"}, 15 * time.Second},
	{[]string{"-accel", "tcg,thread=single,tb-size=256"}, 4 * time.Minute},
}

// Boot boots a machine, with KVM where that works.
func (l *Lab) Boot(ctx context.Context, spec MachineSpec) (*Machine, error) {
	kernel, err := fetchKernel(ctx, spec.Suite)
	if err != nil {
		return nil, err
	}
	initial, release, err := l.machineFiles(ctx, kernel, spec)
	if err != nil {
		return nil, err
	}
	place, err := l.Network.Nodes[spec.Node-1].AddMachine(spec.Name)
	if err != nil {
		return nil, err
	}
	m := &Machine{Pod: place, Kernel: release, spec: spec}
	failed := fmt.Errorf("machine %s does not boot; its console is in %s", spec.Name, l.machinePath(place, "console"))
	how := accelerations
	if spec.Libvirt {
		how = accelerations[len(accelerations)-1:] // its XML says so
	}
	for _, how := range how {
		m.arguments = append(slices.Clone(how.arguments), machineArguments(place, spec, kernel, initial)...)
		if err = m.boot(ctx, l, how); err == nil {
			return m, m.serve(ctx, spec)
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

// machineFiles writes what machines of a kernel begin with, and returns the kernel's release.
func (l *Lab) machineFiles(ctx context.Context, kernel string, spec MachineSpec) (path, release string, err error) {
	path = l.path("machine.cpio")
	agent := ""
	if spec.GuestAgent {
		if agent, err = runBuildScript(ctx, "lab/agent.sh", spec.Suite); err != nil {
			return "", "", fmt.Errorf("getting a guest agent: %w", err)
		}
		if err := os.MkdirAll(l.GuestAgents(), 0o700); err != nil {
			return "", "", fmt.Errorf("making a directory for guest agents' sockets: %w", err)
		}
	}
	release, err = writeMachineFiles(ctx, l.repository, kernel, path, strings.TrimSpace(agent))
	return path, release, err
}

// writeMachineFiles writes to a path what machines of a kernel begin with, with the files of a
// directory beside it; empty for none.
func writeMachineFiles(ctx context.Context, repository, kernel, path, beside string) (release string, err error) {
	modules, err := filepath.Glob(filepath.Join(kernel, "lib/modules/*"))
	if err != nil || len(modules) != 1 {
		return "", fmt.Errorf("the kernel in %s has %d directories of modules", kernel, len(modules))
	}
	var files initramfs.Archive
	for _, directory := range []string{"dev", "modules", "proc", "run", "sys"} {
		files.Directory(directory)
	}
	for name, source := range map[string]string{"init": "./hack/lab/cmd/guest", guestline.Traffic[1:]: "./hack/lab/cmd/traffic"} {
		program := path + "." + name
		if err := buildStatic(ctx, repository, source, program); err != nil {
			return "", err
		}
		content, err := os.ReadFile(program)
		if err != nil {
			return "", fmt.Errorf("reading %s: %w", source, err)
		}
		files.File(name, content)
	}
	if err := errors.Join(addTree(&files, beside), files.AddModules(modules[0], machineModules...)); err != nil {
		return "", err
	}
	files.End()
	if err := os.WriteFile(path, files.Bytes(), 0o600); err != nil {
		return "", fmt.Errorf("writing what machines begin with: %w", err)
	}
	return filepath.Base(modules[0]), nil
}

// addTree adds the directories and files of a directory, unless its name is empty.
func addTree(files *initramfs.Archive, root string) error {
	if root == "" {
		return nil
	}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name, failed := filepath.Rel(root, path)
		if err := errors.Join(err, failed); err != nil || name == "." {
			return err
		}
		if entry.IsDir() {
			files.Directory(name)
			return nil
		}
		content, err := os.ReadFile(path)
		files.File(name, content)
		return err
	})
	if err != nil {
		return fmt.Errorf("adding the files of %s: %w", root, err)
	}
	return nil
}

// buildStatic builds a program that needs no other file.
func buildStatic(ctx context.Context, repository, source, program string) error {
	command := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", program, source)
	command.Dir, command.Env = repository, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w: %s", source, err, out)
	}
	return nil
}

// machineArguments are those of the hypervisor wherever it runs.
func machineArguments(place *network.Pod, spec MachineSpec, kernel, initial string) []string {
	parameters := []string{
		"console=ttyS0", "panic=-1", "mitigations=off", "quiet", "net.ifnames=0",
		guestline.Address + "=" + place.IPv4, guestline.Gateway + "=" + network.Gateway(4), guestline.Segment + "=" + strconv.Itoa(network.MachineSegment),
	}
	return []string{
		"-nodefaults", "-display", "none", "-no-reboot", "-machine", "q35", "-cpu", "max", "-smp", "1",
		"-m", strconv.Itoa(cmp.Or(spec.MemoryMiB, machineMemory)),
		"-kernel", filepath.Join(kernel, "vmlinuz"), "-initrd", initial, "-append", strings.Join(parameters, " "),
		"-netdev", "tap,id=nic,ifname=" + network.MachineTap + ",script=no,downscript=no",
		"-device", "virtio-net-pci,netdev=nic,addr=0x10,mac=" + machineAddress(place),
	}
}

// placed are the arguments of the hypervisor at a place, whose files have its namespace's name.
func (l *Lab) placed(m *Machine, place *network.Pod) []string {
	socket := func(kind string) string { return "unix:" + l.machinePath(place, kind) + ",server=on,wait=off" }
	arguments := slices.Concat(m.arguments, []string{
		"-serial", "file:" + l.machinePath(place, "console"), "-serial", socket("line"), "-qmp", socket("qmp"),
	})
	if m.spec.GuestAgent && !m.spec.Libvirt {
		arguments = append(arguments, "-device", "virtio-serial", "-chardev", "socket,id=agent,path="+filepath.Join(l.GuestAgents(), agentSocket(place))+",server=on,wait=off",
			"-device", "virtserialport,chardev=agent,name="+guestline.AgentPort)
	}
	return arguments
}

// GuestAgents is the directory below which machines have the sockets of their agents.
func (l *Lab) GuestAgents() string { return l.path("agents") }

// PodsDirectory is what kubelet's directory of pods would be.
func (l *Lab) PodsDirectory() string { return l.path("pods") }

// HasLibvirt says whether a libvirt of its own runs the machine.
func (m *Machine) HasLibvirt() bool { return m.spec.Libvirt }

// AgentSocket is that of the machine's, or of its libvirt, below it.
func (m *Machine) AgentSocket() string {
	if m.spec.Libvirt {
		return filepath.Join(m.spec.Name+".libvirt", "libvirt-sock")
	}
	return agentSocket(m.Pod)
}

func agentSocket(place *network.Pod) string { return place.PodName + "." + place.Node.NodeName() }

func (l *Lab) machinePath(place *network.Pod, kind string) string {
	return l.path(place.Namespace.Name + "." + kind)
}

// machineAddress is the MAC address of a machine: one for each IPv4 address.
func machineAddress(p *network.Pod) string {
	ip := net.ParseIP(p.IPv4).To4()
	return net.HardwareAddr{0x52, 0x54, ip[0], ip[1], ip[2], ip[3]}.String()
}

// boot starts the hypervisor and waits until the machine answers.
func (m *Machine) boot(ctx context.Context, l *Lab, how acceleration) (err error) {
	ctx, cancel := context.WithTimeout(ctx, how.patience)
	defer cancel()
	if m.process, err = l.hypervise(ctx, m); err != nil {
		return err
	}
	m.answers = make(chan said, 1)
	if err = m.connect(ctx, l, m.Pod); err == nil {
		_, err = m.answer(ctx)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("booting with %s: %w", how.arguments[1], err), m.process.ended(), m.process.Stop(os.Kill))
	}
	l.pods = append(l.pods, m.process)
	return nil
}

// hypervise starts what the machine runs in.
func (l *Lab) hypervise(ctx context.Context, m *Machine) (*Process, error) {
	if m.spec.Libvirt {
		return l.startByLibvirt(ctx, m)
	}
	return l.start("machine-"+m.PodName, m.Command(context.Background(), "qemu-system-x86_64", l.placed(m, m.Pod)...))
}

// connect opens the lines to the machine and to its hypervisor at a place.
func (m *Machine) connect(ctx context.Context, l *Lab, place *network.Pod) error {
	line, err := dialUnix(ctx, l.machinePath(place, "line"))
	if err != nil {
		return fmt.Errorf("opening the line to machine %s: %w", m.PodName, err)
	}
	m.mu.Lock()
	m.line = line
	m.mu.Unlock()
	go m.listen(line)
	if m.monitor, err = dialMonitor(ctx, l.machinePath(place, "qmp")); err != nil {
		return fmt.Errorf("asking the hypervisor of machine %s: %w", m.PodName, err)
	}
	return nil
}

// listen hands on what the machine says, until the line ends. That it ends is an error unless
// the machine has another one.
func (m *Machine) listen(line net.Conn) {
	reader := bufio.NewReader(line)
	for {
		text, err := reader.ReadBytes('\n')
		if err == nil {
			m.answers <- said{line: text}
			continue
		}
		m.mu.Lock()
		current := m.line == line
		m.mu.Unlock()
		if current {
			m.answers <- said{err: err}
		}
		return
	}
}

// dialUnix connects to a socket as soon as somebody listens there.
func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	for {
		connection, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			return connection, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// serve starts the server of a machine that is to have one.
func (m *Machine) serve(ctx context.Context, spec MachineSpec) error {
	if !spec.Serves {
		return nil
	}
	_, err := m.order(ctx, guestline.Order{Serves: true, Arguments: []string{"serve", "--listen", ":" + strconv.Itoa(TrafficPort)}})
	return err
}

// Traffic runs the traffic generator in the machine, and returns what it printed. Its times are
// by the host's clock.
func (m *Machine) Traffic(ctx context.Context, arguments ...string) (string, error) {
	return m.order(ctx, guestline.Order{Arguments: arguments})
}

func (m *Machine) order(ctx context.Context, order guestline.Order) (string, error) {
	order.Now = traffic.Now()
	line, err := json.Marshal(order)
	if err != nil {
		return "", fmt.Errorf("writing an order for machine %s: %w", m.PodName, err)
	}
	m.mu.Lock()
	to := m.line
	m.mu.Unlock()
	if _, err := to.Write(append(line, '\n')); err != nil {
		return "", fmt.Errorf("asking machine %s: %w", m.PodName, err)
	}
	return m.answer(ctx)
}

// answer waits for what the machine says.
func (m *Machine) answer(ctx context.Context) (string, error) {
	var is said
	select {
	case <-ctx.Done():
		is.err = context.Cause(ctx)
	case is = <-m.answers:
	}
	if is.err != nil {
		return "", fmt.Errorf("waiting for machine %s: %w", m.PodName, is.err)
	}
	var answer guestline.Answer
	if err := json.Unmarshal(is.line, &answer); err != nil {
		return "", fmt.Errorf("reading what machine %s says: %w: %q", m.PodName, err, is.line)
	}
	if answer.Error != "" {
		return answer.Output, fmt.Errorf("machine %s: %s", m.PodName, answer.Error)
	}
	return answer.Output, nil
}
