// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/node"
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

// askAgain is how soon it has an unanswered question asked again.
const askAgain = 5 * time.Millisecond

// neighbour is a peer's address on the link of one of the node's NICs.
type neighbour struct {
	nic     int
	address netip.Addr
}

// neighbourEntry is what the kernel knows of a neighbour.
type neighbourEntry struct {
	resolved bool
	asked    bool // and not answered
	kept     bool // resolved again by the kernel itself, or for ever
	ours     bool
	// failed: it did not answer; confirmable: it has answered, and is not being asked.
	failed, confirmable bool
}

// neighbours are the next hops that segments may be redirected to.
func neighboursOf(nics []node.Path, peers []node.Peer) map[neighbour]bool {
	wanted := map[neighbour]bool{}
	for _, path := range nics {
		for _, peer := range peers {
			there := peer.Paths[path.Name]
			if !path.Up || !there.Up {
				continue
			}
			for _, address := range there.Addresses {
				wanted[neighbour{path.Interface, there.NextHop(address).Unmap()}] = true
			}
		}
	}
	return wanted
}

// resolve makes the kernel keep these neighbours resolved, and no others of ours.
// One that it refuses is reported and not an error: its path works without, less
// well.
func (d *Datapath) resolve(peers, gateways map[neighbour]bool) error {
	wanted := maps.Clone(gateways)
	maps.Copy(wanted, peers)
	known, err := listNeighbours()
	if err != nil {
		return err
	}
	var fresh []neighbour
	for n := range wanted {
		entry := known[n]
		if entry.resolved && entry.kept {
			continue
		}
		if err := n.askAnew(entry); err != nil {
			d.options.Log.Info("failed to resolve a next hop before it is used", "address", n.address, "interface", n.nic, "reason", err.Error())
		} else if !entry.resolved && !entry.ours {
			fresh = append(fresh, n)
		}
	}
	return errors.Join(awaitResolved(fresh), releaseNeighbours(known, wanted))
}

// askAnew makes the kernel ask for the neighbour at once and keep it. One that it
// asked for in vain, because a NIC was down, it would ask for again only a second
// after the last time; so it is removed first, which stops no packets.
func (n neighbour) askAnew(entry neighbourEntry) error {
	if entry.asked {
		if err := n.remove(); err != nil {
			return err
		}
	}
	return n.keep()
}

// keep equals `ip neigh replace ADDRESS dev NIC use managed extern_learn proto
// 177`. Kernels before 5.16 know no managed entries: there it is resolved once,
// and not removed.
func (n neighbour) keep() error {
	return n.set(netlink.NTF_USE|netlink.NTF_EXT_LEARNED, netlink.NTF_EXT_MANAGED, neighbourProtocol)
}

// confirm has the kernel ask a neighbour that it knows, as `ip neigh change ADDRESS dev NIC
// nud probe`, while packets go there as before. The kernel takes a state only for what it does
// not manage.
func (n neighbour) confirm() error {
	request := n.request(unix.RTM_NEWNEIGH, unix.NLM_F_REPLACE, netlink.NTF_EXT_LEARNED)
	message := request.Data[0].(*netlink.Ndmsg)
	message.State = netlink.NUD_PROBE
	request.AddData(nl.NewRtAttr(netlink.NDA_PROTOCOL, nl.Uint8Attr(neighbourProtocol)))
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return err
	}
	return n.keep()
}

// release equals `ip neigh replace ADDRESS dev NIC use proto kernel`: it becomes
// an entry like any other, which the kernel drops when nobody uses it. To remove
// it would stop the packets of others until it is resolved again, for a second if
// the question is lost.
func (n neighbour) release() error {
	return n.set(netlink.NTF_USE, 0, unix.RTPROT_KERNEL)
}

// remove equals `ip neigh del ADDRESS dev NIC`.
func (n neighbour) remove() error {
	_, err := n.request(unix.RTM_DELNEIGH, 0, 0).Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.ENOENT) || isGone(err) {
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

func (n neighbour) set(flags uint8, extendedFlags uint32, protocol uint8) error {
	request := n.request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, flags)
	request.AddData(nl.NewRtAttr(netlink.NDA_FLAGS_EXT, nl.Uint32Attr(extendedFlags)))
	request.AddData(nl.NewRtAttr(netlink.NDA_PROTOCOL, nl.Uint8Attr(protocol)))
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// releaseNeighbours lets go of those of ours that are not wanted. All others are
// the cluster network's business.
func releaseNeighbours(known map[neighbour]neighbourEntry, wanted map[neighbour]bool) error {
	var failed error
	for n, entry := range known {
		if !entry.ours || wanted[n] {
			continue
		}
		if err := n.release(); err != nil && !isGone(err) {
			failed = errors.Join(failed, fmt.Errorf("releasing the neighbour %s of interface %d: %w", n.address, n.nic, err))
		}
	}
	return failed
}

// isGone tells whether a NIC was removed or set down in the meantime; with it its
// neighbours went.
func isGone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENXIO)
}

func releaseAllNeighbours() error {
	known, err := listNeighbours()
	if err != nil {
		return err
	}
	return releaseNeighbours(known, nil)
}

// awaitResolved waits a little for the answers of new neighbours, and asks again
// meanwhile: a NIC that has just come up can lose the first question. One that
// does not answer is not worth a delay: its path will be found dead by others.
func awaitResolved(fresh []neighbour) error {
	started := time.Now()
	for asked := started; len(fresh) > 0 && time.Since(started) < resolveWait; time.Sleep(time.Millisecond) {
		known, err := listNeighbours()
		if err != nil {
			return err
		}
		fresh = slices.DeleteFunc(fresh, func(n neighbour) bool { return known[n].resolved })
		if time.Since(asked) < askAgain {
			continue
		}
		asked = time.Now()
		for _, n := range fresh {
			if err := n.askAnew(known[n]); err != nil && !isGone(err) {
				return fmt.Errorf("resolving %s: %w", n.address, err)
			}
		}
	}
	return nil
}

const resolvedStates = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE |
	netlink.NUD_NOARP | netlink.NUD_PERMANENT

const unansweredStates = netlink.NUD_INCOMPLETE | netlink.NUD_FAILED

// listNeighbours lists all of the network namespace.
func listNeighbours() (map[neighbour]neighbourEntry, error) {
	messages, err := whole(func() ([][]byte, error) {
		request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
		request.AddData(&netlink.Ndmsg{})
		return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	})
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
			asked:    parsed.State&unansweredStates != 0,
			resolved: parsed.State&resolvedStates != 0,
			kept:     parsed.FlagsExt&netlink.NTF_EXT_MANAGED != 0 || parsed.State&netlink.NUD_PERMANENT != 0,
			ours:     protocol == neighbourProtocol,

			failed:      parsed.State == netlink.NUD_FAILED,
			confirmable: parsed.State&(netlink.NUD_REACHABLE|netlink.NUD_STALE|netlink.NUD_DELAY) != 0,
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

// whole repeats a listing that was disturbed by changes.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
