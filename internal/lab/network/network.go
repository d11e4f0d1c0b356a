// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Spec says what Build makes.
type Spec struct {
	// Name is the first part of the name of each namespace: small letters and
	// digits only.
	Name string
	// Nodes is their number; they are called node1, node2 and so on.
	Nodes int
	// Paths are the names of the paths, and of each node's NICs. The routes
	// between the nodes' pods, or the overlay that carries them, use the first one alone.
	Paths []string
	// LinkMbit shapes each NIC in both directions, with a queue of 20 ms and the round
	// trip of PathDelays; 0 means no limit.
	LinkMbit int
	// PathMbit are the rates of paths that have another one, by name.
	PathMbit map[string]int
	// PathDelays are the one-way delays of the paths that have one, by name: the
	// round trip between two nodes takes twice as long. Such paths work as long as
	// the process that built the network.
	PathDelays map[string]time.Duration
	// Shared are groups of paths that run over one NIC of each node: LinkMbit is what
	// they have together, and they lose their carrier together. Such paths have no
	// delay.
	Shared [][]string
	// PodsPerNode are made by Build; they are called pod-1-1 (node 1, pod 1) and
	// so on. AddPod makes further ones.
	PodsPerNode int
	// GuestsPerNode are made by Build too: pods whose sockets are not the node's to
	// see, as those of a virtual machine. They are called guest-1-1 and so on;
	// AddGuest makes further ones.
	GuestsPerNode int
	// IPv4 and IPv6 are the versions to configure; neither means both.
	IPv4, IPv6 bool
	// Overlay is how nodes carry their pods' packets to each other; natively unless it
	// says something else.
	Overlay Overlay
	// Racks are how many subnets each path has, joined by a router of the path: node1 is in
	// the first rack, node2 in the second, and so on, and round. 0 means one subnet, and
	// no router. Without an overlay the first path's router knows the pods too.
	Racks int
	// World makes a host outside of the cluster, to which each path has a gateway.
	World bool
	// NoRoutes leaves the ways between the nodes' pods to a program of whoever uses the
	// network.
	NoRoutes bool
}

// Network is a cluster's network: a fabric with one switch for each path, nodes
// with one NIC for each path, and pods whose networks are routed natively or carried in
// an overlay.
type Network struct {
	Spec   Spec
	Fabric *Namespace
	Nodes  []*Node
	// Routers of the paths, by name, where there are racks or a world.
	Routers map[string]*Namespace
	// World is outside; nil where there is none.
	World *World

	delayers map[string]*delayer // by path
	blocks   blocks
}

// Node is a node of the network.
type Node struct {
	*Namespace
	// Number counts from 1. Its name as a node is node1, node2 and so on.
	Number int
	// Pods in the order in which they were added.
	Pods []*Pod
	// TunnelEnd is the address that the node has in an overlay, where it is not that on the first
	// path.
	TunnelEnd string
	// TunnelIndex is that which its device in an overlay is to have when it is made; 0 for any.
	TunnelIndex int

	network *Network
	mu      sync.Mutex
	added   int
}

// Pod is a pod's network namespace; its interface is eth0.
type Pod struct {
	// Namespace is where the pod's sockets are, which an agent of its node finds by
	// the pod unless Forwarder is set.
	*Namespace
	// Forwarder is set for a guest: the namespace of the pod, in which no socket is,
	// and which forwards to the guest behind it.
	Forwarder *Namespace
	// PodName is the name of the pod; Name is that of the namespace.
	PodName string
	Node    *Node
	// HostInterface is the node's end of eth0.
	HostInterface string
	// IPv4 and IPv6 are the pod's addresses; one is empty if not configured.
	IPv4, IPv6 string
	// moved are the destinations to which MoveTo has changed the nodes' routes.
	moved []string
}

var validName = regexp.MustCompile(`^[a-z0-9]{1,16}$`)

// Build makes a network, or nothing: after an error it removes what it made.
func Build(spec Spec) (*Network, error) {
	if !validName.MatchString(spec.Name) {
		return nil, fmt.Errorf("network name %q: must be 1 to 16 small letters and digits", spec.Name)
	}
	if spec.Nodes < 1 || spec.Nodes > 200 || len(spec.Paths) < 1 || len(spec.Paths) > 70 {
		return nil, fmt.Errorf("network %s: needs 1 to 200 nodes and 1 to 70 paths", spec.Name)
	}
	if !spec.IPv4 && !spec.IPv6 {
		spec.IPv4, spec.IPv6 = true, true
	}
	for path, delay := range spec.PathDelays {
		if delay < 0 || !slices.Contains(spec.Paths, path) {
			return nil, fmt.Errorf("network %s: a delay of %s for path %q: there is no such path, or no such delay", spec.Name, delay, path)
		}
	}
	if err := errors.Join(spec.checkShared(), spec.checkOverlay(), spec.checkRacks()); err != nil {
		return nil, err
	}
	network := &Network{Spec: spec, Routers: map[string]*Namespace{}, delayers: map[string]*delayer{}}
	if err := network.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("building network %s: %w", spec.Name, err), network.Delete())
	}
	return network, nil
}

