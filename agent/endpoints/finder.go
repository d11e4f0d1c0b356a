// SPDX-License-Identifier: Apache-2.0

// Package endpoints finds the network namespace and the host's interface of a
// pod, by the pod's addresses and with no help from the cluster network.
package endpoints

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrNotFound means that no network namespace beside this node's has the
// address: the pod is not there yet, or no longer.
var ErrNotFound = errors.New("no network namespace on this node has the pod's address")

// Endpoint is a pod's interface as its node sees it.
type Endpoint struct {
	// Inode identifies the pod's network namespace while that exists.
	Inode uint64
	// Path can be opened to enter the namespace.
	Path string
	// Interface is the pod's own name of its interface.
	Interface string
	// HostInterface is the node's end of it.
	HostInterface string
	// HostIndex is the index of HostInterface.
	HostIndex int
	// MasterIndex is that of the bridge or switch which has HostInterface; 0 where
	// none has.
	MasterIndex int
}

// Finder looks through the network namespaces of the machine. It belongs to the
// network namespace of the thread that calls it, and is not safe for concurrent
// use.
type Finder struct {
	directories []string
	processes   string // where /proc is mounted
	inside      map[uint64]inside
}

// inside is what a look into a network namespace showed. It holds for a while as
// long as the same interfaces of the node lead there: each look takes several
// requests, and each new pod has all others looked at.
type inside struct {
	at      time.Time
	number  int    // this namespace's for that one
	ends    []ends // of the interfaces that lead there
	address map[netip.Addr]Endpoint
}

// ends are the indexes of both ends of a pair of interfaces.
type ends struct{ host, other, master int }

// lookInsideAgain is after how long a namespace is looked into again, although no
// interface changed.
const lookInsideAgain = 15 * time.Second

// NewFinder looks in these directories, where container runtimes mount network
// namespaces, and at those of all processes of the proc file system mounted at
// processes.
func NewFinder(directories []string, processes string) *Finder {
	return &Finder{directories: directories, processes: processes, inside: map[uint64]inside{}}
}

// HostEnd is an interface of the node whose other end is in another network namespace.
type HostEnd struct {
	Index int
	Name  string
	// NamespaceID is the node's number for that namespace, IFLA_LINK_NETNSID.
	NamespaceID int
	// MasterIndex is that of the bridge or switch which has it; 0 where none has.
	MasterIndex int
}

// Snapshot is what one look at the machine showed.
type Snapshot struct {
	// HostEnds are the interfaces that lead to other network namespaces, by their
	// indexes: those of pods, and NICs that are made of such pairs.
	HostEnds  map[int]HostEnd
	byAddress map[netip.Addr]Endpoint
	byInode   map[uint64]string
}

// NewSnapshot is of what is known: endpoints by their addresses, and the paths of
// network namespaces by their inode numbers.
func NewSnapshot(byAddress map[netip.Addr]Endpoint, byInode map[uint64]string) Snapshot {
	return Snapshot{byAddress: byAddress, byInode: byInode}
}

// Find returns the endpoint that has one of the addresses.
func (s Snapshot) Find(addresses []netip.Addr) (Endpoint, error) {
	for _, address := range addresses {
		if endpoint, ok := s.byAddress[address]; ok {
			return endpoint, nil
		}
	}
	return Endpoint{}, fmt.Errorf("%w: %v", ErrNotFound, addresses)
}

// Path returns a path that can be opened to enter the network namespace with
// this inode number, if it is one of this node's pods.
func (s Snapshot) Path(inode uint64) (string, bool) {
	path, ok := s.byInode[inode]
	return path, ok
}

// newest takes the endpoint with the newest interface where several have an address:
// the namespace of a pod may outlast the pod.
func newest(all map[netip.Addr]Endpoint, address netip.Addr, found Endpoint) {
	if before, ok := all[address]; !ok || before.HostIndex < found.HostIndex {
		all[address] = found
	}
}

// Look finds all endpoints of this node. Namespaces that vanish meanwhile are
// left out, as are those that hang on another node's interfaces.
func (f *Finder) Look() (Snapshot, error) {
	links, err := whole(netlink.LinkList)
	if err != nil {
		return Snapshot{}, fmt.Errorf("listing the node's interfaces: %w", err)
	}
	hosts := hostEnds(links)
	snapshot := Snapshot{HostEnds: map[int]HostEnd{}, byAddress: map[netip.Addr]Endpoint{}, byInode: map[uint64]string{}}
	for id, ends := range hosts {
		for _, end := range ends {
			attributes := end.Attrs()
			snapshot.HostEnds[attributes.Index] = HostEnd{attributes.Index, attributes.Name, id, attributes.MasterIndex}
		}
	}
	seen := map[uint64]bool{}
	var failed error
	for _, path := range f.candidates() {
		if err := f.look(path, hosts, seen, snapshot); err != nil && !isGone(err) {
			failed = errors.Join(failed, err)
		}
	}
	maps.DeleteFunc(f.inside, func(inode uint64, _ inside) bool { return !seen[inode] })
	return snapshot, failed
}

