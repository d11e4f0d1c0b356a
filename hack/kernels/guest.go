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
	"strconv"
	"strings"
	"time"

	"braid.dev/braid/hack/kernels/job"
)

// kernel is one that was fetched.
type kernel struct {
	// suite of Debian that it comes from.
	suite string
	// directory of vmlinuz and lib/modules.
	directory string
}

// machine says how guests are run.
type machine struct {
	// accelerator is "kvm" or "tcg".
	accelerator string
	// init is the program hack/kernels/guest.
	init string
	// work is a directory for what guests need and write.
	work string
}

const (
	bootTime   = 10 * time.Minute
	processors = 2
	memoryMiB  = 4096
)

var errNoBoot = errors.New("the guest did not boot")

// run boots the kernel, runs the job, and copies what the guest says about it to
// out. It returns the kernel's release.
func (m machine) run(ctx context.Context, k kernel, work job.Job, out io.Writer) (release string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	arguments, err := m.arguments(k, work)
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, "nice", append([]string{"-n", "5", "qemu-system-x86_64"}, arguments...)...)
	command.Stderr = os.Stderr
	command.WaitDelay = time.Second
	lines, err := command.StdoutPipe()
	if err != nil {
		return "", fmt.Errorf("starting QEMU: %w", err)
	}
	if err := command.Start(); err != nil {
		return "", fmt.Errorf("starting QEMU: %w", err)
	}
	boot := time.AfterFunc(bootTime, cancel)
	release, err = copyLines(lines, out, func() { boot.Stop() })
	err = errors.Join(err, command.Wait())
	if release == "" {
		return "", fmt.Errorf("%w; its console is in %s: %w", errNoBoot, m.console(k), err)
	}
	return release, err
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
	accelerator := m.accelerator
	if accelerator == "tcg" {
		accelerator = "tcg,thread=multi,tb-size=1024"
	}
	return []string{
		"-nodefaults", "-display", "none", "-no-reboot", "-machine", "q35", "-accel", accelerator, "-cpu", "max",
		"-smp", strconv.Itoa(processors), "-m", strconv.Itoa(memoryMiB),
		"-kernel", filepath.Join(k.directory, "vmlinuz"), "-initrd", initial,
		"-append", "console=ttyS0 panic=-1 oops=panic mitigations=off braid.job=" + path,
		"-serial", "file:" + m.console(k), "-serial", "stdio",
		"-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=host,mount_tag=" + job.HostTag,
	}, nil
}

// initial writes the file system that the kernel begins with.
func (m machine) initial(k kernel) (string, error) {
	var files archive
	for _, directory := range []string{"host", "memory", "modules", "proc"} {
		files.directory(directory)
	}
	init, err := os.ReadFile(m.init)
	if err != nil {
		return "", fmt.Errorf("reading the guest's first program: %w", err)
	}
	files.file("init", init)
	files.file("kernel", []byte(k.directory))
	if err := addModules(&files, k); err != nil {
		return "", err
	}
	files.end()
	path := filepath.Join(m.work, k.suite+".cpio")
	if err := os.WriteFile(path, files.Bytes(), 0o644); err != nil {
		return "", fmt.Errorf("writing what the kernel begins with: %w", err)
	}
	return path, nil
}

func addModules(files *archive, k kernel) error {
	directories, err := filepath.Glob(filepath.Join(k.directory, "lib/modules/*"))
	if err != nil || len(directories) != 1 {
		return fmt.Errorf("the kernel of %s has %d directories of modules", k.suite, len(directories))
	}
	modules, err := readModules(directories[0])
	if err != nil {
		return err
	}
	paths, err := modules.order(bootModules)
	if err != nil {
		return err
	}
	for i, path := range paths {
		content, err := modules.content(path)
		if err != nil {
			return err
		}
		files.file(fmt.Sprintf("modules/%02d-%s", i, moduleName(path)), content)
	}
	return nil
}

// copyLines copies what the guest says. It calls booted and keeps the release
// when the guest has booted.
func copyLines(lines io.Reader, out io.Writer, booted func()) (release string, err error) {
	return release, eachLine(lines, func(line string) error {
		if found, ok := strings.CutPrefix(line, job.Booted); ok {
			release = found
			booted()
		}
		_, err := fmt.Fprintln(out, line)
		return err
	})
}
