// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrGuestNotFound means that no interface of this node is known to be a VM's.
var ErrGuestNotFound = errors.New("no interface on this node is known to be the VM's")

// Guest says how the interface of a VM is found: by the name of the host's end, or by the
// guest's MAC address. It counts only what the host writes. The guest writes its frames'
// source addresses, and so what bridges and neighbour tables learn from them.
type Guest struct {
	Name string
	MAC  string
}

// guestKinds are the kinds of interfaces that VMs, and machines that stand for them, have
// on a host. Of macvtap and SR-IOV the node's routes know nothing.
var guestKinds = []string{"tun", "tuntap", "veth", "netkit"}

// links are the node's interfaces, as a look at VMs needs them.
type links struct {
	all  []netlink.Link
	fdbs []netlink.Neigh // read when first asked for
	read bool
}

func (l *links) name(index int) string {
	for _, link := range l.all {
		if link.Attrs().Index == index {
			return link.Attrs().Name
		}
	}
	return fmt.Sprintf("interface %d", index)
}

// find is the host's end of a VM's interface.
func (l *links) find(handle *netlink.Handle, guest *Guest) (netlink.Link, error) {
	link, err := l.byName(guest.Name)
	if guest.Name == "" {
		link, err = l.byMAC(handle, guest.MAC)
	}
	if err != nil {
		return nil, err
	}
	if !slices.Contains(guestKinds, link.Type()) {
		return nil, fmt.Errorf("%s is a %s: a VM is behind a tap (or veth, netkit)", link.Attrs().Name, link.Type())
	}
	return link, nil
}

func (l *links) byName(name string) (netlink.Link, error) {
	at := slices.IndexFunc(l.all, func(link netlink.Link) bool { return link.Attrs().Name == name })
	if at < 0 {
		return nil, fmt.Errorf("the node has no interface %s", name)
	}
	return l.all[at], nil
}

// byMAC goes by the tap's own address, as libvirt derives it from the guest's, and by
// forwarding entries that an admin or a manager of VMs wrote.
func (l *links) byMAC(handle *netlink.Handle, text string) (netlink.Link, error) {
	mac, err := net.ParseMAC(text)
	if err != nil {
		return nil, fmt.Errorf("%q is no MAC address", text)
	}
	tapOf := append(net.HardwareAddr{0xfe}, mac[1:]...)
	ports, learned := l.forwarding(handle, mac)
	var found []netlink.Link
	for _, link := range l.all {
		isTap := slices.Contains(guestKinds[:2], link.Type()) && bytes.Equal(link.Attrs().HardwareAddr, tapOf)
		if isTap || slices.Contains(ports, link.Attrs().Index) {
			found = append(found, link)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("%s and %s both lead to %s: give the interface's name", found[0].Attrs().Name, found[1].Attrs().Name, mac)
	case learned != 0:
		return nil, fmt.Errorf("only an entry that a bridge learned leads to %s, at %s, and any guest of the bridge can write that: "+
			"give the interface's name, or make the entry static (bridge fdb replace %s dev %s master static)", mac, l.name(learned), mac, l.name(learned))
	}
	return nil, fmt.Errorf("no tap's own address and no static forwarding entry leads to %s", mac)
}

// forwarding are the ports of bridges to which static entries lead, and one to which a
// learned entry does.
func (l *links) forwarding(handle *netlink.Handle, mac net.HardwareAddr) (ports []int, learned int) {
	if !l.read {
		l.read = true
		l.fdbs, _ = handle.NeighList(0, unix.AF_BRIDGE) // without it the entries are not there
	}
	for i := range l.fdbs {
		entry := &l.fdbs[i]
		switch {
		case !bytes.Equal(entry.HardwareAddr, mac) || entry.MasterIndex == 0:
		case entry.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) == 0:
			learned = entry.LinkIndex
		case !slices.Contains(ports, entry.LinkIndex):
			ports = append(ports, entry.LinkIndex)
		}
	}
	return ports, learned
}