// hostEnds are the node's interfaces whose other end is in another namespace, by
// this namespace's number for that one.
func hostEnds(links []netlink.Link) map[int][]netlink.Link {
	hosts := map[int][]netlink.Link{}
	for _, link := range links {
		if attributes := link.Attrs(); attributes.NetNsID >= 0 && attributes.ParentIndex > 0 {
			hosts[attributes.NetNsID] = append(hosts[attributes.NetNsID], link)
		}
	}
	return hosts
}

// candidates are files that stand for network namespaces, mounted ones before
// those of processes, because they live longer.
func (f *Finder) candidates() (paths []string) {
	for _, directory := range f.directories {
		for _, name := range namesIn(directory) {
			paths = append(paths, filepath.Join(directory, name))
		}
	}
	for _, name := range namesIn(f.processes) {
		if _, err := strconv.ParseUint(name, 10, 32); err == nil {
			paths = append(paths, filepath.Join(f.processes, name, "ns", "net"))
		}
	}
	return paths
}

// namesIn lists what a directory holds; one that cannot be read holds nothing. It
// looks at the directory alone: each process costs enough as it is.
func namesIn(directory string) []string {
	opened, err := os.Open(directory)
	if err != nil {
		return nil
	}
	defer opened.Close()
	names, _ := opened.Readdirnames(-1) // what was read until an error
	slices.Sort(names)
	return names
}

// look adds what the namespace holds, if an interface of this node leads to it.
func (f *Finder) look(path string, hosts map[int][]netlink.Link, seen map[uint64]bool, snapshot Snapshot) error {
	inode, err := inodeOf(path)
	if err != nil {
		return err
	}
	if seen[inode] {
		return nil
	}
	seen[inode] = true
	known, err := f.into(inode, path, hosts)
	if len(known.ends) > 0 { // also where it could not be looked into: it is there
		snapshot.byInode[inode] = path
	}
	for address, found := range known.address {
		found.Path = path
		newest(snapshot.byAddress, address, found)
	}
	return err
}

// into looks into a namespace, or tells what the last look showed.
func (f *Finder) into(inode uint64, path string, hosts map[int][]netlink.Link) (inside, error) {
	if known, ok := f.inside[inode]; ok && time.Since(known.at) < lookInsideAgain && slices.Equal(known.ends, endsOf(hosts[known.number])) {
		return known, nil
	}
	namespace, err := netns.GetFromPath(path)
	if err != nil {
		return inside{}, fmt.Errorf("opening the network namespace %s: %w", path, err)
	}
	defer namespace.Close()
	now := inside{at: time.Now(), address: map[netip.Addr]Endpoint{}}
	if now.number, err = netlink.GetNetNsIdByFd(int(namespace)); err != nil {
		return inside{}, fmt.Errorf("asking for the number of the network namespace %s: %w", path, err)
	}
	if now.ends = endsOf(hosts[now.number]); len(now.ends) == 0 {
		return now, nil
	}
	err = lookInside(Endpoint{Inode: inode}, path, namespace, hosts[now.number], now.address)
	if err == nil && len(now.address) > 0 {
		f.inside[inode] = now
	}
	return now, err
}

func endsOf(links []netlink.Link) (all []ends) {
	for _, link := range links {
		all = append(all, ends{link.Attrs().Index, link.Attrs().ParentIndex, link.Attrs().MasterIndex})
	}
	return all
}

func inodeOf(path string) (uint64, error) {
	var status unix.Stat_t
	if err := unix.Stat(path, &status); err != nil {
		return 0, fmt.Errorf("looking at %s: %w", path, err)
	}
	return status.Ino, nil
}

// lookInside reads the addresses of the interfaces that are joined to hosts.
func lookInside(found Endpoint, path string, namespace netns.NsHandle, hosts []netlink.Link, all map[netip.Addr]Endpoint) error {
	handle, err := netlink.NewHandleAt(namespace, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("entering the network namespace %s: %w", path, err)
	}
	defer handle.Close()
	links, err := whole(handle.LinkList)
	if err != nil {
		return fmt.Errorf("listing the interfaces of %s: %w", path, err)
	}
	for _, link := range links {
		host := otherEnd(link, hosts)
		if host == nil {
			continue
		}
		found.Interface, found.HostInterface = link.Attrs().Name, host.Attrs().Name
		found.HostIndex, found.MasterIndex = host.Attrs().Index, host.Attrs().MasterIndex
		addresses, err := whole(func() ([]netlink.Addr, error) { return handle.AddrList(link, netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("listing the addresses of %s: %w", path, err)
		}
		for _, address := range addresses {
			if ip, ok := netip.AddrFromSlice(address.IP); ok && !ip.IsLinkLocalUnicast() {
				newest(all, ip.Unmap(), found)
			}
		}
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

func otherEnd(link netlink.Link, hosts []netlink.Link) netlink.Link {
	at := slices.IndexFunc(hosts, func(host netlink.Link) bool {
		return host.Attrs().ParentIndex == link.Attrs().Index && host.Attrs().Index == link.Attrs().ParentIndex
	})
	if at < 0 {
		return nil
	}
	return hosts[at]
}

// isGone is true when a process or a namespace ended while it was looked at.
func isGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) ||
		errors.Is(err, os.ErrPermission)
}
