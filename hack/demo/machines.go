// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
)

// ofMachines has slow links: where there is no KVM, QEMU's emulated processors carry little.
var ofMachines = kind{linkMbit: 20, manifests: "hack/demo/manifests/1-paths.yaml,hack/demo/manifests-vm", ends: "virtual machines", enough: 2.5, result: "demo-vm.json"}

// bootMachines boots both machines and registers them, as an admin would.
func (d *demo) bootMachines(ctx context.Context) error {
	d.screen.title("Two virtual machines with the kernel of Debian " + d.kind.suite)
	specs := []lab.MachineSpec{{Name: "client", Node: 1, Suite: d.kind.suite}, {Name: "server", Node: 2, Suite: d.kind.suite, Serves: true}}
	machines := make([]*lab.Machine, len(specs))
	booting, ctxOfBoot := errgroup.WithContext(ctx)
	for i, spec := range specs {
		booting.Go(func() (err error) {
			done := d.screen.step(fmt.Sprintf("Machine %s on node%d", spec.Name, spec.Node))
			machines[i], err = d.Boot(ctxOfBoot, spec)
			done(err)
			return err
		})
	}
	if err := booting.Wait(); err != nil {
		return err
	}
	d.result.MachineKernel = machines[0].Kernel
	d.screen.say("Linux %s, unchanged; the one thing that a tenant sets in it: ip mptcp limits set subflows 8 add_addr_accepted 8", machines[0].Kernel)
	for _, machine := range machines {
		if err := d.registerMachine(ctx, machine); err != nil {
			return err
		}
	}
	d.send, d.place = machines[0].Traffic, "(in the machine) traffic "
	return nil
}

// registerMachine tells the API server of a machine, which says where its address is.
func (d *demo) registerMachine(ctx context.Context, machine *lab.Machine) error {
	if err := d.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); client.IgnoreAlreadyExists(err) != nil {
		return fmt.Errorf("making the namespace %s: %w", namespace, err)
	}
	endpoint := &v1alpha1.MPTCPEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: machine.PodName, Labels: map[string]string{"app": machine.PodName}},
		Spec: v1alpha1.MPTCPEndpointSpec{
			NodeName:  machine.Node.NodeName(),
			Interface: v1alpha1.EndpointInterface{Name: machine.HostInterface},
			Addresses: []v1alpha1.EndpointAddress{v1alpha1.EndpointAddress(machine.IPv4)},
		},
	}
	if err := d.Client.Create(ctx, endpoint); err != nil {
		return fmt.Errorf("registering machine %s: %w", machine.PodName, err)
	}
	return nil
}
