// SPDX-License-Identifier: Apache-2.0

// Package endpoints finds the interface of a VM on its host, and the network namespace and
// the host's interface of a pod, from
// outside and by what the pod cannot write: the cgroups of its processes, the network
// namespaces that these are in, the node's interfaces that lead there, and the node's
// routes. Nothing is read inside a pod's namespace.
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
	"golang.org/x/sys/unix"
)

// ErrNotFound means that no interface of this node is known to be the pod's: the pod is
// not there yet, or no longer.
var ErrNotFound = errors.New("no interface on this node leads to a network namespace of the pod's processes, and no route to its addresses")

// Endpoint is a pod's interface as its node sees it.
type Endpoint struct {
	// Inode identifies the pod's network namespace while that exists; 0 where Path is
	// empty.
	Inode uint64
	// Path can be opened to enter the namespace; empty where nothing opens it, as where
	// the pod moved its interface to a namespace that it made.
	Path string
	// HostInterface is the node's end of it.
	HostInterface string
	// HostIndex is the index of HostInterface.
	HostIndex int
	// MasterIndex is that of the bridge or switch which has HostInterface; 0 where
	// none has.
	MasterIndex int
	// Others are the indexes of further interfaces that may be the one which has the
	// pod's addresses: nothing that the pod cannot write tells them apart.
	Others []int
	// RoutedBy is the interface of the node to which its routes to the pod's addresses lead,
	// where that leads to no pod itself; 0 where it is HostInterface or a bridge that has it.
	RoutedBy int
	// Tagged: routes to a VM lead to a VLAN's interface on HostInterface. Packets then seem to
	// come from that one.
	Tagged bool
	// Disputed are addresses of the pod whose routes lead to another pod.
	Disputed []netip.Addr
	// Contradiction is why it is not sure what belongs to the pod; nil where it is.
	Contradiction error
}

// HostEnd is an interface of the node whose other end is in another network namespace.
type HostEnd struct {
	Index int
	Name  string
	// NamespaceID is the node's number for that namespace, IFLA_LINK_NETNSID.
	NamespaceID int
	// MasterIndex is that of the bridge or switch which has it; 0 where none has.
	MasterIndex int
	// Type is the kernel's name for this kind of interface.
	Type string
	// MTU in bytes.
	MTU int
}

// IsOfPair is true of the kinds that container runtimes make for pods: not of NICs and
// overlays that were moved here from another namespace.
func (e HostEnd) IsOfPair() bool { return e.Type == "veth" || e.Type == "netkit" }

// Options say where to look.
type Options struct {
	// NamespaceDirectories are where container runtimes mount network namespaces.
	NamespaceDirectories []string
	// ProcPath is where a proc file system with all processes of the machine is mounted.
	ProcPath string
	// CgroupPath is where the machine's cgroup file systems are mounted.
	CgroupPath string
}

// Finder looks for pods. It belongs to the network namespace of the thread that calls
// it, and is not safe for concurrent use.
type Finder struct {
	options Options
	cgroups cgroups
	read    map[string]reading // by UID
	files   map[string]file    // by path
	ends    map[int]HostEnd    // of the last look
}

// reading is what was read of a pod. It holds for a while, as long as the same
// interfaces of the node lead to its namespaces.
type reading struct {
	evidence
	at        time.Time
	ends      []HostEnd   // that lead to its namespaces
	processes map[int]int // one in each of them, by NamespaceID
}

// file is where a network namespace is mounted.
type file struct {
	inode uint64
	id    int // NamespaceID; -1 where no interface of the node leads there
}

// readAgain is after how long a pod that was found is read again, although the same
// interfaces lead to it.
const readAgain = 15 * time.Second

// NewFinder makes one that has not looked yet.
func NewFinder(options Options) *Finder {
	return &Finder{options: options, cgroups: cgroups{root: options.CgroupPath}, read: map[string]reading{}, files: map[string]file{}}
}

