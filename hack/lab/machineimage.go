// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// MachineImage is the name of the image of containers that hold a virtual machine.
const MachineImage = "braid.dev/machine:1"

// BuildMachineImage makes the image of a container that runs a virtual machine, with the kernel
// of a suite of Debian, and returns the archive.
func BuildMachineImage(ctx context.Context, suite string) (archive string, err error) {
	repository, err := Repository()
	if err != nil {
		return "", err
	}
	kernel, err := fetchKernel(ctx, suite)
	if err != nil {
		return "", err
	}
	cached, err := runBuildScript(ctx, "cluster/machine.sh")
	if err != nil {
		return "", fmt.Errorf("getting QEMU for containers: %w", err)
	}
	work, err := os.MkdirTemp("", "braid-machine")
	if err != nil {
		return "", fmt.Errorf("making a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	root := filepath.Join(work, "root")
	if err := os.CopyFS(root, os.DirFS(strings.TrimSpace(cached))); err != nil {
		return "", fmt.Errorf("copying QEMU: %w", err)
	}
	if err := addMachine(ctx, repository, kernel, work, root); err != nil {
		return "", err
	}
	archive = filepath.Join(repository, "_out/images/machine.tar")
	_, err = runIn(ctx, repository, "go", "-C", "hack/image", "run", ".", "--root", root, "--user", "0:0", "--name", MachineImage, "--output", archive)
	return archive, err
}

// addMachine adds the kernel, what it begins with, and the program of the container.
func addMachine(ctx context.Context, repository, kernel, work, root string) error {
	if err := os.Mkdir(filepath.Join(root, "boot"), 0o755); err != nil {
		return fmt.Errorf("making a directory: %w", err)
	}
	initial := filepath.Join(work, "initrd")
	if _, err := writeMachineFiles(ctx, repository, kernel, initial, ""); err != nil {
		return err
	}
	return errors.Join(
		copyFile(initial, filepath.Join(root, "boot/initrd")),
		copyFile(filepath.Join(kernel, "vmlinuz"), filepath.Join(root, "boot/vmlinuz")),
		buildStatic(ctx, repository, "./hack/lab/cmd/machine", filepath.Join(root, "machine")),
	)
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
