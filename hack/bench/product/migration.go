// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	// migratedSuite is the release of Debian whose kernel the machine boots.
	migratedSuite = "trixie"
	// migratedMbit is what a link has: without KVM the machine's processor carries little.
	migratedMbit = 20
	// migratedMemory is in MiB.
	migratedMemory = 128
	// migratedAt is how long after its beginning a connection's machine moves.
	migratedAt = 3 * time.Second
)

// migrated is a lab with a real virtual machine, which moves between its first and its last node.
type migrated struct {
	*rig.Lab
	machine *lab.Machine
}

func newMigrated(ctx context.Context) (*migrated, error) {
	if err := lab.FetchMachines(ctx, migratedSuite); err != nil {
		return nil, err
	}
	l, err := rig.NewLab(ctx, network.Spec{Nodes: 3, Paths: rig.Paths[:3], LinkMbit: migratedMbit})
	if err != nil {
		return nil, err
	}
	rig.Say("booting a virtual machine")
	m := &migrated{Lab: l}
	if m.machine, err = l.Boot(ctx, lab.MachineSpec{Name: "vm", Node: 1, Suite: migratedSuite, MemoryMiB: migratedMemory}); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	const policy = "apiVersion: braid.dev/v1alpha1\nkind: MPTCPPolicy\nmetadata: {name: vms, namespace: demo}\n" +
		"spec: {podSelector: {matchLabels: {app: vm}}, subflows: {manager: Host}}\n"
	if err := errors.Join(m.ApplyPaths(ctx), m.Apply(ctx, policy), m.register(ctx)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return m, nil
}

// register says where the machine is, and waits until its node has it.
func (m *migrated) register(ctx context.Context) error {
	err := m.Apply(ctx, fmt.Sprintf("apiVersion: braid.dev/v1alpha1\nkind: MPTCPEndpoint\n"+
		"metadata: {name: vm, namespace: demo, labels: {app: vm}}\n"+
		"spec: {nodeName: %s, interface: {name: %s}, addresses: [%s]}\n", m.machine.Node.NodeName(), m.machine.HostInterface, m.machine.IPv4))
	return errors.Join(err, m.Settled(ctx, 1))
}

// measureMigration tells how long the server of a machine's connection gets nothing while the
// machine moves to another node, and how long the hypervisor says that the machine stood still.
func measureMigration(ctx context.Context, m *rig.Measurement, l *migrated) error {
	for range m.Trials {
		if err := l.migrateOnce(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

func (m *migrated) migrateOnce(ctx context.Context, into *rig.Measurement) error {
	type outcome struct {
		said string
		err  error
	}
	ended := make(chan outcome, 1)
	began := time.Now()
	go func() {
		address := net.JoinHostPort(m.Receiver.IPv4, strconv.Itoa(lab.TrafficPort))
		said, err := m.machine.Traffic(ctx, "run", address, "--duration", "10s", "--verify", "--json")
		ended <- outcome{said, err}
	}()
	time.Sleep(time.Until(began.Add(migratedAt)))
	target := m.Network.Nodes[0]
	if m.machine.Node == target {
		target = m.Network.Nodes[2]
	}
	moved, err := m.Migrate(ctx, m.machine, target, func() error { return m.register(ctx) })
	sent := <-ended
	if err := errors.Join(err, sent.err); err != nil {
		return err
	}
	var result traffic.Result
	if err := json.Unmarshal([]byte(sent.said), &result); err != nil {
		return fmt.Errorf("reading the result of a transfer: %w", err)
	}
	if result.Failed > 0 || !result.Multipath {
		return fmt.Errorf("the machine's connection broke, or was not MPTCP: %v", result.Errors)
	}
	into.Add("vm.migration.gap_ms", result.LongestGapMs)
	into.Add("vm.migration.still_ms", float64(moved.Still.Milliseconds()))
	return nil
}