func (n *Network) build() error {
	if err := n.buildFabric(); err != nil {
		return err
	}
	if err := n.buildRouters(); err != nil {
		return err
	}
	for number := 1; number <= n.Spec.Nodes; number++ {
		if err := n.buildNode(number); err != nil {
			return err
		}
	}
	if err := errors.Join(n.startDelays(), n.buildWorld(), n.leadToPods()); err != nil {
		return err
	}
	for _, node := range n.Nodes {
		if err := node.restoreRoutes(); err != nil {
			return err
		}
		for i := 1; i <= n.Spec.PodsPerNode; i++ {
			if _, err := node.AddPod(fmt.Sprintf("pod-%d-%d", node.Number, i)); err != nil {
				return err
			}
		}
		for i := 1; i <= n.Spec.GuestsPerNode; i++ {
			if _, err := node.AddGuest(fmt.Sprintf("guest-%d-%d", node.Number, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *Network) buildFabric() (err error) {
	if n.Fabric, err = New(n.Spec.Name + "-fabric"); err != nil {
		return err
	}
	for _, path := range n.Spec.Paths {
		if n.delayed(path) || n.Spec.trunk(path) != path {
			continue
		}
		for rack := min(1, n.Spec.Racks); rack <= n.Spec.Racks; rack++ {
			if err := n.addBridge(bridge(path, rack)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *Network) delayed(path string) bool { return n.Spec.PathDelays[path] > 0 }

// startDelays puts a switch that delays in the place of a bridge.
func (n *Network) startDelays() error {
	for path, delay := range n.Spec.PathDelays {
		if !n.delayed(path) {
			continue
		}
		delayer, err := newDelayer(n.Fabric, n.ports(path), delay)
		if err != nil {
			return fmt.Errorf("delaying path %s: %w", path, err)
		}
		n.delayers[path] = delayer
	}
	return nil
}

var nodeSysctls = [][2]string{
	{"net.ipv4.ip_forward", "1"},
	{"net.ipv6.conf.all.forwarding", "1"},
}

func (n *Network) buildNode(number int) error {
	namespace, err := New(fmt.Sprintf("%s-node%d", n.Spec.Name, number))
	if err != nil {
		return err
	}
	node := &Node{Namespace: namespace, Number: number, network: n}
	n.Nodes = append(n.Nodes, node)
	return node.equip()
}

// equip gives the node's namespace its settings and NICs.
func (node *Node) equip() error {
	for _, setting := range nodeSysctls {
		if err := node.Sysctl(setting[0], setting[1]); err != nil {
			return err
		}
	}
	for i := range node.network.Spec.Paths {
		if err := node.attach(i); err != nil {
			return err
		}
	}
	return nil
}

// attach plugs the node's NIC on a path into the fabric.
func (node *Node) attach(i int) error {
	n, path := node.network, node.network.Spec.Paths[i]
	var addresses []string
	if n.Spec.IPv4 {
		addresses = append(addresses, node.Address(i, 4)+"/24")
	}
	if n.Spec.IPv6 {
		addresses = append(addresses, node.Address(i, 6)+"/64")
	}
	port := node.port(path)
	mbit, other := n.Spec.PathMbit[path]
	if !other {
		mbit = n.Spec.LinkMbit
	}
	options := Options{Mbit: mbit, RoundTrip: 2 * n.Spec.PathDelays[path], AddressesA: addresses}
	if trunk := n.Spec.trunk(path); trunk != path {
		return node.share(path, trunk, addresses)
	}
	if err := Connect(node.Namespace, path, n.Fabric, port, options); err != nil {
		return err
	}
	if n.delayed(path) {
		return nil
	}
	if err := n.setMaster(port, bridge(path, node.rack())); err != nil {
		return err
	}
	return node.leadToRacks(i)
}

// port is the fabric's end of the node's NIC on a path.
func (node *Node) port(path string) string {
	return node.network.Spec.trunk(path) + "." + strconv.Itoa(node.Number)
}

// NodeName is the name that the node has in its cluster.
func (node *Node) NodeName() string { return fmt.Sprintf("node%d", node.Number) }

// Address is the node's address on the path with this index, for IP version 4
// or 6, without a prefix length.
func (node *Node) Address(path, version int) string {
	rack := node.rack()
	switch {
	case version == 6 && rack > 0:
		return fmt.Sprintf("fd00:%d:0:%d::%d", 20+path, rack, node.Number)
	case version == 6:
		return fmt.Sprintf("fd00:%d::%d", 20+path, node.Number)
	}
	return fmt.Sprintf("10.%d.%d.%d", 20+path, rack, node.Number)
}

// PodCIDR is the range of the node's pods' addresses.
func (node *Node) PodCIDR(version int) string {
	if version == 6 {
		return fmt.Sprintf("fd00:244:%d::/64", node.Number)
	}
	return fmt.Sprintf("10.244.%d.0/24", node.Number)
}

// restoreRoutes adds the routes to the other nodes' pods, as a CNI does.
func (node *Node) restoreRoutes() error {
	if node.network.Spec.NoRoutes {
		return nil
	}
	if node.network.Spec.Overlay.laid() {
		return node.layOverlay()
	}
	for _, other := range node.network.Nodes {
		if other == node {
			continue
		}
		for _, version := range node.network.Versions() {
			route := Route{Destination: other.PodCIDR(version), Gateway: node.podGateway(other, version), Interface: node.network.Spec.Paths[0]}
			if err := node.AddRoute(route); err != nil {
				return err
			}
		}
	}
	return nil
}

// Versions are the IP versions that the network has.
func (n *Network) Versions() (versions []int) {
	if n.Spec.IPv4 {
		versions = append(versions, 4)
	}
	if n.Spec.IPv6 {
		versions = append(versions, 6)
	}
	return versions
}

// gateways are the node's addresses towards its pods, the same for each.
var gateways = map[int]string{4: "169.254.1.1", 6: "fe80::1"}

// freeAddress is the next host number that no pod has, so that one of a pod that is gone
// is given again as late as possible.
func (node *Node) freeAddress() int {
	const first, count = 2, 253
	for i := range count {
		host := (node.added-1+i)%count + first
		taken := func(pod *Pod) bool {
			return pod.IPv4 == fmt.Sprintf("10.244.%d.%d", node.Number, host) || pod.IPv6 == fmt.Sprintf("fd00:244:%d::%x", node.Number, host)
		}
		if !slices.ContainsFunc(node.Pods, taken) {
			return host
		}
	}
	return first + count // Connect will say that this is no address
}

// AddPod adds a pod to the node. Its name must be unique in the network.
func (node *Node) AddPod(name string) (*Pod, error) {
	return node.add(name, (*Pod).connect)
}

func (node *Node) add(name string, connect func(*Pod) error) (*Pod, error) {
	node.mu.Lock()
	defer node.mu.Unlock()
	namespace, err := New(node.network.Spec.Name + "-pod-" + name)
	if err != nil {
		return nil, err
	}
	node.added++
	pod := &Pod{Namespace: namespace, PodName: name, Node: node, HostInterface: fmt.Sprintf("veth%d", node.added)}
	host := node.freeAddress()
	if node.network.Spec.IPv4 {
		pod.IPv4 = fmt.Sprintf("10.244.%d.%d", node.Number, host)
	}
	if node.network.Spec.IPv6 {
		pod.IPv6 = fmt.Sprintf("fd00:244:%d::%x", node.Number, host)
	}
	if err := connect(pod); err != nil {
		return nil, errors.Join(fmt.Errorf("adding pod %s: %w", name, err), pod.delete())
	}
	node.Pods = append(node.Pods, pod)
	return pod, nil
}

// Remove deletes the pod, and its node forgets it.
func (p *Pod) Remove() error {
	p.Node.mu.Lock()
	defer p.Node.mu.Unlock()
	p.Node.Pods = slices.DeleteFunc(p.Node.Pods, func(other *Pod) bool { return other == p })
	return errors.Join(p.forgetMoves(), p.delete())
}

func (p *Pod) delete() error {
	err := p.Namespace.Delete()
	if p.Forwarder != nil {
		err = errors.Join(err, p.Forwarder.Delete())
	}
	return err
}

// Address is the pod's address of an IP version.
func (p *Pod) Address(version int) string {
	if version == 6 {
		return p.IPv6
	}
	return p.IPv4
}

func (p *Pod) connect() error {
	var podAddresses, hostAddresses []string
	for _, version := range p.Node.network.Versions() {
		podAddresses = append(podAddresses, hostRoute(p.Address(version), version))
		hostAddresses = append(hostAddresses, hostRoute(gateways[version], version))
	}
	options := Options{MTU: p.mtu(), AddressesA: podAddresses, AddressesB: hostAddresses}
	if err := Connect(p.Namespace, "eth0", p.Node.Namespace, p.HostInterface, options); err != nil {
		return err
	}
	for _, version := range p.Node.network.Versions() {
		if err := p.addRoutes(version); err != nil {
			return err
		}
	}
	return p.limitPackets()
}

// mtu leaves room for what an overlay puts around packets.
func (p *Pod) mtu() int { return nicMTU - p.Node.network.Spec.Overlay.overhead() }

// limitPackets keeps the shapers from cutting packets.
func (p *Pod) limitPackets() error {
	if spec := p.Node.network.Spec; spec.LinkMbit > 0 || len(spec.PathMbit) > 0 {
		return p.limitGSO("eth0", shapedGSO)
	}
	return nil
}

// addRoutes adds the pod's routes, and the node's route to the pod.
func (p *Pod) addRoutes(version int) error {
	if err := addDefaultRoute(p.Namespace, gateways[version], version); err != nil {
		return err
	}
	return p.addNodeRoute(version)
}

// addDefaultRoute routes all by eth0 to a gateway there.
func addDefaultRoute(namespace *Namespace, gateway string, version int) error {
	toGateway := Route{Destination: hostRoute(gateway, version), Interface: "eth0"}
	if err := namespace.AddRoute(toGateway); err != nil {
		return err
	}
	return namespace.AddRoute(Route{Destination: everything[version], Gateway: gateway, Interface: "eth0"})
}

func (p *Pod) addNodeRoute(version int) error {
	toPod := Route{Destination: hostRoute(p.Address(version), version), Interface: p.HostInterface, Source: p.Node.Address(0, version)}
	return p.Node.AddRoute(toPod)
}

var everything = map[int]string{4: "0.0.0.0/0", 6: "::/0"}

func hostRoute(address string, version int) string {
	if version == 6 {
		return address + "/128"
	}
	return address + "/32"
}

// Pod finds a pod by its name, or returns nil.
func (n *Network) Pod(name string) *Pod {
	for _, node := range n.Nodes {
		for _, pod := range node.Pods {
			if pod.PodName == name {
				return pod
			}
		}
	}
	return nil
}

// SetNIC sets a node's NIC up or down from the node's side, as an admin would.
// The kernel drops routes of a NIC that goes down; when it comes back they are
// added again, as a CNI would.
func (n *Network) SetNIC(node *Node, path string, up bool) error {
	if !up {
		return node.SetDown(path)
	}
	if err := node.SetUp(path); err != nil {
		return err
	}
	if err := node.leadToRacks(slices.Index(n.Spec.Paths, path)); err != nil {
		return err
	}
	if path == n.Spec.Paths[0] {
		return node.restoreRoutes()
	}
	return nil
}

// SetCarrier gives a node's NIC a carrier or takes it away, as a cable or a
// switch would.
func (n *Network) SetCarrier(node *Node, path string, up bool) error {
	if up {
		return n.Fabric.SetUp(node.port(path))
	}
	return n.Fabric.SetDown(node.port(path))
}

// NICCounters reads the counters of a node's NICs, by path.
func (n *Network) NICCounters(node *Node) (map[string]Counters, error) {
	counters := make(map[string]Counters, len(n.Spec.Paths))
	for _, path := range n.Spec.Paths {
		value, err := node.Counters(path)
		if err != nil {
			return nil, err
		}
		counters[path] = value
	}
	return counters, nil
}

// Delete removes the network, and kills what still runs in it.
func (n *Network) Delete() (err error) {
	for _, delayer := range n.delayers {
		err = errors.Join(err, delayer.close())
	}
	clear(n.delayers)
	err = errors.Join(err, n.blocks.close())
	for _, node := range n.Nodes {
		for _, pod := range node.Pods {
			pod.closeHandle()
			if pod.Forwarder != nil {
				pod.Forwarder.closeHandle()
			}
		}
		node.closeHandle()
	}
	for _, router := range n.Routers {
		router.closeHandle()
	}
	if n.Fabric != nil {
		n.Fabric.closeHandle()
	}
	return errors.Join(err, Teardown(n.Spec.Name))
}
