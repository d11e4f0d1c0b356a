// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"braid.dev/braid/hack/kernels/initramfs"
	"braid.dev/braid/hack/kernels/job"
	"braid.dev/braid/internal/lab/network"
)

// kernel is one that was fetched.
type kernel struct {
	// suite of Debian that it comes from.
	suite string
	// directory of vmlinuz and lib/modules, and the kernel's release.
	directory, release string
}

// releaseIn is the release of the kernel in a directory.
func releaseIn(directory string) (string, error) {
	directories, err := filepath.Glob(filepath.Join(directory, "lib/modules/*"))
	if err != nil || len(directories) != 1 {
		return "", fmt.Errorf("the kernel in %s has %d directories of modules", directory, len(directories))
	}
	return filepath.Base(directories[0]), nil
}

// machine says how guests are run.
type machine struct {
	// accelerator is "kvm" or "tcg".
	accelerator string
	// init is the program hack/kernels/guest.
	init string
	// work is a directory for what guests need and write.
	work string
	// limit is how long a run may take.
	limit time.Duration
}

const (
	bootTime = 10 * time.Minute
	// Emulated processors wait for each other: two are slower than one.
	processors = 1
	memoryMiB  = 4096
)

// accelerations are QEMU's arguments. In software emulation the guest's clock goes by
// its instructions while it is busy, a nanosecond each: to its tests it is fast.
var accelerations = map[string][]string{
	"kvm": {"-accel", "kvm"},
	"tcg": {"-accel", "tcg,thread=single,tb-size=1024", "-icount", "shift=0"},
}

var errNoBoot = errors.New("the guest did not boot")

// run boots the kernel, runs the job, and copies what the guest says about it to
// out. It ends a guest that says nothing for longer than any test may take.
func (m machine) run(ctx context.Context, k kernel, work job.Job, out io.Writer) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	arguments, err := m.arguments(k, work)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "nice", append([]string{"-n", "19", "qemu-system-x86_64"}, arguments...)...)
	command.Stderr = os.Stderr
	command.WaitDelay = time.Second
	lines, err := command.StdoutPipe()
	if err != nil {
		return fmt.Errorf("starting QEMU: %w", err)
	}
	if err := command.Start(); err != nil {
		return fmt.Errorf("starting QEMU: %w", err)
	}
	watch := time.AfterFunc(bootTime, cancel)
	booted, err := copyLines(lines, out, func() { watch.Reset(bootTime + m.limit) })
	watch.Stop()
	err = errors.Join(err, command.Wait())
	if !booted {
		return fmt.Errorf("%w; its console is in %s: %w", errNoBoot, m.console(k), err)
	}
	return err
}

func (m machine) console(k kernel) string { return filepath.Join(m.work, k.suite+".console") }

// arguments of QEMU.
func (m machine) arguments(k kernel, work job.Job) ([]string, error) {
	initial, err := m.initial(k)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(m.work, k.suite+".job")
	content, err := json.Marshal(work)
	if err != nil {
		return nil, fmt.Errorf("writing the job: %w", err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return nil, fmt.Errorf("writing the job: %w", err)
	}
	return slices.Concat(accelerations[m.accelerator], spareNICs(), []string{
		"-nodefaults", "-display", "none", "-no-reboot", "-machine", "q35", "-cpu", "max",
		"-smp", strconv.Itoa(processors), "-m", strconv.Itoa(memoryMiB),
		"-kernel", filepath.Join(k.directory, "vmlinuz"), "-initrd", initial,
		"-append", "console=ttyS0 panic=-1 oops=panic mitigations=off braid.job=" + path,
		"-serial", "file:" + m.console(k), "-serial", "stdio",
		"-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=host,mount_tag=" + job.HostTag,
	}), nil
}

// spareNICs are QEMU's arguments for pairs of NICs, which tests take. What joins a pair passes
// no offloads on, so virtio_net has none that it would refuse programs for.
func spareNICs() (arguments []string) {
	pairs := [][2]string{
		{"virtio-net-pci,mac=" + network.SpareVirtio, "virtio-net-pci,mac=" + network.SpareVirtioPeer},
		{"e1000,mac=" + network.SpareE1000, "e1000,mac=" + network.SpareE1000Peer},
	}
	for hub, pair := range pairs {
		for end, nic := range pair {
			port := fmt.Sprintf("port%d%d", hub, end)
			arguments = append(arguments, "-netdev", fmt.Sprintf("hubport,hubid=%d,id=%s", hub, port), "-device", nic+",romfile=,netdev="+port)
		}
	}
	return arguments
}

// bootModules are those that reach the host's files; all others are loaded from there.
var bootModules = []string{"virtio_pci", "9pnet_virtio", "9p", "overlay"}

// initial writes the file system that the kernel begins with.
func (m machine) initial(k kernel) (string, error) {
	var files initramfs.Archive
	for _, directory := range []string{"host", "memory", "modules", "proc"} {
		files.Directory(directory)
	}
	init, err := os.ReadFile(m.init)
	if err != nil {
		return "", fmt.Errorf("reading the guest's first program: %w", err)
	}
	files.File("init", init)
	files.File("kernel", []byte(k.directory))
	if err := files.AddModules(filepath.Join(k.directory, "lib/modules", k.release), bootModules...); err != nil {
		return "", err
	}
	files.End()
	path := filepath.Join(m.work, k.suite+".cpio")
	if err := os.WriteFile(path, files.Bytes(), 0o644); err != nil {
		return "", fmt.Errorf("writing what the kernel begins with: %w", err)
	}
	return path, nil
}

// copyLines copies what the guest says, and tells whether it has booted. It calls
// alive with each line since.
func copyLines(lines io.Reader, out io.Writer, alive func()) (booted bool, err error) {
	return booted, eachLine(lines, func(line string) error {
		if booted = booted || strings.HasPrefix(line, job.Booted); booted {
			alive()
		}
		_, err := fmt.Fprintln(out, line)
		return err
	})
}
