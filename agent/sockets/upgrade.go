// SPDX-License-Identifier: Apache-2.0

// Package sockets makes the TCP sockets of pods MPTCP sockets, without a change
// to their images.
package sockets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/bpf/sockets"
)

// ErrUnsupported means that this kernel cannot upgrade sockets.
var ErrUnsupported = errors.New("this kernel cannot upgrade sockets")

// Upgrade is the program on the kernel's update_socket_protocol. It is pinned:
// it goes on without the agent, and the next agent takes it over.
type Upgrade struct {
	objects sockets.UpgradeObjects
}

// Names of the pins in the directory.
const (
	linkPin = "upgrade_link"
	mapPin  = "upgraded_namespaces"
)

// Open attaches the program, or takes over the one pinned in the directory. The
// error is ErrUnsupported where the kernel has no such hook (before 6.7) or
// refuses to modify return values.
func Open(directory string) (*Upgrade, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of pins: %w", err)
	}
	u := &Upgrade{}
	if err := u.open(directory); err != nil {
		return nil, errors.Join(explain(err), u.objects.Close(), removeUnused(directory))
	}
	return u, nil
}

// removeUnused removes the map of a program that could not be attached, unless an
// earlier agent's program uses it.
func removeUnused(directory string) error {
	if _, err := os.Stat(filepath.Join(directory, linkPin)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return Remove(directory)
}

func (u *Upgrade) open(directory string) error {
	spec, err := sockets.LoadUpgrade()
	if err != nil {
		return fmt.Errorf("reading the program: %w", err)
	}
	spec.Maps[mapPin].Pinning = ebpf.PinByName
	options := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: directory}}
	err = spec.LoadAndAssign(&u.objects, options)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		// Of another version, whose program goes on with it until ours is attached.
		if err := os.Remove(filepath.Join(directory, mapPin)); err != nil {
			return fmt.Errorf("forgetting the map of another version: %w", err)
		}
		err = spec.LoadAndAssign(&u.objects, options)
	}
	if err != nil {
		return fmt.Errorf("loading the program: %w", err)
	}
	return u.attach(filepath.Join(directory, linkPin))
}

// attach replaces an earlier agent's program. Links of tracing programs cannot be
// updated in place, so the new one is attached before the old one goes.
func (u *Upgrade) attach(pin string) error {
	attached, err := link.AttachTracing(link.TracingOptions{Program: u.objects.Upgrade})
	if err != nil {
		return fmt.Errorf("attaching the program: %w", err)
	}
	defer attached.Close()
	if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the link of an earlier agent: %w", err)
	}
	if err := attached.Pin(pin); err != nil {
		return fmt.Errorf("pinning the link: %w", err)
	}
	return nil
}

// explain tells a kernel that cannot from one that will not.
func explain(err error) error {
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: it has no hook update_socket_protocol, which Linux 6.7 brought: %w", ErrUnsupported, err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: it refuses programs that modify return values (fmod_ret): %w", ErrUnsupported, err)
	}
	return fmt.Errorf("attaching to update_socket_protocol: %w", err)
}

// Enable upgrades the sockets that tasks of this network namespace open from now
// on. The namespace is named by its inode number.
func (u *Upgrade) Enable(inode uint64) error {
	if err := u.objects.UpgradedNamespaces.Put(uint32(inode), uint8(1)); err != nil {
		return fmt.Errorf("enabling the socket upgrade for network namespace %d: %w", inode, err)
	}
	return nil
}

// Disable ends it; sockets that are open stay what they are.
func (u *Upgrade) Disable(inode uint64) error {
	err := u.objects.UpgradedNamespaces.Delete(uint32(inode))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("disabling the socket upgrade for network namespace %d: %w", inode, err)
	}
	return nil
}

// Enabled lists the namespaces whose sockets are upgraded, in no order.
func (u *Upgrade) Enabled() (inodes []uint64, err error) {
	numbers, err := entries.Keys[uint32](u.objects.UpgradedNamespaces)
	if err != nil {
		return nil, fmt.Errorf("listing the network namespaces with socket upgrade: %w", err)
	}
	for _, inode := range numbers {
		inodes = append(inodes, uint64(inode))
	}
	return inodes, nil
}

// Close lets go of the program; it goes on.
func (u *Upgrade) Close() error { return u.objects.Close() }

// Remove detaches whatever an agent left in the directory. From then on no socket
// is upgraded, though the kernel may take a moment to let go of the program.
func Remove(directory string) error {
	failed := disableAll(directory)
	for _, pin := range []string{linkPin, mapPin} {
		if err := os.Remove(filepath.Join(directory, pin)); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, fmt.Errorf("removing the socket upgrade: %w", err))
		}
	}
	return failed
}

// disableAll disables the upgrade for all namespaces.
func disableAll(directory string) error {
	namespaces, err := ebpf.LoadPinnedMap(filepath.Join(directory, mapPin), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the map of an earlier agent: %w", err)
	}
	upgrade := &Upgrade{objects: sockets.UpgradeObjects{UpgradeMaps: sockets.UpgradeMaps{UpgradedNamespaces: namespaces}}}
	inodes, err := upgrade.Enabled()
	for _, inode := range inodes {
		err = errors.Join(err, upgrade.Disable(inode))
	}
	return errors.Join(err, namespaces.Close())
}
