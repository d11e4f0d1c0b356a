// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// clsact attaches by filters of the clsact qdisc, on kernels before 6.6. The
// kernel keeps filters without any pin; they are told apart by name.
type clsact struct{ hooks []Hook }

const (
	filterPrefix = "braid_"
	// FilterPriority is that of filters whose hooks give none.
	FilterPriority uint16 = 2845
)

func parent(hook Hook) uint32 {
	if hook.Type == ebpf.AttachTCXEgress {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

// ClsactQdisc equals `tc qdisc add dev NIC clsact`.
func ClsactQdisc(index int) netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
}

// holds: filters are asked for each time.
func (clsact) holds(Seen, int, Hook, *ebpf.Program) bool { return false }

func (c clsact) attach(index int, hook Hook, program *ebpf.Program) error {
	if err := netlink.QdiscAdd(ClsactQdisc(index)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("adding the clsact qdisc to interface %d: %w", index, err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index,
			Parent:    parent(hook),
			Handle:    hook.Handle,
			Protocol:  unix.ETH_P_ALL,
			Priority:  cmp.Or(hook.Priority, FilterPriority),
		},
		Fd:           program.FD(),
		Name:         filterPrefix + hook.Name,
		DirectAction: true,
	}
	if err := netlink.FilterReplace(filter); err != nil {
		return fmt.Errorf("attaching %s to interface %d: %w", hook.Name, index, err)
	}
	return nil
}

// Filters are all filters at a hook of the interface, also those of others.
func Filters(index int, hook Hook) ([]netlink.Filter, error) {
	device, err := netlink.LinkByIndex(index)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up interface %d: %w", index, err)
	}
	filters, err := whole(func() ([]netlink.Filter, error) { return netlink.FilterList(device, parent(hook)) })
	if err != nil {
		return nil, fmt.Errorf("listing the filters of interface %d: %w", index, err)
	}
	return filters, nil
}

func isOurs(filter netlink.Filter, hook Hook) bool {
	program, ok := filter.(*netlink.BpfFilter)
	return ok && program.Name == filterPrefix+hook.Name
}

func (c clsact) attached() (map[int]bool, error) {
	links, err := whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	indexes := map[int]bool{}
	for _, device := range links {
		for _, hook := range c.hooks {
			filters, err := Filters(device.Attrs().Index, hook)
			if err != nil {
				return nil, err
			}
			for _, filter := range filters {
				if isOurs(filter, hook) {
					indexes[device.Attrs().Index] = true
				}
			}
		}
	}
	return indexes, nil
}

// detach also removes the qdisc when nobody else has a filter there.
func (c clsact) detach(index int) error {
	others, found := 0, 0
	for _, hook := range c.hooks {
		filters, err := Filters(index, hook)
		if err != nil {
			return err
		}
		for _, filter := range filters {
			if !isOurs(filter, hook) {
				others++
				continue
			}
			found++
			if err := netlink.FilterDel(filter); err != nil {
				return fmt.Errorf("detaching %s from interface %d: %w", hook.Name, index, err)
			}
		}
	}
	if found == 0 || others > 0 {
		return nil
	}
	if err := netlink.QdiscDel(ClsactQdisc(index)); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing the clsact qdisc of interface %d: %w", index, err)
	}
	return nil
}

// whole repeats a listing that was disturbed by changes.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
