// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// Builder builds the model of each round. It is safe for concurrent use.
type Builder struct {
	mu          sync.Mutex
	registry    *Registry
	preferences Preferences
	owners      owners
	round       uint64
	granted     grants
	exempt      map[types.UID]int // interfaces of exempt pods
	accounts    accounts
}

// NewBuilder takes the registry over.
func NewBuilder(registry *Registry) *Builder {
	return &Builder{registry: registry, granted: newGrants(), accounts: newAccounts()}
}

// Sources are what a model is made of.
type Sources struct {
	Plan       *v1alpha1.MPTCPNodePlan // nil where there is none
	Resolution paths.Resolution
	// NodeAddresses are the InternalIPs of the Node.
	NodeAddresses []netip.Addr
	// PodRanges are the addresses of the node's pods.
	PodRanges []netip.Prefix
	Peers     []paths.Peer
	// Outside are destinations outside of the cluster.
	Outside []paths.Outside
}

// Build makes a model, with the interfaces of endpoints as they were found last. An
// error that says that numbers have run out comes with a model of the rest.
func (b *Builder) Build(from Sources) (*Model, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.round++
	m := &Model{Plan: from.Plan, Paths: pathsOf(from), Peers: peersOf(b.owners.settle(from)), round: b.round, exempt: b.exempt}
	m.NodeAddresses, m.PodRanges, m.Outside = from.NodeAddresses, from.PodRanges, outsideOf(from.Outside)
	m.Tunnels = from.Resolution.Tunnels
	for _, uplink := range from.Resolution.Uplinks {
		m.Uplinks = append(m.Uplinks, uplink.Index)
	}
	planned := planEndpoints(from.Plan)
	b.preferences = b.preferences.assign(planned)
	m.Preferences = b.preferences
	for i := range planned {
		class, _ := m.Preferences.Class(&planned[i])
		m.Endpoints = append(m.Endpoints, Endpoint{
			PlanEndpoint: &planned[i], Addresses: addressesOf(&planned[i]), Class: class,
		})
	}
	err := b.number(m)
	b.grantBefore(m)
	if b.registry.pinned != nil && b.registry.isEmpty() {
		err = errors.Join(err, b.registry.Remove())
	}
	return m, err
}

// Find is the model with what a look at the pods found, and true where an endpoint's
// interface or addresses are others than before. One that is not found for a moment
// keeps the interface that it had. complete is false where the look did not see
// everything.
func (b *Builder) Find(model *Model, look endpoints.Snapshot, complete bool) (_ *Model, changed bool, failed error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := *model
	found.Look, found.LookComplete = look, complete
	found.Endpoints = append([]Endpoint(nil), model.Endpoints...)
	for i := range found.Endpoints {
		found.Endpoints[i].place(look)
	}
	found.refuseNICs()
	found.freeTaken()
	b.grant(&found)
	for i := range found.Endpoints {
		endpoint, before := &found.Endpoints[i], &model.Endpoints[i]
		changed = changed || endpoint.Ingress() != before.Ingress() || !slices.Equal(endpoint.Addresses, before.Addresses)
		if b.registry.pinned != nil {
			failed = errors.Join(failed, b.registry.found(string(endpoint.UID), endpoint.HostInterface, b.flagsOf(endpoint)))
		}
	}
	found.Unclaimed = unclaimed(&found)
	b.findExempt(&found)
	return &found, changed, failed
}

// place notes what a look found of an endpoint.
func (e *Endpoint) place(look endpoints.Snapshot) {
	at, err := look.Find(string(e.UID))
	if err != nil {
		e.Found, e.Missing = nil, err
		return
	}
	e.Found, e.Missing, e.Contradiction = &at, nil, at.Contradiction
	e.proven = true
	e.HostInterface, e.Others, e.Bridged = at.HostIndex, at.Others, at.MasterIndex != 0 || at.Tagged
}

