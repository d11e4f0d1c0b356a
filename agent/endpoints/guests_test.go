// SPDX-License-Identifier: Apache-2.0

package endpoints_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/endpoints"
)

const (
	guestUID     = "guest"
	guestMAC     = "52:54:00:aa:bb:01"
	guestAddress = "192.0.2.10"
)

// vms is a node with two taps in a bridge that has the VMs' range, a routed tap, and a pod.
type vms struct{ *lab }

func newVMs(t *testing.T) *vms {
	l := &vms{newLab(t, 1)}
	l.ip("link", "add", "br0", "type", "bridge")
	l.ip("address", "add", "192.0.2.1/24", "dev", "br0")
	l.ip("link", "set", "br0", "up")
	for tap, mac := range map[string]string{"vnet0": "fe:54:00:aa:bb:01", "vnet1": "fe:54:00:aa:bb:02", "routed": "fe:54:00:aa:bb:03"} {
		l.ip("tuntap", "add", "dev", tap, "mode", "tap")
		l.ip("link", "set", tap, "address", mac)
		l.ip("link", "set", tap, "up")
	}
	l.ip("link", "set", "vnet0", "master", "br0")
	l.ip("link", "set", "vnet1", "master", "br0")
	l.ip("link", "add", "port0", "type", "veth", "peer", "name", "guest0") // a bridge learns where there is a carrier
	l.ip("link", "set", "port0", "master", "br0", "up")
	l.ip("link", "set", "guest0", "up")
	l.ip("route", "add", "198.51.100.7/32", "dev", "routed")
	return l
}

func (l *vms) ip(arguments ...string) {
	l.t.Helper()
	_, err := l.node.Run("ip", arguments...)
	require.NoError(l.t, err)
}

// learn has the bridge learn a MAC address from a frame, as a guest can make it.
func (l *vms) learn(mac, port string) {
	l.t.Helper()
	require.NoError(l.t, l.node.Do(func() error {
		link, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		address, err := net.ParseMAC(mac)
		if err != nil {
			return err
		}
		entry := &netlink.Neigh{Family: 7, LinkIndex: link.Attrs().Index, HardwareAddr: address, State: netlink.NUD_REACHABLE, Flags: netlink.NTF_MASTER}
		return netlink.NeighSet(entry)
	}))
}

func (l *vms) find(guest endpoints.Guest, addresses ...string) (endpoints.Endpoint, error) {
	l.t.Helper()
	pod := endpoints.Pod{UID: guestUID, Guest: &guest}
	for _, address := range addresses {
		pod.Addresses = append(pod.Addresses, netip.MustParseAddr(address))
	}
	before := l.pods
	defer func() { l.pods = before }()
	l.pods = append(l.pods, pod)
	return l.look().Find(guestUID)
}

