// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"math"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/bpf/guard"
)

// A path's queue is a pair of interfaces of the node. What is sent by the first one
// is shaped by HTB, with a class for each endpoint that has a limit on the path, and
// comes out of the other one, from where it goes on to the NIC. Where the path is
// shared, what all guarded endpoints send goes that way. The NIC's own queueing
// discipline stays as it is, and so do the pods'.

const (
	queueName    = paths.QueuePrefix + "%d" // by the path's slot
	queueEndName = paths.QueueEndPrefix + "%d"
	queueMTU     = 65535

	// pathClass is the number of the class that holds all others where a path is
	// shared. Classes of endpoints have the numbers of their rows, below it; those
	// of tenants are above it.
	pathClass   = 0x0fff
	tenantClass = 0x1000
	// draining is by how much a queue is faster than a limit: what waits is what
	// the meter let pass, and no more.
	draining = 1.01

	leastQuantum, mostQuantum = 1600, 60000
)

var queueHooks = []attach.Hook{{Name: "leave_queue", Type: ebpf.AttachTCXIngress, Anchor: link.Head, Handle: 4}}

// class is one of a queue; rates in bits a second.
type class struct {
	parent     uint16 // 0 for none
	rate, most float64
}

// queue is a path's pair of interfaces, by their indexes.
type queue struct{ begin, end int }

// classes are those that a path needs, by their number.
func (b *rows) classes(path pathRow, groups [][]*endpointRow) map[uint16]class {
	all := map[uint16]class{}
	whole := orInfinite(shaping * path.capacity)
	weights := 0.0
	for _, members := range groups {
		weights += members[0].tenant.weight(path.number)
	}
	top := uint16(0)
	if path.capacity > 0 {
		top = pathClass
		all[top] = class{rate: whole, most: whole}
	}
	for _, members := range groups {
		tenant := members[0].tenant
		most := min(whole, draining*orInfinite(tenant.ceilings[path.number]))
		part := min(most, whole*tenant.weight(path.number)/weights)
		parent := top
		if !math.IsInf(most, 1) {
			parent = uint16(tenantClass + tenant.number)
			all[parent] = class{parent: top, rate: part, most: most}
		}
		for _, member := range members {
			most := min(most, draining*orInfinite(member.maxRate))
			if !math.IsInf(most, 1) {
				all[uint16(member.Number)] = class{parent: parent, rate: min(part/float64(len(members)), most), most: most}
			}
		}
	}
	return all
}

// level is 0 for classes in which no others are.
func level(number uint16) int {
	switch {
	case number == pathClass:
		return 2
	case number >= tenantClass:
		return 1
	}
	return 0
}

// makeQueues makes the queues that are needed, or changes their classes. Where it
// cannot, limits hold all the same, by dropping alone.
func (g *Guard) makeQueues() (queues map[uint32]queue, queued map[uint32]uint32) {
	queues, queued = map[uint32]queue{}, map[uint32]uint32{}
	groups := g.rows.groups()
	for _, path := range g.rows.paths {
		classes := g.rows.classes(path, groups)
		if len(classes) == 0 {
			continue
		}
		made, err := makeQueue(path.number, classes)
		if err == nil {
			err = g.queueEnds.Attach(made.end, g.loaded.Value.leaveQueue.LeaveQueue)
		}
		if err != nil {
			g.options.Log.Error(err, "failed to make the queue of a path; packets beyond a limit are dropped instead of queued", "path", path.name)
			continue
		}
		queues[path.number] = made
		for number := range classes {
			if level(number) == 0 {
				queued[uint32(number)] |= guard.Queued << path.number
			}
		}
	}
	return queues, queued
}

func makeQueue(slot uint32, classes map[uint16]class) (queue, error) {
	begin, err := queueDevice(slot)
	if err != nil {
		return queue{}, err
	}
	end, err := netlink.LinkByName(fmt.Sprintf(queueEndName, slot))
	if err != nil {
		return queue{}, fmt.Errorf("finding the end of a queue: %w", err)
	}
	if err := shape(begin, classes); err != nil {
		return queue{}, fmt.Errorf("shaping %s: %w", begin.Attrs().Name, err)
	}
	return queue{begin.Attrs().Index, end.Attrs().Index}, nil
}

// queueDevice finds the pair of interfaces or makes it. They have no addresses.
func queueDevice(slot uint32) (netlink.Link, error) {
	name, end := fmt.Sprintf(queueName, slot), fmt.Sprintf(queueEndName, slot)
	found, err := netlink.LinkByName(name)
	if err == nil {
		return found, nil
	}
	if !errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, fmt.Errorf("looking for %s: %w", name, err)
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU, attributes.TxQLen = name, queueMTU, queueLength
	pair := netlink.NewVeth(attributes)
	pair.PeerName, pair.PeerMTU = end, queueMTU
	if err := netlink.LinkAdd(pair); err != nil {
		return nil, fmt.Errorf("making %s: %w", name, err)
	}
	for _, name := range []string{name, end} {
		if err := prepare(name); err != nil {
			return nil, errors.Join(fmt.Errorf("preparing %s: %w", name, err), netlink.LinkDel(pair))
		}
	}
	return netlink.LinkByName(name)
}

