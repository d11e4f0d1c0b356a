// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Reboot takes a node with a kubelet down, with all that runs on it, and brings it
// up again: its network namespace, its mounts and its BPF file system are new; what
// is on a disk of real nodes, such as images, stays. It returns when kubelet runs;
// pods come later.
func (l *Lab) Reboot(ctx context.Context, name string) error {
	for _, k := range l.nodes {
		if k.name() == name {
			return k.reboot(ctx)
		}
	}
	return fmt.Errorf("there is no node %s with a kubelet", name)
}

func (k *kubeNode) reboot(ctx context.Context) error {
	// Without its processes nothing starts pods anew, which the cgroups name.
	if err := errors.Join(k.node.Kill(), killGroups(k.cgroup()), k.lab.Network.Renew(k.node)); err != nil {
		return fmt.Errorf("taking %s down: %w", k.name(), err)
	}
	for _, volatile := range []string{"run-braid", "run-cilium", "netns", "containerd/state"} {
		if err := os.RemoveAll(k.path(volatile)); err != nil {
			return fmt.Errorf("emptying %s of %s: %w", volatile, k.name(), err)
		}
	}
	if err := k.lab.prepareNode(k.node); err != nil {
		return err
	}
	if err := k.lab.forward(ctx, "forwarder-"+k.name(), forwarding{}, k.node); err != nil {
		return err
	}
	return k.start(ctx, nil)
}

// KillContainer kills what runs in a container of a node with a kubelet, by the
// runtime's identifier.
func (l *Lab) KillContainer(ctx context.Context, name, id string) error {
	for _, k := range l.nodes {
		if k.name() != name {
			continue
		}
		if out, err := k.ctr(ctx, "task", "kill", "--signal", "SIGKILL", id).CombinedOutput(); err != nil {
			return fmt.Errorf("killing container %s of %s: %w: %s", id, name, err, out)
		}
		return nil
	}
	return fmt.Errorf("there is no node %s with a kubelet", name)
}

// InsideNode is a command line that runs a command on a node with a kubelet: in its
// network and with its files.
func (l *Lab) InsideNode(name string, command ...string) ([]string, error) {
	for _, k := range l.nodes {
		if k.name() == name {
			return append(k.enter(), command...), nil
		}
	}
	return nil, fmt.Errorf("there is no node %s with a kubelet", name)
}

// killGroups kills what runs in a group of each tree, and waits until it is gone.
func killGroups(group string) error {
	trees, _ := cgroupTrees()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		busy := false
		for _, tree := range trees {
			groups, err := groupsIn(filepath.Join(tree, group))
			if err != nil {
				return fmt.Errorf("listing the groups of %s: %w", group, err)
			}
			for _, one := range groups {
				busy = killGroup(one) || busy
			}
		}
		if !busy {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes in %s do not end", group)
		}
	}
}