// Snapshot is what one look at the machine showed.
type Snapshot struct {
	// HostEnds are the interfaces that lead to other network namespaces, by their
	// indexes: those of pods, and NICs that are made of such pairs.
	HostEnds map[int]HostEnd
	// Owners are the UIDs of the pods that HostEnds belong to, by index, also where the
	// pod's addresses are behind another one.
	Owners map[int]string

	pods    map[string]Endpoint // by UID
	errors  map[string]error    // of those that were not found
	byInode map[uint64]string
}

// NewSnapshot is of what is known: endpoints by their UIDs, and the paths of network
// namespaces by their inode numbers.
func NewSnapshot(pods map[string]Endpoint, byInode map[uint64]string) Snapshot {
	return Snapshot{pods: pods, byInode: byInode}
}

// Find returns the endpoint of the pod with this UID.
func (s Snapshot) Find(uid string) (Endpoint, error) {
	if endpoint, ok := s.pods[uid]; ok {
		return endpoint, nil
	}
	if err := s.errors[uid]; errors.Is(err, ErrGuestNotFound) {
		return Endpoint{}, err
	}
	return Endpoint{}, errors.Join(ErrNotFound, s.errors[uid])
}

// Path returns a path that can be opened to enter the network namespace with
// this inode number, if it is one of this node's pods.
func (s Snapshot) Path(inode uint64) (string, bool) {
	path, ok := s.byInode[inode]
	return path, ok
}

// look is one look of a finder, from the node's network namespace.
type look struct {
	*Finder
	handle *netlink.Handle
	ends   map[int]HostEnd
	byID   map[int][]HostEnd // ends by NamespaceID
	same   bool              // ends are those of the last look
	links  *links
	judged map[int]HostEnd // ends, and the interfaces of VMs
	seen   map[string]evidence
}

// Look looks for these pods. What a pod does can cost no more than a bounded part of
// a look, and takes nothing from what it shows of other pods.
func (f *Finder) Look(pods []Pod) (Snapshot, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return Snapshot{}, fmt.Errorf("opening rtnetlink: %w", err)
	}
	defer handle.Close()
	l := &look{Finder: f, handle: handle}
	listErr := l.listEnds()
	if listErr != nil && !errors.Is(listErr, netlink.ErrDumpInterrupted) {
		return Snapshot{}, fmt.Errorf("listing the node's interfaces: %w", listErr)
	}
	l.same, f.ends, f.cgroups.listed = maps.Equal(l.ends, f.ends), l.ends, false
	seen, kept := map[string]evidence{}, map[string]reading{}
	l.seen = seen
	l.judged = maps.Clone(l.ends)
	for i := range pods {
		if pods[i].Guest != nil {
			seen[pods[i].UID] = l.readGuest(&pods[i], l.judged)
			continue
		}
		reading := l.readPod(&pods[i])
		kept[pods[i].UID], seen[pods[i].UID] = reading, reading.evidence
		if pods[i].Yields && len(f.cgroups.roots) > 0 {
			seen[pods[i].UID] = evidence{inside: reading.inside}
		}
	}
	f.read = kept
	l.readFiles()
	judge := newJudge(pods, seen, l.judged)
	judge.links = l.links
	claims := judge.decide()
	snapshot := l.snapshot(pods, claims)
	snapshot.Owners = maps.Clone(judge.owners)
	maps.DeleteFunc(snapshot.Owners, func(_ int, owner string) bool { return owner == "" })
	for uid, claim := range claims {
		if claim.err != nil { // that may be over soon
			delete(f.read, uid)
		}
	}
	return snapshot, listErr
}

// listEnds lists the interfaces that lead to other namespaces. Where changes disturb
// that again and again some may be missing.
func (l *look) listEnds() (err error) {
	all, err := linksOf(l.handle)
	l.links, l.ends = &links{all: all}, hostEnds(all)
	l.byID = map[int][]HostEnd{}
	for _, end := range l.ends {
		l.byID[end.NamespaceID] = append(l.byID[end.NamespaceID], end)
	}
	return err
}

// HostEnds lists the interfaces of the handle's network namespace that lead to others, by
// their indexes. With netlink.ErrDumpInterrupted some may be missing.
func HostEnds(handle *netlink.Handle) (map[int]HostEnd, error) {
	links, err := linksOf(handle)
	return hostEnds(links), err
}

