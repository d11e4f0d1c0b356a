// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/internal/relayed"
)

// newNamespace makes a network namespace that has no name, and ends with its last user.
func newNamespace() (*os.File, error) {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("finding the thread's network namespace: %w", err)
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("making a network namespace: %w", err)
	}
	made, err := os.Open("/proc/thread-self/ns/net")
	// A thread that cannot get back stays locked, and ends with its goroutine.
	if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	if err != nil {
		return nil, fmt.Errorf("opening a new network namespace: %w", err)
	}
	return made, nil
}

// Addresses of the pairs of interfaces; bpf/proxy knows the relay's.
var (
	nodeEthernet  = net.HardwareAddr{0x02, 0xb4, 0xa1, 0xd0, 0x00, 0x01}
	relayEthernet = net.HardwareAddr{0x02, 0xb4, 0xa1, 0xd0, 0x00, 0x02}
)

const (
	// relayInterface is the name of a relay's own end.
	relayInterface = "relay"
	localTable     = 100
)

// Next hops towards the node: nobody has them, their neighbour entries say whose they are.
var (
	nextHopIPv4 = net.IPv4(169, 254, 1, 1)
	nextHopIPv6 = net.ParseIP("fe80::1")
)

// joinNode makes the pair of interfaces, and returns the node's end.
func (r *relay) joinNode(mtu int) (outside int, err error) {
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{
			Name: fmt.Sprintf("%s%d", relayed.InterfacePrefix, r.client.Interface), MTU: mtu, HardwareAddr: nodeEthernet,
		},
		PeerName: relayInterface, PeerHardwareAddr: relayEthernet, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(r.namespace.Fd()),
	}
	err = r.proxy.inNode(func() error {
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("adding interface %s: %w", pair.Name, err)
		}
		made, err := netlink.LinkByName(pair.Name)
		if err != nil {
			return fmt.Errorf("finding interface %s: %w", pair.Name, err)
		}
		outside = made.Attrs().Index
		// The node's stack has nothing to do with it.
		_ = netlink.LinkSetIP6AddrGenMode(made, nl6None)
		return netlink.LinkSetUp(made)
	})
	return outside, err
}

// nl6None is IN6_ADDR_GEN_MODE_NONE.
const nl6None = 1

// furnish makes every address the namespace's own for what comes in, and leads what goes
// out to the node.
func (r *relay) furnish() (inside int, err error) {
	handle, err := netlink.NewHandleAt(netns.NsHandle(r.namespace.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return 0, fmt.Errorf("opening rtnetlink: %w", err)
	}
	defer handle.Close()
	for _, name := range []string{"lo", relayInterface} {
		found, err := handle.LinkByName(name)
		if err != nil {
			return 0, fmt.Errorf("finding interface %s: %w", name, err)
		}
		if err := handle.LinkSetUp(found); err != nil {
			return 0, fmt.Errorf("setting up interface %s: %w", name, err)
		}
		inside = found.Attrs().Index
	}
	if err := r.lead(handle, unix.AF_INET, inside, nextHopIPv4, net.CIDRMask(0, 32)); err != nil {
		return 0, err
	}
	// A node may have no IPv6.
	if err := r.lead(handle, unix.AF_INET6, inside, nextHopIPv6, net.CIDRMask(0, 128)); err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EACCES) {
		return 0, err
	}
	return inside, nil
}

func (r *relay) lead(handle *netlink.Handle, family, inside int, nextHop net.IP, mask net.IPMask) error {
	loopback, err := handle.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback interface: %w", err)
	}
	everything := &net.IPNet{IP: make(net.IP, len(mask)), Mask: mask}
	rule := netlink.NewRule()
	rule.Family, rule.IifName, rule.Table, rule.Priority = family, relayInterface, localTable, localTable
	neighbour := &netlink.Neigh{
		LinkIndex: inside, Family: family, State: netlink.NUD_PERMANENT, IP: nextHop, HardwareAddr: nodeEthernet,
	}
	local := &netlink.Route{
		LinkIndex: loopback.Attrs().Index, Family: family, Dst: everything, Type: unix.RTN_LOCAL,
		Table: localTable, Scope: netlink.SCOPE_HOST,
	}
	out := &netlink.Route{LinkIndex: inside, Family: family, Dst: everything, Gw: nextHop, Flags: int(netlink.FLAG_ONLINK)}
	return errors.Join(
		wrap("adding a rule", handle.RuleAdd(rule)), wrap("adding a neighbour", handle.NeighSet(neighbour)),
		wrap("making all addresses local", handle.RouteReplace(local)), wrap("adding the way to the node", handle.RouteReplace(out)),
	)
}

func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// settings of relays' namespaces. The receive buffer begins large: one that grows only with
// use can fill with what came out of order, and some kernels then never take the missing
// piece. Ports of further subflows are those that guests' systems do not choose by
// themselves.
var settings = map[string]string{
	"ipv4/tcp_rmem":            "4096 8388608 16777216",
	"ipv4/tcp_wmem":            "4096 131072 16777216",
	"ipv4/ip_local_port_range": "16384 32767",
	"mptcp/enabled":            "1",
	// Sockets that outlive a killed proxy keep its namespace. Those that a living one closes
	// have nothing left to send.
	"ipv4/tcp_orphan_retries": "3",
	"ipv4/tcp_fin_timeout":    "5",
	"mptcp/close_timeout":     "5",
}

const congestionSetting = "ipv4/tcp_congestion_control"

// set gives the namespace its settings, and the congestion control that the node's own
// sockets have.
func (r *relay) set() error {
	var congestion []byte
	file := func(name string) string { return filepath.Join(r.proxy.options.Proc, "sys/net", name) }
	err := r.proxy.inNode(func() (err error) {
		congestion, err = os.ReadFile(file(congestionSetting))
		return err
	})
	if err != nil {
		return fmt.Errorf("reading the node's congestion control: %w", err)
	}
	return namespace.Do(r.namespace, func() error {
		for name, value := range settings {
			if err := os.WriteFile(file(name), []byte(value), 0o644); err != nil {
				return fmt.Errorf("setting %s: %w", name, err)
			}
		}
		err := os.WriteFile(file(congestionSetting), []byte(strings.TrimSpace(string(congestion))), 0o644)
		return wrap("setting the congestion control", err)
	})
}
