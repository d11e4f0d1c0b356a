// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Options are those of a pair of joined NICs.
type Options struct {
	// MTU of both ends in bytes; 0 means 1500.
	MTU int
	// Mbit limits each direction; 0 means no limit.
	Mbit int
	// RoundTrip is what the link is part of, apart from this pair: the limits' queues
	// then hold as much more.
	RoundTrip time.Duration
	// AddressesA and AddressesB are addresses with prefix lengths.
	AddressesA, AddressesB []string
}

// Connect joins two namespaces by a veth pair, sets both ends up, and waits until
// their addresses can be used.
func Connect(a *Namespace, aInterface string, b *Namespace, bInterface string, options Options) error {
	if err := createPair(a, aInterface, b, bInterface, options.MTU); err != nil {
		return err
	}
	if err := a.configure(aInterface, options, options.AddressesA); err != nil {
		return err
	}
	if err := b.configure(bInterface, options, options.AddressesB); err != nil {
		return err
	}
	if err := a.waitForIPv6(aInterface); err != nil {
		return err
	}
	return b.waitForIPv6(bInterface)
}

func createPair(a *Namespace, aInterface string, b *Namespace, bInterface string, mtu int) error {
	handle, err := a.Handle()
	if err != nil {
		return err
	}
	peer, err := netns.GetFromPath(b.Path())
	if err != nil {
		return fmt.Errorf("opening network namespace %s: %w", b.Name, err)
	}
	defer peer.Close()
	if mtu == 0 {
		mtu = 1500
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU = aInterface, mtu
	pair := netlink.NewVeth(attributes)
	pair.PeerName, pair.PeerMTU, pair.PeerNamespace = bInterface, uint32(mtu), netlink.NsFd(peer)
	if err := handle.LinkAdd(pair); err != nil {
		return fmt.Errorf("joining %s in %s and %s in %s: %w", aInterface, a.Name, bInterface, b.Name, err)
	}
	return nil
}

func (ns *Namespace) configure(name string, options Options, addresses []string) error {
	for _, address := range addresses {
		if err := ns.AddAddress(name, address); err != nil {
			return err
		}
	}
	if options.Mbit > 0 {
		if err := ns.shape(name, options.Mbit, shapeDelay+options.RoundTrip); err != nil {
			return err
		}
	}
	return ns.SetUp(name)
}

// link finds an interface and the handle to change it with.
func (ns *Namespace) link(name string) (*netlink.Handle, netlink.Link, error) {
	handle, err := ns.Handle()
	if err != nil {
		return nil, nil, err
	}
	link, err := handle.LinkByName(name)
	if err != nil {
		return nil, nil, fmt.Errorf("finding interface %s in %s: %w", name, ns.Name, err)
	}
	return handle, link, nil
}

// Index returns the number of an interface.
func (ns *Namespace) Index(name string) (int, error) {
	_, link, err := ns.link(name)
	if err != nil {
		return 0, err
	}
	return link.Attrs().Index, nil
}

// SetUp sets an interface up.
func (ns *Namespace) SetUp(name string) error {
	handle, link, err := ns.link(name)
	if err != nil {
		return err
	}
	if err := handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting interface %s in %s up: %w", name, ns.Name, err)
	}
	return nil
}

// SetDown sets an interface down; its peer loses the carrier.
func (ns *Namespace) SetDown(name string) error {
	handle, link, err := ns.link(name)
	if err != nil {
		return err
	}
	if err := handle.LinkSetDown(link); err != nil {
		return fmt.Errorf("setting interface %s in %s down: %w", name, ns.Name, err)
	}
	return nil
}

// AddAddress gives an interface an address with its prefix length, IPv4 or IPv6.
func (ns *Namespace) AddAddress(name, address string) error {
	handle, link, err := ns.link(name)
	if err != nil {
		return err
	}
	parsed, err := netlink.ParseAddr(address)
	if err != nil {
		return fmt.Errorf("reading address %q: %w", address, err)
	}
	if parsed.IP.To4() == nil {
		parsed.Flags = unix.IFA_F_NODAD
	}
	if err := handle.AddrAdd(link, parsed); err != nil {
		return fmt.Errorf("adding address %s to %s in %s: %w", address, name, ns.Name, err)
	}
	return nil
}

// Route is a route to a destination, either through a gateway or on the link.
type Route struct {
	// Destination as a CIDR; empty means default.
	Destination string
	// Gateway is taken to be on the link, whatever the interface's addresses are.
	Gateway string
	// Interface that the route leaves by.
	Interface string
	// Source is the preferred source address; may be empty.
	Source string
}

