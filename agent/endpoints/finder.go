// SPDX-License-Identifier: Apache-2.0

// Package endpoints finds the network namespace and the host's interface of a
// pod, by the pod's addresses and with no help from the cluster network.
package endpoints

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

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
}

// Finder looks through the network namespaces of the machine. It belongs to the
// network namespace of the thread that calls it, and is not safe for concurrent
// use.
type Finder struct {
	directories []string
	processes   string // where /proc is mounted
}

// NewFinder looks in these directories, where container runtimes mount network
// namespaces, and at those of all processes of the proc file system mounted at
// processes.
func NewFinder(directories []string, processes string) *Finder {
	return &Finder{directories: directories, processes: processes}
}

// Snapshot is what one look at the machine showed.
type Snapshot struct {
	byAddress map[netip.Addr]Endpoint
	byInode   map[uint64]string
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

// add takes the endpoint with the newest interface where several have an address:
// the namespace of a pod may outlast the pod.
func (s Snapshot) add(address netip.Addr, found Endpoint) {
	if before, ok := s.byAddress[address]; !ok || before.HostIndex < found.HostIndex {
		s.byAddress[address] = found
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
	snapshot := Snapshot{byAddress: map[netip.Addr]Endpoint{}, byInode: map[uint64]string{}}
	seen := map[uint64]bool{}
	var failed error
	for _, path := range f.candidates() {
		if err := look(path, hosts, seen, snapshot); err != nil && !isGone(err) {
			failed = errors.Join(failed, err)
		}
	}
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
		found, _ := filepath.Glob(filepath.Join(directory, "*")) // the pattern is valid
		paths = append(paths, found...)
	}
	processes, _ := filepath.Glob(filepath.Join(f.processes, "[0-9]*", "ns", "net"))
	return append(paths, processes...)
}

// look adds what the namespace holds, if an interface of this node leads to it.
func look(path string, hosts map[int][]netlink.Link, seen map[uint64]bool, snapshot Snapshot) error {
	inode, err := inodeOf(path)
	if err != nil {
		return err
	}
	if seen[inode] {
		return nil
	}
	seen[inode] = true
	namespace, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("opening the network namespace %s: %w", path, err)
	}
	defer namespace.Close()
	number, err := netlink.GetNetNsIdByFd(int(namespace))
	if err != nil {
		return fmt.Errorf("asking for the number of the network namespace %s: %w", path, err)
	}
	if len(hosts[number]) == 0 {
		return nil
	}
	snapshot.byInode[inode] = path
	return lookInside(Endpoint{Inode: inode, Path: path}, namespace, hosts[number], snapshot)
}

func inodeOf(path string) (uint64, error) {
	var status unix.Stat_t
	if err := unix.Stat(path, &status); err != nil {
		return 0, fmt.Errorf("looking at %s: %w", path, err)
	}
	return status.Ino, nil
}

// lookInside reads the addresses of the interfaces that are joined to hosts.
func lookInside(found Endpoint, namespace netns.NsHandle, hosts []netlink.Link, snapshot Snapshot) error {
	handle, err := netlink.NewHandleAt(namespace, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("entering the network namespace %s: %w", found.Path, err)
	}
	defer handle.Close()
	links, err := whole(handle.LinkList)
	if err != nil {
		return fmt.Errorf("listing the interfaces of %s: %w", found.Path, err)
	}
	for _, link := range links {
		host := otherEnd(link, hosts)
		if host == nil {
			continue
		}
		found.Interface, found.HostInterface, found.HostIndex = link.Attrs().Name, host.Attrs().Name, host.Attrs().Index
		addresses, err := whole(func() ([]netlink.Addr, error) { return handle.AddrList(link, netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("listing the addresses of %s: %w", found.Path, err)
		}
		for _, address := range addresses {
			if ip, ok := netip.AddrFromSlice(address.IP); ok && !ip.IsLinkLocalUnicast() {
				snapshot.add(ip.Unmap(), found)
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