// queueLength is in packets: the meter keeps queues short, by time. Linux 7.3 refuses
// 65,535.
const queueLength = 32_767

// prepare sets an interface up that sends nothing of its own.
func prepare(name string) error {
	device, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	const none = 1 // IN6_ADDR_GEN_MODE_NONE
	if err := netlink.LinkSetIP6AddrGenMode(device, none); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return err
	}
	return errors.Join(netlink.LinkSetARPOff(device), netlink.LinkSetUp(device))
}

// shape gives the interface exactly these classes. What belongs to none passes.
func shape(device netlink.Link, classes map[uint16]class) error {
	index := device.Attrs().Index
	root := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT})
	if err := netlink.QdiscAdd(root); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("adding HTB: %w", err)
	}
	known, err := netlink.ClassList(device, 0)
	if err != nil {
		return fmt.Errorf("listing classes: %w", err)
	}
	present, failed := map[uint16]bool{}, error(nil)
	for height := range 3 { // what is in a class goes before it, and comes after it
		for _, old := range known {
			attributes := old.Attrs()
			number := uint16(attributes.Handle)
			wanted, stays := classes[number]
			switch {
			case level(number) != height:
			case stays && attributes.Parent == wanted.parentHandle():
				present[number] = true
			default:
				failed = errors.Join(failed, netlink.ClassDel(old))
			}
		}
	}
	for height := 2; height >= 0; height-- {
		for number, class := range classes {
			if level(number) != height {
				continue
			}
			value := class.value(index, number)
			if present[number] {
				failed = errors.Join(failed, netlink.ClassChange(value))
			} else {
				failed = errors.Join(failed, netlink.ClassAdd(value))
			}
		}
	}
	return failed
}

func (c *class) parentHandle() uint32 {
	if c.parent == 0 {
		return netlink.HANDLE_ROOT
	}
	return netlink.MakeHandle(1, c.parent)
}

func (c *class) value(index int, number uint16) netlink.Class {
	parent := c.parentHandle()
	if c.parent == 0 {
		parent = netlink.MakeHandle(1, 0)
	}
	return netlink.NewHtbClass(
		netlink.ClassAttrs{LinkIndex: index, Parent: parent, Handle: netlink.MakeHandle(1, number)},
		netlink.HtbClassAttrs{
			Rate: uint64(c.rate), Ceil: uint64(c.most), Buffer: bufferOf(c.rate), Cbuffer: bufferOf(c.most),
			Quantum: uint32(min(max(c.rate/8/500, leastQuantum), mostQuantum)),
		})
}

// setShared gives the guarded endpoints so much of a shared path, when others use it
// too.
func (g *Guard) setShared(slot uint32, rate float64) error {
	queue, here := g.queues[slot]
	if !here {
		return nil
	}
	whole := class{rate: rate, most: rate}
	if err := g.loaded.Value.netlink.ClassChange(whole.value(queue.begin, pathClass)); err != nil {
		return fmt.Errorf("changing what guarded endpoints get of a path: %w", err)
	}
	return nil
}

// bufferOf is what may leave at once: a millisecond's worth, and a packet.
func bufferOf(rate float64) uint32 { return uint32(rate/8/1000) + leastQuantum }

// writeQueues lets the programs know the queues: first what comes out of them, and
// then where they begin.
func (g *Guard) writeQueues(queues map[uint32]queue) error {
	ends := map[uint32]uint32{}
	for _, path := range g.rows.paths {
		if queue, here := queues[path.number]; here {
			ends[uint32(queue.end)] = uint32(path.nic)
		}
	}
	if err := entries.Replace(g.loaded.Value.maps().QueueEnds, ends, "the ends of queues"); err != nil {
		return err
	}
	for slot := range uint32(slots) {
		if err := g.loaded.Value.maps().Queues.Put(slot, uint32(queues[slot].begin)); err != nil {
			return fmt.Errorf("writing the queue of a path: %w", err)
		}
	}
	return nil
}

// detachQueues forgets the programs on ends of queues that are gone, whose pinned links
// would stay behind.
func (g *Guard) detachQueues() error {
	ends := map[int]bool{}
	for _, queue := range g.queues {
		ends[queue.end] = true
	}
	attached, failed := g.queueEnds.Attached()
	for index := range attached {
		if !ends[index] {
			failed = errors.Join(failed, g.queueEnds.Detach(index))
		}
	}
	return failed
}

// removeQueues removes the queues that are not among these.
func removeQueues(kept map[uint32]queue) error {
	var failed error
	for slot := range uint32(slots) {
		if _, keep := kept[slot]; keep {
			continue
		}
		device, err := netlink.LinkByName(fmt.Sprintf(queueName, slot))
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err == nil {
			err = netlink.LinkDel(device)
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return fmt.Errorf("removing queues: %w", failed)
	}
	return nil
}
