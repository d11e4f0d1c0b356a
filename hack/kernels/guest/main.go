// SPDX-License-Identifier: Apache-2.0

// Guest is the first process of a guest that hack/kernels boots: it loads what
// reaches the host's files, makes them its root without being able to change
// them, runs the tests that it is told to, and switches the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"braid.dev/braid/hack/kernels/boot"
	"braid.dev/braid/hack/kernels/job"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "guest: switching off:", err)
	}
}

func run() error {
	if err := boot.LoadModules("/modules"); err != nil {
		return err
	}
	kernel, err := os.ReadFile("/kernel")
	if err != nil {
		return fmt.Errorf("reading where the kernel is: %w", err)
	}
	if err := enterHost(); err != nil {
		return err
	}
	if err := boot.MountAll(inside(string(kernel))); err != nil {
		return err
	}
	return runJob()
}

// enterHost makes the host's files the root; what is written stays in memory.
func enterHost() error {
	err := boot.MountAll([]boot.Mount{
		{Source: job.HostTag, Target: "/host", Kind: "9p", Flags: unix.MS_RDONLY, Options: "trans=virtio,version=9p2000.L,cache=loose,msize=524288"},
		{Source: "tmpfs", Target: "/memory", Kind: "tmpfs"},
	})
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll("/memory/upper", 0o755), os.MkdirAll("/memory/work", 0o755)); err != nil {
		return fmt.Errorf("making the directories of the overlay: %w", err)
	}
	err = boot.MountAll([]boot.Mount{{Source: "overlay", Target: "/root", Kind: "overlay", Options: "lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work"}})
	if err != nil {
		return err
	}
	// Threads of the kernel share this process's root: they find modprobe there.
	if err := unix.Chroot("/root"); err != nil {
		return fmt.Errorf("entering the host's files: %w", err)
	}
	return os.Chdir("/")
}

// inside are the file systems that tests need.
func inside(kernel string) []boot.Mount {
	return []boot.Mount{
		{Source: "proc", Target: "/proc", Kind: "proc"},
		{Source: "sys", Target: "/sys", Kind: "sysfs"},
		{Source: "dev", Target: "/dev", Kind: "devtmpfs"},
		{Source: "tmpfs", Target: "/run", Kind: "tmpfs"},
		{Source: "cgroup2", Target: "/sys/fs/cgroup", Kind: "cgroup2"},
		{Source: "bpf", Target: "/sys/fs/bpf", Kind: "bpf"},
		{Source: "tracefs", Target: "/sys/kernel/tracing", Kind: "tracefs"},
		{Source: filepath.Join(kernel, "lib/modules"), Target: "/lib/modules", Flags: unix.MS_BIND},
	}
}

// runJob runs what the host asked for. Its output goes to a serial line of its own.
func runJob() error {
	line, err := os.OpenFile("/dev/ttyS1", os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("opening the line to the host: %w", err)
	}
	defer line.Close()
	if err := boot.Raw(line); err != nil {
		return fmt.Errorf("setting up the line to the host: %w", err)
	}
	content, err := os.ReadFile(boot.Parameter("braid.job"))
	if err != nil {
		return fmt.Errorf("reading the job: %w", err)
	}
	var work job.Job
	if err := json.Unmarshal(content, &work); err != nil {
		return fmt.Errorf("reading the job: %w", err)
	}
	fmt.Fprintf(line, "%s%s\n", job.Booted, release())
	if err := prepare(work.Modules); err != nil {
		return err
	}
	runAll(work, line)
	return nil
}

// runAll does the runs one after the other.
func runAll(work job.Job, line io.Writer) {
	failed := work.Failed
	for _, run := range work.Runs {
		fmt.Fprintf(line, "\n%s%s\n", job.Began, run.Key())
		result := job.Refused
		if run.Needs == "" || !slices.Contains(failed, run.Needs) {
			result = runOne(run, line)
		}
		if result != job.OK {
			failed = append(failed, run.Name)
		}
		fmt.Fprintf(line, "\n%s%s\n", job.Ended, result)
	}
}

// prepare does what an admin or a service manager does on a node.
func prepare(modules []string) error {
	for _, module := range modules {
		if out, err := exec.Command("/sbin/modprobe", module).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "guest: %s: %v: %s\n", module, err, out)
		}
	}
	// As systemd sets them; tests open many files.
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 19, Max: 1 << 19})
}

// runOne returns how it ended.
func runOne(run job.Run, line io.Writer) string {
	if err := warm(run.Binary); err != nil {
		return err.Error()
	}
	command := exec.Command(run.Binary, run.Arguments...)
	command.Dir, command.Stdout, command.Stderr = run.Directory, line, line
	command.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "TERM=dumb"}
	if err := command.Run(); err != nil {
		return err.Error()
	}
	return job.OK
}

// warm reads a file into memory, so that no test waits for the host.
func warm(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(io.Discard, file)
	return err
}

func release() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}