// refuseNICs takes the node's own NICs from VMs for which somebody gives them.
func (m *Model) refuseNICs() {
	nics := slices.Clone(m.Uplinks)
	for i := range m.Paths {
		nics = append(nics, m.Paths[i].Found.Index)
	}
	for i := range m.Endpoints {
		if e := &m.Endpoints[i]; e.Guest != nil && e.Found != nil && slices.Contains(nics, e.HostInterface) {
			e.Missing = fmt.Errorf("%w: %s is a NIC of the node", endpoints.ErrGuestNotFound, e.Found.HostInterface)
			e.Found, e.HostInterface, e.Others, e.Bridged = nil, 0, nil, false
		}
	}
}

// freeTaken takes interfaces from endpoints that were not found where they are others'
// now.
func (m *Model) freeTaken() {
	taken := map[int]bool{}
	for i := range m.Endpoints {
		if m.Endpoints[i].Found != nil {
			for _, index := range m.Endpoints[i].Interfaces() {
				taken[index] = true
			}
		}
	}
	for i := range m.Endpoints {
		if endpoint := &m.Endpoints[i]; endpoint.Found == nil && taken[endpoint.HostInterface] {
			endpoint.HostInterface, endpoint.Bridged = 0, false
		}
	}
}

// unclaimed are the look's interfaces that belong to nothing of the model.
func unclaimed(m *Model) []endpoints.HostEnd {
	left := maps.Clone(m.Look.HostEnds)
	for index := range m.Known() {
		delete(left, index)
	}
	return slices.SortedFunc(maps.Values(left), func(a, b endpoints.HostEnd) int { return cmp.Compare(a.Index, b.Index) })
}

// findExempt remembers where exempt pods were found: they keep it when they are not found
// for a moment.
func (b *Builder) findExempt(m *Model) {
	b.exempt = map[types.UID]int{}
	if m.NewPods() == nil {
		return
	}
	for _, pod := range m.NewPods().Exempt {
		b.exempt[pod.UID] = m.exempt[pod.UID]
		if at, err := m.Look.Find(string(pod.UID)); err == nil {
			b.exempt[pod.UID] = at.HostIndex
		}
	}
}

// Applied says that all parts have brought the node to a model: they refer to none of
// its retired numbers any more, but for those of endpoints where some are draining. It
// is true where that made numbers free.
func (b *Builder) Applied(model *Model, draining bool) (freed bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.registry.release(model.round, draining)
}

// ErrPinsRemoved says that somebody else removed what agents pin.
var ErrPinsRemoved = errors.New("the pins were removed by somebody else")

// Lost returns ErrPinsRemoved where the numbers that were given are pinned no more: whoever
// removed them removed the programs' links and maps too.
func (b *Builder) Lost() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.registry.pinned == nil || b.registry.isPinned() {
		return nil
	}
	return fmt.Errorf("%w: %s is gone", ErrPinsRemoved, b.registry.pins.Directory())
}

// Close leaves the numbers as they are.
func (b *Builder) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.registry.Close()
}

func planEndpoints(plan *v1alpha1.MPTCPNodePlan) []v1alpha1.PlanEndpoint {
	if plan == nil {
		return nil
	}
	return plan.Spec.Endpoints
}

func pathsOf(from Sources) (all []Path) {
	capacities := map[string]int64{}
	if from.Plan != nil {
		for _, path := range from.Plan.Spec.Paths {
			capacities[string(path.Name)] = path.Capacity
		}
	}
	for _, path := range from.Resolution.Paths {
		all = append(all, Path{
			Name: path.Name, Interface: path.Index, Up: path.Usable, Capacity: capacities[path.Name], Found: path,
		})
	}
	return all
}

func peersOf(peers []paths.Peer) (all []Peer) {
	for _, peer := range peers {
		all = append(all, Peer{Peer: peer})
	}
	return all
}

func addressesOf(endpoint *v1alpha1.PlanEndpoint) []netip.Addr { return parse(endpoint.Addresses) }

func parse(texts []string) (addresses []netip.Addr) {
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, address.Unmap())
		}
	}
	return addresses
}

