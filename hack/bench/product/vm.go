// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	// guestPairs are the VMs of seed 001's figure 8: as many on each of two hypervisors.
	guestPairs = 4
	// backgroundMbit is what others send meanwhile: theirs was 3 of 10 Gbit/s.
	backgroundMbit = rig.LinkMbit * 3 / 10
	// usedShare of a NIC that is used.
	usedShare = 0.15
)

// hypervisors are two nodes with VMs. Here these are network namespaces behind taps' stand-ins:
// real guests compete for the processors.
type hypervisors struct {
	*rig.Lab
	near, far []*network.Pod
	serving   errgroup.Group
	stop      context.CancelFunc
}

func newHypervisors(ctx context.Context) (*hypervisors, error) {
	l, err := rig.NewLab(ctx, network.Spec{Paths: rig.Paths[:3], LinkMbit: rig.LinkMbit})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	h := &hypervisors{Lab: l, stop: stop}
	if err := h.addGuests(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// Close ends the servers and brings the lab down.
func (h *hypervisors) Close() error {
	h.stop()
	return errors.Join(h.serving.Wait(), h.Lab.Close())
}

// addGuests adds the VMs, which take announcements, and a server in each far one.
func (h *hypervisors) addGuests(ctx context.Context) error {
	for i := range guestPairs {
		for place, of := range []*[]*network.Pod{&h.near, &h.far} {
			guest, err := h.Network.Nodes[place].AddGuest(fmt.Sprintf("vm-%d-%d", place+1, i+1))
			if err != nil {
				return fmt.Errorf("adding a guest: %w", err)
			}
			if _, err := guest.Run("ip", "mptcp", "limits", "set", "subflows", "8", "add_addr_accepted", "8"); err != nil {
				return err
			}
			*of = append(*of, guest)
		}
		listener, err := h.far[i].Listen(ctx, "tcp", net.JoinHostPort(h.far[i].IPv4, strconv.Itoa(lab.TrafficPort)))
		if err != nil {
			return fmt.Errorf("listening in a guest: %w", err)
		}
		h.serving.Go(func() error { return traffic.Serve(ctx, listener) })
	}
	var manifest strings.Builder
	for _, guest := range slices.Concat(h.near, h.far) {
		fmt.Fprintf(&manifest, "---\napiVersion: braid.dev/v1alpha1\nkind: MPTCPEndpoint\n"+
			"metadata: {name: %s, namespace: demo, labels: {app: vm}}\n"+
			"spec: {nodeName: %s, interface: {name: %s}, addresses: [%s]}\n", guest.PodName, guest.Node.NodeName(), guest.HostInterface, guest.IPv4)
	}
	return errors.Join(h.Apply(ctx, manifest.String()), h.Spread(ctx, ""))
}

// selectGuests has the VMs' nodes make their subflows, or takes that back.
func (h *hypervisors) selectGuests(ctx context.Context, selected bool) error {
	const policy = "apiVersion: braid.dev/v1alpha1\nkind: MPTCPPolicy\nmetadata: {name: vms, namespace: demo}\n" +
		"spec: {podSelector: {matchLabels: {app: vm}}, subflows: {manager: Host}}\n"
	if selected {
		return errors.Join(h.Apply(ctx, policy), h.Settled(ctx, 2+2*guestPairs))
	}
	return errors.Join(h.deletePolicy(ctx, "vms"), h.Settled(ctx, 2))
}

func (h *hypervisors) deletePolicy(ctx context.Context, name string) error {
	policy := &v1alpha1.MPTCPPolicy{}
	policy.Namespace, policy.Name = "demo", name
	if err := client.IgnoreNotFound(h.Client.Delete(ctx, policy)); err != nil {
		return fmt.Errorf("removing the policy: %w", err)
	}
	return nil
}

// measureVM tells what VMs get whose subflows the host makes, and seed 001's use case 2.
func measureVM(ctx context.Context, m *rig.Measurement, h *hypervisors) error {
	for range m.Trials {
		if err := h.selectGuests(ctx, false); err != nil {
			return err
		}
		single, err := h.transfer(ctx, 1, network.TCP, traffic.Up)
		if err != nil {
			return err
		}
		before, err := h.useCase(ctx)
		if err != nil {
			return err
		}
		if err := h.selectGuests(ctx, true); err != nil {
			return err
		}
		after, err := h.useCase(ctx)
		if err != nil {
			return err
		}
		for name, mbit := range before {
			m.Add("vm.uc2."+name+".mptcp_mbit", mbit)
			m.Add("vm.uc2."+name+".gain", after[name]/mbit)
		}
		if err := h.measureOne(ctx, m, single.Mbit); err != nil {
			return err
		}
		if err := h.measureProxy(ctx, m, single.Mbit); err != nil {
			return err
		}
	}
	return nil
}

// measureOne compares one connection of one VM with all links.
func (h *hypervisors) measureOne(ctx context.Context, m *rig.Measurement, single float64) error {
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		node := h.near[0].Node
		if direction == traffic.Down {
			node = h.far[0].Node
		}
		before, err := h.Network.NICCounters(node)
		if err != nil {
			return err
		}
		result, err := h.transfer(ctx, 1, network.MPTCP, direction)
		if err != nil {
			return err
		}
		after, err := h.Network.NICCounters(node)
		if err != nil {
			return err
		}
		name := "vm.host_manager." + string(direction)
		m.Add(name+".nics_used", usedNICs(before, after))
		m.Add(name+".ratio", result.Mbit/(single*float64(len(h.Network.Spec.Paths))))
		m.Add("vm.ratio", m.Last(name+".ratio"))
		m.Add("vm.joins", float64(result.Subflows-1))
	}
	return nil
}

// usedNICs counts those that carried their part.
func usedNICs(before, after map[string]network.Counters) (used float64) {
	all := 0.0
	for path := range after {
		all += float64(after[path].TxBytes - before[path].TxBytes)
	}
	for path := range after {
		if float64(after[path].TxBytes-before[path].TxBytes) > usedShare*all {
			used++
		}
	}
	return used
}

// useCase is the goodput of one pair of VMs and of all, by themselves and while pods that no
// policy selects send over the cluster network's NIC.
func (h *hypervisors) useCase(ctx context.Context) (map[string]float64, error) {
	mbit := map[string]float64{}
	for name, pairs := range map[string]int{"quiet": 1, "quiet_pairs": guestPairs} {
		result, err := h.transfer(ctx, pairs, network.MPTCP, traffic.Up)
		if err != nil {
			return nil, err
		}
		mbit[name] = result.Mbit
	}
	route := h.Route(4)
	route.Protocol = network.TCP
	background, err := route.Start(ctx, traffic.Options{Duration: time.Minute, OfferedMbit: backgroundMbit})
	if err != nil {
		return nil, err
	}
	result, err := h.transfer(ctx, 1, network.MPTCP, traffic.Up)
	if err = errors.Join(err, background.Stop()); err != nil {
		return nil, err
	}
	mbit["background"] = result.Mbit
	return mbit, nil
}

// transfer has so many VMs each send to, or receive from, its own far one at the same time.
// The goodput is that of all.
func (h *hypervisors) transfer(ctx context.Context, pairs int, protocol network.Protocol, direction traffic.Direction) (*traffic.Result, error) {
	var running errgroup.Group
	results := make([]*traffic.Result, pairs)
	for i := range results {
		route := rig.Route{From: h.near[i].Namespace, To: net.JoinHostPort(h.far[i].IPv4, strconv.Itoa(lab.TrafficPort)), Protocol: protocol}
		running.Go(func() (err error) {
			results[i], err = route.Transfer(ctx, traffic.Options{Direction: direction, Duration: 5 * time.Second, Warmup: 2 * time.Second, Verify: true})
			return err
		})
	}
	if err := running.Wait(); err != nil {
		return nil, err
	}
	sum := *results[0]
	for _, result := range results[1:] {
		sum.Mbit += result.Mbit
	}
	for _, result := range results {
		if result.Failed > 0 {
			return nil, fmt.Errorf("a connection broke: %s", strings.Join(result.Errors, "; "))
		}
	}
	return &sum, nil
}