// AddRoute adds a route, or replaces the one to the same destination.
func (ns *Namespace) AddRoute(route Route) error {
	handle, link, err := ns.link(route.Interface)
	if err != nil {
		return err
	}
	wanted := &netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Src: net.ParseIP(route.Source)}
	if route.Destination != "" {
		if wanted.Dst, err = netlink.ParseIPNet(route.Destination); err != nil {
			return fmt.Errorf("reading destination %q: %w", route.Destination, err)
		}
	}
	if route.Gateway != "" {
		wanted.Gw, wanted.Scope = net.ParseIP(route.Gateway), netlink.SCOPE_UNIVERSE
		wanted.SetFlag(netlink.FLAG_ONLINK)
	}
	if err := handle.RouteReplace(wanted); err != nil {
		return fmt.Errorf("adding route %+v in %s: %w", route, ns.Name, err)
	}
	return nil
}

const (
	// shapeBurst is what may leave at once at full speed, in bytes. With 64 KiB
	// three links of 100 Mbit/s carried 2.85 times one under BBR, with 16 KiB
	// 2.99 times.
	shapeBurst = 16 << 10
	// shapeLate is how late the shaper's timer may be without loss of the link's rate, as long
	// as packets wait: what was not sent meanwhile follows somewhat faster, by so many percent.
	// A host that takes the processors away for a moment delays timers by milliseconds. With
	// the burst alone a link was then seen to carry 83 to 88 Mbit/s of 100 for seconds.
	shapeLate         = 5 * time.Millisecond
	shapePeakPercents = 110
	// shapedGSO is the largest packet that a pod behind shaped links sends, in
	// bytes. The shaper would cut a larger one into single segments, and a mixture
	// of both makes the receiver misjudge its buffer: where the machine was busy,
	// connections stood still for 200 ms.
	shapedGSO = 15000
	// shapeDelay is how long a packet waits at most.
	shapeDelay = 20 * time.Millisecond
)

// Shape limits what leaves by an interface to a rate, with a queue of 20 ms.
// Programs on the interface's TC hooks are not disturbed: they run before it.
func (ns *Namespace) Shape(name string, mbit int) error {
	return ns.shape(name, mbit, shapeDelay)
}

// ShapeQueue is Shape with a queue of so many bytes.
func (ns *Namespace) ShapeQueue(name string, mbit, bytes int) error {
	return ns.shape(name, mbit, time.Duration(bytes)*8*time.Microsecond/time.Duration(mbit))
}

// shape limits with a queue of that length.
func (ns *Namespace) shape(name string, mbit int, queue time.Duration) error {
	handle, link, err := ns.link(name)
	if err != nil {
		return err
	}
	rate := uint64(mbit) * 1_000_000 / 8
	shaper := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate,
		Buffer:     netlink.Xmittime(rate, max(shapeBurst, uint32(float64(rate)*shapeLate.Seconds()))),
		Peakrate:   rate * shapePeakPercents / 100,
		Minburst:   shapeBurst,
		Limit:      uint32(float64(rate) * queue.Seconds()),
	}
	if err := handle.QdiscReplace(shaper); err != nil {
		return fmt.Errorf("shaping %s in %s to %d Mbit/s: %w", name, ns.Name, mbit, err)
	}
	return nil
}

// limitGSO limits the size of the packets that sockets send by an interface.
func (ns *Namespace) limitGSO(name string, bytes int) error {
	handle, link, err := ns.link(name)
	if err != nil {
		return err
	}
	if err := handle.LinkSetGSOMaxSize(link, bytes); err != nil {
		return fmt.Errorf("limiting the packets of %s in %s: %w", name, ns.Name, err)
	}
	return nil
}

// Counters are what passed an interface since it was made.
type Counters struct {
	TxBytes, RxBytes, TxPackets, RxPackets, TxDropped uint64
}

// Counters reads those of an interface.
func (ns *Namespace) Counters(name string) (Counters, error) {
	_, link, err := ns.link(name)
	if err != nil {
		return Counters{}, err
	}
	s := link.Attrs().Statistics
	return Counters{TxBytes: s.TxBytes, RxBytes: s.RxBytes, TxPackets: s.TxPackets, RxPackets: s.RxPackets, TxDropped: s.TxDropped}, nil
}

// waitForIPv6 waits until an interface's IPv6 addresses can be used: the kernel
// finishes them in a queue of its own, and a neighbour asked before then answers
// only after a second.
func (ns *Namespace) waitForIPv6(name string) error {
	handle, link, err := ns.link(name)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		addresses, err := handle.AddrList(link, netlink.FAMILY_V6)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue // they changed meanwhile
		}
		if err != nil {
			return fmt.Errorf("listing addresses of %s in %s: %w", name, ns.Name, err)
		}
		if usable(addresses) {
			return nil
		}
	}
	return fmt.Errorf("the IPv6 addresses of %s in %s stayed tentative", name, ns.Name)
}

func usable(addresses []netlink.Addr) bool {
	linkLocal := false
	for _, address := range addresses {
		if address.Flags&unix.IFA_F_TENTATIVE != 0 {
			return false
		}
		linkLocal = linkLocal || address.IP.IsLinkLocalUnicast()
	}
	return linkLocal
}