// number gives everything its number. What finds none is left out.
func (b *Builder) number(m *Model) error {
	nics, tenants := m.NICs(), tenantsOf(m)
	if b.registry.pinned == nil && len(nics) == 0 && len(m.Endpoints) == 0 && !b.registry.isPinned() {
		return nil
	}
	if err := b.registry.load(); err != nil {
		return err
	}
	err := b.registry.bind(m.Peers)
	names := func(kind Kind, count int, name func(i int) string) map[string]*registryEntry {
		wanted := make([]string, count)
		for i := range wanted {
			wanted[i] = name(i)
		}
		assigned, left, failed := b.registry.assign(kind, wanted, m.round)
		if left > 0 && kind != KindPeer && kind != KindAccount { // the rest works without them
			failed = fmt.Errorf("a node can tell %d %s apart: %d more are left out", ranges[kind].count, ranges[kind].what, left)
		}
		err = errors.Join(err, failed)
		return assigned
	}
	byPath := names(KindPath, len(nics), func(i int) string { return nics[i].Name })
	steered := m.Steered()
	if len(nics) == 0 {
		steered = nil // nothing is sent to them by number
	}
	byPeer := names(KindPeer, len(steered), func(i int) string { return steered[i].Name })
	byUID := names(KindEndpoint, len(m.Endpoints), func(i int) string { return string(m.Endpoints[i].UID) })
	byTenant := names(KindTenant, len(tenants), func(i int) string { return tenants[i] })
	b.numberAccounts(m, nics, names)
	m.takePathNumbers(byPath)
	if len(nics) > 0 {
		m.takePeerNumbers(byPeer)
	}
	m.takeEndpointNumbers(byUID, byTenant)
	m.Retired = b.registry.retiredNumbers()
	return err
}

// numberAccounts gives accounts their numbers, where there are NICs at which to count.
func (b *Builder) numberAccounts(m *Model, nics []Path, names func(Kind, int, func(int) string) map[string]*registryEntry) {
	of, wanted := accountsOf(m), []string(nil)
	if len(nics) > 0 {
		wanted = b.accounts.names(of, b.registry.entries[KindAccount])
	}
	by := names(KindAccount, len(wanted), func(i int) string { return wanted[i] })
	if len(nics) > 0 {
		m.takeAccountNumbers(of, by)
	}
}

func tenantsOf(m *Model) (names []string) {
	seen := map[string]bool{}
	for i := range m.Endpoints {
		if namespace := m.Endpoints[i].Namespace; !seen[namespace] {
			seen[namespace] = true
			names = append(names, namespace)
		}
	}
	return names
}

// takePathNumbers leaves paths without a number without their NIC.
func (m *Model) takePathNumbers(by map[string]*registryEntry) {
	for i := range m.Paths {
		path := &m.Paths[i]
		if entry := by[path.Name]; entry != nil {
			path.Number = uint8(entry.Number)
		} else {
			path.Interface, path.Up = 0, false
		}
	}
}

// takePeerNumbers leaves out peers without a number: the rest works.
func (m *Model) takePeerNumbers(by map[string]*registryEntry) {
	all := len(m.Peers)
	m.Peers = slices.DeleteFunc(m.Peers, func(peer Peer) bool { return by[peer.Name] == nil })
	m.Unsteered = all - len(m.Peers)
	for i := range m.Peers {
		m.Peers[i].Number = by[m.Peers[i].Name].Number
	}
	m.Outside = slices.DeleteFunc(m.Outside, func(outside Outside) bool { return by[outside.Name] == nil })
	for i := range m.Outside {
		m.Outside[i].Number = by[m.Outside[i].Name].Number
	}
}

// takeEndpointNumbers leaves an endpoint without a number the number 0.
func (m *Model) takeEndpointNumbers(by, byTenant map[string]*registryEntry) {
	for i := range m.Endpoints {
		endpoint := &m.Endpoints[i]
		if entry := by[string(endpoint.UID)]; entry != nil {
			endpoint.Number, endpoint.HostInterface, endpoint.Bridged = entry.Number, int(entry.Interface), entry.Flags&bridged != 0
			endpoint.proven = entry.Flags&proven != 0
		}
	}
	m.Tenants = map[string]uint32{}
	for name, entry := range byTenant {
		m.Tenants[name] = entry.Number
	}
}

// Validate catches what the kernel's maps could not hold.
func (m *Model) Validate() error {
	for i := range m.Endpoints {
		if m.Endpoints[i].Number == 0 {
			return fmt.Errorf("endpoint %s has no number: a node can have %d endpoints", m.Endpoints[i].FullName(), MaxEndpoints)
		}
	}
	return nil
}
