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
	"strings"

	"golang.org/x/sys/unix"

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
	if err := loadModules("/modules"); err != nil {
		return err
	}
	kernel, err := os.ReadFile("/kernel")
	if err != nil {
		return fmt.Errorf("reading where the kernel is: %w", err)
	}
	if err := enterHost(); err != nil {
		return err
	}
	if err := mountAll(inside(string(kernel))); err != nil {
		return err
	}
	return runJob()
}

// loadModules loads the modules of a directory in the order of their names.
func loadModules(directory string) error {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return fmt.Errorf("listing modules: %w", err)
	}
	for _, entry := range entries {
		if err := loadModule(filepath.Join(directory, entry.Name())); err != nil {
			return fmt.Errorf("loading %s: %w", entry.Name(), err)
		}
	}
	return nil
}

func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.FinitModule(int(file.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// mount is one file system.
type mount struct {
	source, target, kind string
	flags                uintptr
	options              string
}

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return fmt.Errorf("making %s: %w", m.target, err)
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	return nil
}

// enterHost makes the host's files the root; what is written stays in memory.
func enterHost() error {
	err := mountAll([]mount{
		{job.HostTag, "/host", "9p", unix.MS_RDONLY, "trans=virtio,version=9p2000.L,cache=loose,msize=524288"},
		{"tmpfs", "/memory", "tmpfs", 0, ""},
	})
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll("/memory/upper", 0o755), os.MkdirAll("/memory/work", 0o755)); err != nil {
		return fmt.Errorf("making the directories of the overlay: %w", err)
	}
	err = mountAll([]mount{{"overlay", "/root", "overlay", 0, "lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work"}})
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
func inside(kernel string) []mount {
	return []mount{
		{"proc", "/proc", "proc", 0, ""},
		{"sys", "/sys", "sysfs", 0, ""},
		{"dev", "/dev", "devtmpfs", 0, ""},
		{"tmpfs", "/run", "tmpfs", 0, ""},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""},
		{"bpf", "/sys/fs/bpf", "bpf", 0, ""},
		{"tracefs", "/sys/kernel/tracing", "tracefs", 0, ""},
		{filepath.Join(kernel, "lib/modules"), "/lib/modules", "", unix.MS_BIND, ""},
	}
}

// runJob runs what the host asked for. Its output goes to a serial line of its own.
func runJob() error {
	line, err := os.OpenFile("/dev/ttyS1", os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("opening the line to the host: %w", err)
	}
	defer line.Close()
	if err := raw(line); err != nil {
		return fmt.Errorf("setting up the line to the host: %w", err)
	}
	content, err := os.ReadFile(parameter("braid.job"))
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

// raw has the line pass on what is written as it is.
func raw(line *os.File) error {
	settings, err := unix.IoctlGetTermios(int(line.Fd()), unix.TCGETS)
	if err != nil {
		return err
	}
	settings.Oflag &^= unix.OPOST
	return unix.IoctlSetTermios(int(line.Fd()), unix.TCSETS, settings)
}

// parameter is one of the kernel's command line.
func parameter(name string) string {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return ""
	}
	for _, field := range strings.Fields(string(line)) {
		if value, ok := strings.CutPrefix(field, name+"="); ok {
			return value
		}
	}
	return ""
}

func release() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}