// linksOf lists all interfaces. With netlink.ErrDumpInterrupted some may be missing.
func linksOf(handle *netlink.Handle) ([]netlink.Link, error) {
	links, err := handle.LinkList()
	for range 9 {
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
		links, err = handle.LinkList()
	}
	return links, err
}

func hostEnds(links []netlink.Link) map[int]HostEnd {
	ends := map[int]HostEnd{}
	for _, link := range links {
		a := link.Attrs()
		if a.NetNsID >= 0 && a.ParentIndex > 0 {
			ends[a.Index] = HostEnd{a.Index, a.Name, a.NetNsID, a.MasterIndex, link.Type(), a.MTU}
		}
	}
	return ends
}

// readPod reads what the node shows of a pod, or tells what the last look read.
func (l *look) readPod(pod *Pod) reading {
	before, ok := l.read[pod.UID]
	if ok && len(before.ends) > 0 && time.Since(before.at) < readAgain && slices.Equal(before.ends, l.endsOf(before.processes)) {
		return before
	}
	now := reading{at: time.Now(), evidence: evidence{routes: l.routesTo(pod.Addresses)}}
	uid := pod.UID
	if pod.GroupUID != "" {
		uid = pod.GroupUID
	}
	if group, ok := l.cgroups.find(uid); ok {
		now.processes = l.processes(group)
	}
	now.ends = l.endsOf(now.processes)
	for _, end := range now.ends {
		now.inside = append(now.inside, end.Index)
	}
	return now
}

// endsOf are the interfaces that lead to these namespaces.
func (l *look) endsOf(namespaces map[int]int) (ends []HostEnd) {
	for id := range namespaces {
		ends = append(ends, l.byID[id]...)
	}
	slices.SortFunc(ends, func(a, b HostEnd) int { return a.Index - b.Index })
	return ends
}

// processes finds the namespaces of a pod's processes that interfaces of the node lead
// to, and a process in each; where there is none, those of their threads.
func (l *look) processes(group string) (found map[int]int) {
	groups := below(group)
	for _, file := range []string{"cgroup.procs", "cgroup.threads", "tasks"} {
		found = map[int]int{}
		left := mostProcesses
		for _, group := range groups {
			l.processesIn(group, file, &left, found)
		}
		if len(found) > 0 {
			return found
		}
	}
	return found
}

// processesIn believes of a process only what was so while it was in the group: its
// number may be another's now.
func (l *look) processesIn(group, file string, left *int, found map[int]int) {
	added := map[int]int{}
	for _, process := range processesOf(group, file) {
		if *left--; *left < 0 {
			break
		}
		id, err := l.handle.GetNetNsIdByPid(process)
		if err == nil && len(l.byID[id]) > 0 && found[id] == 0 && added[id] == 0 {
			added[id] = process
		}
	}
	if len(added) == 0 {
		return
	}
	still := processesOf(group, file)
	for id, process := range added {
		if slices.Contains(still, process) {
			found[id] = process
		}
	}
}