// readGuest reads what the node shows of a VM. Its interface may lead to no other
// namespace: it is added to those that the judge knows.
func (l *look) readGuest(pod *Pod, ends map[int]HostEnd) evidence {
	link, err := l.links.find(l.handle, pod.Guest)
	if err != nil {
		return evidence{guestErr: fmt.Errorf("%w: %w", ErrGuestNotFound, err)}
	}
	a := link.Attrs()
	ends[a.Index] = HostEnd{a.Index, a.Name, a.NetNsID, a.MasterIndex, link.Type(), a.MTU}
	return evidence{guest: a.Index, routes: l.routesTo(pod.Addresses)}
}

// byGuests gives VMs the interfaces that they name, where no pod has a right to one.
func (j *judge) byGuests() {
	for index, guests := range j.by(func(pod *Pod) []int { return []int{j.seen[pod.UID].guest} }) {
		owner, decided := j.owners[index]
		switch {
		case !decided:
			j.award(index, guests, func(pod *Pod) bool { return j.leadsTo(pod, index) }, "several MPTCPEndpoints name")
		case owner == "":
			j.refuseGuests(guests, index, "which several pods have a right to")
		default:
			j.refuseGuests(guests, index, "which belongs to a pod")
		}
	}
	for i := range j.pods {
		j.proveGuest(&j.pods[i])
	}
}

func (j *judge) refuseGuests(guests []*Pod, index int, why string) {
	for _, guest := range guests {
		j.contradict([]string{guest.UID}, fmt.Errorf("%w: the MPTCPEndpoint gives %s, %s", ErrGuestNotFound, j.ends[index].Name, why))
	}
}

// mostTags is how many VLANs may be within each other on the way to a VM.
const mostTags = 2

// beneath are an interface and those below it, where it is that of a VLAN of this node's: what
// is routed there leaves by one of these, with its tag.
func (l *links) beneath(index int) []int {
	all := []int{index}
	for len(all) <= mostTags {
		at := slices.IndexFunc(l.all, func(link netlink.Link) bool { return link.Attrs().Index == all[len(all)-1] })
		if at < 0 || l.all[at].Type() != "vlan" || l.all[at].Attrs().NetNsID >= 0 || l.all[at].Attrs().ParentIndex == 0 {
			break
		}
		all = append(all, l.all[at].Attrs().ParentIndex)
	}
	return all
}

// leadsTo: all of the node's routes to a VM's addresses lead to an interface, to the bridge
// that has it, or to a VLAN's on one of these.
func (j *judge) leadsTo(guest *Pod, index int) bool {
	return !slices.ContainsFunc(guest.Addresses, func(address netip.Addr) bool { return j.misrouted(guest, address, index) != "" })
}

// misrouted says where the node's route to an address leads instead.
func (j *judge) misrouted(guest *Pod, address netip.Addr, index int) string {
	route, there := j.seen[guest.UID].routes[address]
	switch master := j.ends[index].MasterIndex; {
	case !there:
		return "the node has no route to " + address.String()
	case route.local:
		return address.String() + " is the node's own address"
	case route.fallback:
		return fmt.Sprintf("the node has only its default route to %s", address)
	case !slices.ContainsFunc(j.links.beneath(route.index), func(at int) bool { return at == index || master != 0 && at == master }):
		return fmt.Sprintf("the node's route to %s leads to %s", address, j.links.name(route.index))
	}
	return ""
}

// proveGuest disputes the addresses of a VM that the node does not route to it.
func (j *judge) proveGuest(guest *Pod) {
	index := j.seen[guest.UID].guest
	if index == 0 || j.owners[index] != guest.UID {
		return
	}
	claim, wrong := j.claims[guest.UID], []string{}
	for _, address := range guest.Addresses {
		if where := j.misrouted(guest, address, index); where != "" {
			claim.disputed, wrong = append(claim.disputed, address), append(wrong, where)
		}
	}
	if len(wrong) > 0 {
		j.contradict([]string{guest.UID}, fmt.Errorf("%s: an address is the VM's while the node's route to it leads to %s, or its bridge", strings.Join(wrong, ", "), j.ends[index].Name))
	}
}
