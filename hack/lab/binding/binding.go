// SPDX-License-Identifier: Apache-2.0

// Package binding joins the tap of a virtual machine with the network of the pod that holds it,
// in the ways of KubeVirt.
package binding

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Bindings of a machine's NIC to the pod's network.
const (
	Masquerade = "masquerade"
	Bridge     = "bridge"
)

// Names in the pod's network namespace, as KubeVirt's.
const (
	// Tap is where the hypervisor connects the machine's NIC.
	Tap    = "tap0"
	podNIC = "eth0"
	joined = "k6t-eth0"
)

// What a masqueraded machine and its gateway are called, as by KubeVirt.
const (
	hiddenMachine = "10.0.2.2"
	hiddenGateway = "10.0.2.1"
)

// Place is what the machine is told of its network.
type Place struct {
	Address, Gateway, MAC string
	MTU                   int
}

// Bind makes the tap of a machine, and joins it with the network of the pod whose namespace this
// process is in.
func Bind(binding string) (*Place, error) {
	if err := makeTunDevice(); err != nil {
		return nil, err
	}
	nic, err := netlink.LinkByName(podNIC)
	if err != nil {
		return nil, fmt.Errorf("looking for the pod's NIC: %w", err)
	}
	if err := addTap(nic.Attrs().MTU); err != nil {
		return nil, err
	}
	switch binding {
	case Masquerade:
		return hide(nic)
	case Bridge:
		return lend(nic)
	}
	return nil, fmt.Errorf("binding %q: must be %s or %s", binding, Masquerade, Bridge)
}

func makeTunDevice() error {
	const device = "/dev/net/tun"
	if err := os.MkdirAll(filepath.Dir(device), 0o755); err != nil {
		return fmt.Errorf("making the place of the device: %w", err)
	}
	err := unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 200)))
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("making %s: %w", device, err)
	}
	return nil
}

// addTap adds the tap and a bridge that has it.
func addTap(mtu int) error {
	attributes := func(name string) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name, a.MTU = name, mtu
		return a
	}
	for _, device := range []netlink.Link{
		&netlink.Bridge{LinkAttrs: attributes(joined)},
		&netlink.Tuntap{LinkAttrs: attributes(Tap), Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_VNET_HDR},
	} {
		if err := netlink.LinkAdd(device); err != nil {
			return fmt.Errorf("adding %s: %w", device.Attrs().Name, err)
		}
		if err := netlink.LinkSetUp(device); err != nil {
			return fmt.Errorf("setting %s up: %w", device.Attrs().Name, err)
		}
	}
	return intoBridge(Tap)
}

func intoBridge(name string) error {
	device, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	into, err := netlink.LinkByName(joined)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(device, into); err != nil {
		return fmt.Errorf("putting %s into the bridge: %w", name, err)
	}
	return nil
}

// hide has the machine behind the pod's address: the binding masquerade.
func hide(nic netlink.Link) (*Place, error) {
	device, err := netlink.LinkByName(joined)
	if err != nil {
		return nil, err
	}
	own, err := netlink.ParseAddr(hiddenGateway + "/24")
	if err != nil {
		return nil, err
	}
	if err := netlink.AddrAdd(device, own); err != nil {
		return nil, fmt.Errorf("giving the bridge its address: %w", err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return nil, fmt.Errorf("having the pod forward: %w", err)
	}
	for _, rule := range []string{
		"add table ip nat",
		"add chain ip nat prerouting { type nat hook prerouting priority -100 ; }",
		"add chain ip nat postrouting { type nat hook postrouting priority 100 ; }",
		"add rule ip nat prerouting iifname " + podNIC + " counter dnat to " + hiddenMachine,
		"add rule ip nat postrouting ip saddr " + hiddenMachine + " counter masquerade",
	} {
		if out, err := exec.Command("/usr/sbin/nft", strings.Fields(rule)...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("nft %s: %w: %s", rule, err, out)
		}
	}
	return &Place{Address: hiddenMachine, Gateway: hiddenGateway, MAC: randomMAC().String(), MTU: nic.Attrs().MTU}, nil
}

// lend gives the machine the pod's address and MAC address: the binding bridge.
func lend(nic netlink.Link) (*Place, error) {
	addresses, err := netlink.AddrList(nic, netlink.FAMILY_V4)
	if err != nil || len(addresses) != 1 {
		return nil, fmt.Errorf("the pod's NIC has %d IPv4 addresses: %w", len(addresses), err)
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: nic.Attrs().Index}, netlink.RT_FILTER_OIF)
	if err != nil {
		return nil, fmt.Errorf("reading the pod's routes: %w", err)
	}
	is := &Place{Address: addresses[0].IP.String(), MAC: nic.Attrs().HardwareAddr.String(), MTU: nic.Attrs().MTU}
	for _, route := range routes {
		if route.Gw != nil {
			is.Gateway = route.Gw.String()
		}
	}
	if is.Gateway == "" {
		return nil, errors.New("the pod has no gateway")
	}
	for _, step := range []func() error{
		func() error { return netlink.AddrDel(nic, &addresses[0]) },
		func() error { return netlink.LinkSetDown(nic) },
		func() error { return netlink.LinkSetHardwareAddr(nic, randomMAC()) },
		func() error { return intoBridge(podNIC) },
		func() error { return netlink.LinkSetUp(nic) },
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("giving the pod's address to the machine: %w", err)
		}
	}
	return is, nil
}

// randomMAC is one of those that anybody may take.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // never fails
	mac[0] = 0x02
	return mac
}
