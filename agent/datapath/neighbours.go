// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A packet that is redirected to a next hop whose hardware address the kernel
// does not know waits until it does; then the kernel looks the next hop up once
// more, by the route that the packet had before, and sends it to the hardware
// address of the wrong one. Each new subflow would lose its SYN, and a second.
// So the kernel is told to resolve all next hops before they are used, and to
// keep them resolved.

// neighbourProtocol marks the entries that are ours, as it does with routes.
const neighbourProtocol = 177

// resolveWait is how long Apply waits for the answers of new neighbours.
const resolveWait = 20 * time.Millisecond

// neighbour is a peer's address on the link of one of the node's NICs.
type neighbour struct {
	nic     int
	address netip.Addr
}

// neighbourEntry is what the kernel knows of a neighbour.
type neighbourEntry struct {
	resolved bool
	kept     bool // resolved again by the kernel itself, or for ever
	ours     bool
}

// neighbours are the next hops that segments may be redirected to.
func (s *State) neighbours() map[neighbour]bool {
	wanted := map[neighbour]bool{}
	for _, path := range s.Paths {
		for _, peer := range s.Peers {
			there := peer.Paths[path.Name]
			if !path.Up || !there.Up {
				continue
			}
			for _, address := range there.Addresses {
				wanted[neighbour{path.Interface, address.Unmap()}] = true
			}
		}
	}
	return wanted
}

// resolve makes the kernel keep these neighbours resolved, and no others of ours.
// One that it refuses is reported and not an error: its path works without, less
// well.
func (d *Datapath) resolve(wanted map[neighbour]bool) error {
	known, err := listNeighbours()
	if err != nil {
		return err
	}
	var fresh []neighbour
	for n := range wanted {
		entry, exists := known[n]
		if entry.resolved && entry.kept {
			continue
		}
		if err := n.keep(); err != nil {
			d.options.Log.Info("a next hop cannot be resolved before it is used", "address", n.address, "interface", n.nic, "reason", err.Error())
		} else if !exists {
			fresh = append(fresh, n)
		}
	}
	return errors.Join(awaitResolved(fresh), forgetNeighbours(known, wanted))
}

// keep equals `ip neigh replace ADDRESS dev NIC use managed extern_learn`.
// Kernels before 5.16 know no managed entries: there it is resolved once, and
// not removed.
func (n neighbour) keep() error {
	request := n.request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, netlink.NTF_USE|netlink.NTF_EXT_LEARNED)
	request.AddData(nl.NewRtAttr(netlink.NDA_FLAGS_EXT, nl.Uint32Attr(netlink.NTF_EXT_MANAGED)))
	request.AddData(nl.NewRtAttr(netlink.NDA_PROTOCOL, nl.Uint8Attr(neighbourProtocol)))
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// remove equals `ip neigh del ADDRESS dev NIC`.
func (n neighbour) remove() error {
	_, err := n.request(unix.RTM_DELNEIGH, 0, 0).Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return nil
	}
	return err
}

func (n neighbour) request(kind, flags int, entryFlags uint8) *nl.NetlinkRequest {
	family := unix.AF_INET
	if n.address.Is6() {
		family = unix.AF_INET6
	}
	request := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	request.AddData(&netlink.Ndmsg{Family: uint8(family), Index: uint32(n.nic), Flags: entryFlags})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, n.address.AsSlice()))
	return request
}

// forgetNeighbours removes those of ours that are not wanted. All others are the
// cluster network's business.
func forgetNeighbours(known map[neighbour]neighbourEntry, wanted map[neighbour]bool) error {
	var failed error
	for n, entry := range known {
		if !entry.ours || wanted[n] {
			continue
		}
		if err := n.remove(); err != nil {
			failed = errors.Join(failed, fmt.Errorf("removing the neighbour %s of interface %d: %w", n.address, n.nic, err))
		}
	}
	return failed
}

func removeNeighbours() error {
	known, err := listNeighbours()
	if err != nil {
		return err
	}
	return forgetNeighbours(known, nil)
}

// awaitResolved waits a little for the answers of new neighbours. One that does
// not answer is not worth a delay: its path will be found dead by others.
func awaitResolved(fresh []neighbour) error {
	for deadline := time.Now().Add(resolveWait); len(fresh) > 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		known, err := listNeighbours()
		if err != nil {
			return err
		}
		for len(fresh) > 0 && known[fresh[0]].resolved {
			fresh = fresh[1:]
		}
	}
	return nil
}

const resolvedStates = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE |
	netlink.NUD_NOARP | netlink.NUD_PERMANENT

// listNeighbours lists all of the network namespace.
func listNeighbours() (map[neighbour]neighbourEntry, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
	request.AddData(&netlink.Ndmsg{})
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if err != nil {
		return nil, fmt.Errorf("listing neighbours: %w", err)
	}
	known := make(map[neighbour]neighbourEntry, len(messages))
	for _, message := range messages {
		parsed, err := netlink.NeighDeserialize(message)
		if err != nil {
			return nil, fmt.Errorf("reading a neighbour: %w", err)
		}
		address, ok := netip.AddrFromSlice(parsed.IP)
		if !ok {
			continue
		}
		protocol, err := protocolOf(message)
		if err != nil {
			return nil, err
		}
		known[neighbour{parsed.LinkIndex, address}] = neighbourEntry{
			resolved: parsed.State&resolvedStates != 0,
			kept:     parsed.FlagsExt&netlink.NTF_EXT_MANAGED != 0 || parsed.State&netlink.NUD_PERMANENT != 0,
			ours:     protocol == neighbourProtocol,
		}
	}
	return known, nil
}

// protocolOf reads what netlink.Neigh leaves out.
func protocolOf(message []byte) (uint8, error) {
	attributes, err := nl.ParseRouteAttr(message[(&netlink.Ndmsg{}).Len():])
	if err != nil {
		return 0, fmt.Errorf("reading a neighbour's attributes: %w", err)
	}
	for _, attribute := range attributes {
		if attribute.Attr.Type == netlink.NDA_PROTOCOL && len(attribute.Value) > 0 {
			return attribute.Value[0], nil
		}
	}
	return 0, nil
}