func TestAVMIsFoundByWhatTheHostWrites(t *testing.T) {
	l := newVMs(t)
	pod := l.node.Pods[0]
	l.learn("52:54:00:aa:bb:77", "port0")
	l.ip("link", "add", "dummybr", "type", "bridge")
	for name, tc := range map[string]struct {
		guest     endpoints.Guest
		addresses []string
		found     string // the tap
		missing   string // or why not
		disputed  string // or why its address is not its own
	}{
		"routed, by name":                   {endpoints.Guest{Name: "routed"}, []string{"198.51.100.7"}, "routed", "", ""},
		"in a bridge, by name":              {endpoints.Guest{Name: "vnet0"}, []string{guestAddress}, "vnet0", "", ""},
		"by the tap's own address":          {endpoints.Guest{MAC: guestMAC}, []string{guestAddress}, "vnet0", "", ""},
		"by a name that nothing has":        {endpoints.Guest{Name: "vnet9"}, []string{guestAddress}, "", "has no interface vnet9", ""},
		"by a MAC address nobody has":       {endpoints.Guest{MAC: "52:54:00:00:00:99"}, []string{guestAddress}, "", "no static forwarding entry", ""},
		"by what a guest can write":         {endpoints.Guest{MAC: "52:54:00:aa:bb:77"}, []string{guestAddress}, "", "any guest of the bridge can write", ""},
		"by the name of a bridge":           {endpoints.Guest{Name: "dummybr"}, []string{guestAddress}, "", "is a bridge", ""},
		"by the name of a pod's interface":  {endpoints.Guest{Name: pod.HostInterface}, []string{guestAddress}, "", "belongs to a pod", ""},
		"with an address routed elsewhere":  {endpoints.Guest{Name: "routed"}, []string{guestAddress}, "routed", "", "leads to br0"},
		"with a pod's address":              {endpoints.Guest{Name: "routed"}, []string{pod.IPv4}, "routed", "", "leads to " + pod.HostInterface},
		"with an address of the node's":     {endpoints.Guest{Name: "vnet0"}, []string{"192.0.2.1"}, "vnet0", "", "is the node's own address"},
		"with an address that has no route": {endpoints.Guest{Name: "routed"}, []string{"203.0.113.9"}, "routed", "", "no route to 203.0.113.9"},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := l.find(tc.guest, tc.addresses...)
			if tc.missing != "" {
				require.ErrorIs(t, err, endpoints.ErrGuestNotFound)
				require.ErrorContains(t, err, tc.missing)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.found, found.HostInterface)
			require.Empty(t, found.Path, "nothing is to be entered")
			require.Equal(t, tc.disputed != "", len(found.Disputed) > 0)
			if tc.disputed != "" {
				require.ErrorContains(t, found.Contradiction, tc.disputed)
			}
		})
	}
	l.expectFound(pod)
}

func TestAStaticForwardingEntryLeadsToAVM(t *testing.T) {
	l := newVMs(t)
	const mac = "52:54:00:aa:bb:77"
	_, err := l.node.Run("bridge", "fdb", "add", mac, "dev", "vnet1", "master", "static")
	require.NoError(t, err)
	found, err := l.find(endpoints.Guest{MAC: mac}, guestAddress)
	require.NoError(t, err)
	require.Equal(t, "vnet1", found.HostInterface)
}

func TestOfTwoVMsWithOneInterfaceNeitherGetsIt(t *testing.T) {
	l := newVMs(t)
	for _, uid := range []string{"first", "second"} {
		l.pods = append(l.pods, endpoints.Pod{UID: uid, Guest: &endpoints.Guest{Name: "vnet0"}, Addresses: []netip.Addr{netip.MustParseAddr(guestAddress)}})
	}
	look := l.look()
	for _, uid := range []string{"first", "second"} {
		_, err := look.Find(uid)
		require.ErrorContains(t, err, "several MPTCPEndpoints name vnet0")
		require.True(t, errors.Is(err, endpoints.ErrGuestNotFound))
	}
}

func TestAVMWhoseNetworkIsAVLANIsFound(t *testing.T) {
	l := newVMs(t)
	if _, err := l.node.Run("ip", "link", "add", "link", "routed", "name", "routed.10", "type", "vlan", "id", "10"); err != nil {
		t.Skip("this kernel has no VLAN interfaces (CONFIG_VLAN_8021Q): make test-kernels runs it on others")
	}
	l.ip("link", "add", "link", "routed.10", "name", "routed.20", "type", "vlan", "id", "20")
	l.ip("link", "add", "link", "br0", "name", "br0.10", "type", "vlan", "id", "10")
	for device, address := range map[string]string{"routed.10": "203.0.113.1/32", "routed.20": "203.0.113.2/32", "br0.10": "203.0.113.3/32"} {
		l.ip("link", "set", device, "up")
		l.ip("route", "add", address, "dev", device)
	}
	for address, tap := range map[string]string{"203.0.113.1": "routed", "203.0.113.2": "routed", "203.0.113.3": "vnet0"} {
		found, err := l.find(endpoints.Guest{Name: tap}, address)
		require.NoError(t, err)
		require.Equal(t, tap, found.HostInterface)
		require.Empty(t, found.Disputed, address)
		require.Equal(t, tap == "routed", found.Tagged)
	}
	found, err := l.find(endpoints.Guest{Name: "vnet0"}, "203.0.113.1")
	require.NoError(t, err)
	require.Len(t, found.Disputed, 1, "a VLAN on another interface")
}