// routesTo are the node's routes to addresses. Those that announcements on a link made
// are no word of the cluster network's.
func (l *look) routesTo(addresses []netip.Addr) map[netip.Addr]route {
	found := map[netip.Addr]route{}
	for _, address := range addresses {
		routes, err := l.handle.RouteGetWithOptions(address.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
		if err != nil || len(routes) != 1 { // there is none
			continue
		}
		r := routes[0]
		if r.Protocol == unix.RTPROT_RA || r.Protocol == unix.RTPROT_REDIRECT {
			continue
		}
		exact, fallback := false, true
		if r.Dst != nil {
			ones, bits := r.Dst.Mask.Size()
			exact, fallback = ones == bits && r.Gw == nil && r.Via == nil, ones == 0
		}
		found[address] = route{r.LinkIndex, exact, fallback, r.Type == unix.RTN_LOCAL}
	}
	return found
}

// readFiles brings what is known of mounted namespaces up to date.
func (l *look) readFiles() {
	files := map[string]file{}
	for _, directory := range l.options.NamespaceDirectories {
		for _, name := range namesIn(directory) {
			path := filepath.Join(directory, name)
			if known, err := l.readFile(path); err == nil { // else it is gone, or none
				files[path] = known
			}
		}
	}
	l.files = files
}

func (l *look) readFile(path string) (file, error) {
	inode, err := inodeOf(path)
	if err != nil {
		return file{}, err
	}
	if known, ok := l.files[path]; ok && known.inode == inode && l.same {
		return known, nil
	}
	opened, err := os.Open(path)
	if err != nil {
		return file{}, fmt.Errorf("opening a network namespace: %w", err)
	}
	defer opened.Close()
	id, err := l.handle.GetNetNsIdByFd(int(opened.Fd()))
	return file{inode, id}, err
}

// namesIn lists what a directory holds; one that cannot be read holds nothing.
func namesIn(directory string) []string {
	opened, err := os.Open(directory)
	if err != nil {
		return nil
	}
	defer opened.Close()
	names, _ := opened.Readdirnames(-1) // what was read until an error
	return names
}

func inodeOf(path string) (uint64, error) {
	var status unix.Stat_t
	if err := unix.Stat(path, &status); err != nil {
		return 0, fmt.Errorf("looking at %s: %w", path, err)
	}
	return status.Ino, nil
}

// snapshot is what the judgement says, with the files of the pods' namespaces.
func (l *look) snapshot(pods []Pod, claims map[string]*claim) Snapshot {
	s := Snapshot{HostEnds: l.ends, pods: map[string]Endpoint{}, errors: map[string]error{}, byInode: map[uint64]string{}}
	paths := map[int]string{} // by NamespaceID
	for path, file := range l.files {
		if len(l.byID[file.id]) > 0 {
			s.byInode[file.inode] = path
			if before, ok := paths[file.id]; !ok || path < before {
				paths[file.id] = path
			}
		}
	}
	for i := range pods {
		uid := pods[i].UID
		claim := claims[uid]
		if len(claim.interfaces) == 0 {
			s.errors[uid] = claim.err
			if pods[i].Guest != nil && !errors.Is(claim.err, ErrGuestNotFound) {
				s.errors[uid] = errors.Join(ErrGuestNotFound, claim.err)
			}
			continue
		}
		found := l.endpoint(claim, paths, l.read[uid].processes)
		if pods[i].Guest != nil { // what is behind it is nobody's to enter
			found.Inode, found.Path, found.Tagged = 0, "", l.isTagged(&found, l.seen[uid].routes)
			s.pods[uid] = found
			continue
		}
		routes := l.read[uid].routes
		found.RoutedBy, found.Tagged = l.routedBy(&found, routes), l.isTagged(&found, routes)
		s.pods[uid] = found
		if found.Path != "" {
			s.byInode[found.Inode] = found.Path
		}
	}
	return s
}

// endpoint is what a pod's claim makes of it. A mounted namespace lives longer than a
// process.
func (l *look) endpoint(claim *claim, paths map[int]string, processes map[int]int) Endpoint {
	end := l.judged[claim.interfaces[0]]
	found := Endpoint{
		HostInterface: end.Name, HostIndex: end.Index, MasterIndex: end.MasterIndex,
		Others: claim.interfaces[1:], Disputed: claim.disputed, Contradiction: claim.err,
	}
	path, mounted := paths[end.NamespaceID]
	if process, ok := processes[end.NamespaceID]; ok && !mounted {
		path = filepath.Join(l.options.ProcPath, strconv.Itoa(process), "ns", "net")
	}
	if inode, err := inodeOf(path); err == nil {
		found.Inode, found.Path = inode, path
	}
	return found
}

// isTagged: what is routed to it leaves by a VLAN's interface on its own.
func (l *look) isTagged(found *Endpoint, routes map[netip.Addr]route) bool {
	for _, route := range routes {
		if slices.Contains(l.links.beneath(route.index)[1:], found.HostIndex) {
			return true
		}
	}
	return false
}

func (l *look) routedBy(found *Endpoint, routes map[netip.Addr]route) int {
	for _, route := range routes {
		if _, isEnd := l.ends[route.index]; !isEnd && route.index != found.MasterIndex {
			return route.index
		}
	}
	return 0
}
