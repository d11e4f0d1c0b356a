// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Hardware addresses of NICs that a machine may have for tests alone, each joined to its peer:
// a guest of hack/kernels has them. Other NICs are never taken.
const (
	// SpareVirtio and its peer have the driver virtio_net.
	SpareVirtio     = "52:54:00:b1:d0:01"
	SpareVirtioPeer = "52:54:00:b1:d0:02"
	// SpareE1000 and its peer have e1000, which runs no programs at the XDP hook.
	SpareE1000     = "52:54:00:b1:d0:03"
	SpareE1000Peer = "52:54:00:b1:d0:04"
)

// ErrNoSpareNIC is of a machine that has no NIC for tests.
var ErrNoSpareNIC = errors.New("this machine has no NICs for tests: make test-kernels runs it on others")

// TakeNIC moves a NIC of the machine into the namespace, gives it a name and addresses, and
// sets it up. ReturnNIC gives it back.
func (ns *Namespace) TakeNIC(hardwareAddress, name string, addresses ...string) error {
	nic, err := spareNIC(hardwareAddress)
	if err != nil {
		return err
	}
	into, err := netns.GetFromPath(ns.Path())
	if err != nil {
		return fmt.Errorf("opening network namespace %s: %w", ns.Name, err)
	}
	defer into.Close()
	if err := netlink.LinkSetName(nic, name); err != nil {
		return fmt.Errorf("renaming %s: %w", nic.Attrs().Name, err)
	}
	if err := netlink.LinkSetNsFd(nic, int(into)); err != nil {
		return fmt.Errorf("moving %s to %s: %w", name, ns.Name, err)
	}
	return ns.configure(name, Options{}, addresses)
}

// ReturnNIC moves a NIC back to where the caller is, by a name that no other one has.
func (ns *Namespace) ReturnNIC(name string) error {
	handle, nic, err := ns.link(name)
	if err != nil {
		return err
	}
	address := strings.ReplaceAll(nic.Attrs().HardwareAddr.String(), ":", "")
	if err := errors.Join(handle.LinkSetDown(nic), handle.LinkSetName(nic, address)); err != nil {
		return fmt.Errorf("renaming %s in %s: %w", name, ns.Name, err)
	}
	here, err := netns.Get()
	if err != nil {
		return fmt.Errorf("opening the machine's network namespace: %w", err)
	}
	defer here.Close()
	if err := handle.LinkSetNsFd(nic, int(here)); err != nil {
		return fmt.Errorf("moving %s out of %s: %w", name, ns.Name, err)
	}
	return nil
}

func spareNIC(hardwareAddress string) (netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing NICs: %w", err)
	}
	for _, link := range links {
		if strings.EqualFold(link.Attrs().HardwareAddr.String(), hardwareAddress) {
			return link, nil
		}
	}
	return nil, ErrNoSpareNIC
}
