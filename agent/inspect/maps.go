// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/events"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/internal/agentapi"
)

// What the programs' maps hold.
type (
	attachment = endpoint.FromEndpointAttachment
	counters   = endpoint.FromEndpointCounters
	subflowKey = endpoint.FromEndpointSubflowKey
	subflow    = endpoint.FromEndpointSubflow
	chain      = endpoint.FromEndpointChain
)

// Pins reads the maps that are pinned in a directory, whoever pinned them. It is
// safe for concurrent use.
type Pins struct {
	path     string
	registry string // the agent's directory of pins
	names    *Directory

	// forms are those of chains by the number of their map: a chain that is there
	// never changes.
	mutex sync.Mutex
	forms map[ebpf.MapID]chainForm
	// paths are the names of paths by their numbers, as they were read last.
	paths  [node.MaxPaths]string
	readAt time.Time
}

// chainForm is what must be known of a chain to name what belongs to its rules.
type chainForm struct {
	rules  uint8
	limits map[uint32]uint8 // the rule of each limit
}

var (
	_ Source       = (*Pins)(nil)
	_ events.Names = (*Pins)(nil)
)

// NewPins reads from this directory on a BPF file system, and from the registry of
// numbers in the agent's directory. Nothing has to be there yet.
func NewPins(path, registry string, names *Directory) *Pins {
	return &Pins{path: path, registry: registry, names: names, forms: map[ebpf.MapID]chainForm{}}
}

// Exist says whether maps are pinned.
func (p *Pins) Exist() bool {
	_, err := os.Stat(filepath.Join(p.path, "subflows"))
	return err == nil
}

// Rules lists the rules of each endpoint in their order, sorted by endpoint; none
// where nothing is pinned.
func (p *Pins) Rules() (rules []agentapi.Rule, err error) {
	err = p.with(func(m *openedMaps) error {
		rules, err = m.rules()
		return err
	})
	return rules, err
}

// Subflows lists the remembered subflows, sorted by endpoint, connection and ends;
// none where nothing is pinned.
func (p *Pins) Subflows() (subflows []agentapi.Subflow, err error) {
	err = p.with(func(m *openedMaps) error {
		subflows, err = m.shownSubflows()
		return err
	})
	return subflows, err
}

func (p *Pins) with(read func(*openedMaps) error) error {
	m := &openedMaps{Pins: p}
	err := m.open()
	switch {
	case errors.Is(err, os.ErrNotExist):
		err = nil
	case err == nil:
		err = read(m)
	}
	return errors.Join(err, m.close())
}

// openedMaps are those that are pinned.
type openedMaps struct {
	*Pins
	attachments, overflow, chains, counters, subflows, steady *ebpf.Map
}

func (m *openedMaps) open() error {
	for name, into := range map[string]**ebpf.Map{
		"attachments": &m.attachments, "attachments_overflow": &m.overflow, "chains": &m.chains,
		"chain_counters": &m.counters, "subflows": &m.subflows, "steady_subflows": &m.steady,
	} {
		if err := m.openOne(name, into); err != nil {
			return err
		}
	}
	return nil
}

func (m *openedMaps) openOne(name string, into **ebpf.Map) (err error) {
	*into, err = ebpf.LoadPinnedMap(filepath.Join(m.path, name), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("opening map %s: %w", filepath.Join(m.path, name), err)
	}
	return nil
}

func (m *openedMaps) close() error {
	var failed error
	for _, opened := range []*ebpf.Map{m.attachments, m.overflow, m.chains, m.counters, m.subflows, m.steady} {
		if opened != nil {
			failed = errors.Join(failed, opened.Close())
		}
	}
	return failed
}

// Endpoint implements events.Names.
func (p *Pins) Endpoint(id uint32) string { return p.names.Endpoint(id) }

// Rule implements events.Names.
func (p *Pins) Rule(endpoint uint32, rule uint8) (policy, name string) {
	return p.names.Rule(endpoint, rule)
}

// pathsKept is for how long the names of paths count as known.
const pathsKept = time.Second

// Path implements events.Names.
func (p *Pins) Path(number uint8) string {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if time.Since(p.readAt) > pathsKept {
		if names, err := node.ReadNames(p.registry); err == nil {
			p.paths, p.readAt = names.Paths, time.Now()
		}
	}
	if int(number) >= len(p.paths) {
		return ""
	}
	return p.paths[number]
}

func (m *openedMaps) rules() ([]agentapi.Rule, error) {
	attached, err := m.attached()
	if err != nil {
		return nil, err
	}
	var rules []agentapi.Rule
	for _, at := range attached {
		found, err := m.rulesOf(at)
		if err != nil {
			return nil, err
		}
		rules = append(rules, found...)
	}
	slices.SortStableFunc(rules, func(a, b agentapi.Rule) int { return strings.Compare(a.Endpoint, b.Endpoint) })
	return rules, nil
}

func (m *openedMaps) rulesOf(at attachment) ([]agentapi.Rule, error) {
	form, err := m.form(at.Chain)
	if err != nil {
		return nil, err
	}
	var counted counters
	if err := m.counters.Lookup(uint32(endpoint.Word(at.Chain).Row()), &counted); err != nil {
		return nil, fmt.Errorf("reading counters: %w", err)
	}
	rules := make([]agentapi.Rule, form.rules)
	for i := range rules {
		c := counted.Rule[i]
		rules[i] = agentapi.Rule{Endpoint: m.names.endpointAt(at.Endpoint, at.Interface), Hits: c.Hits, Bytes: c.Bytes, Acted: c.Acted}
		rules[i].Policy, rules[i].Name = m.names.Rule(at.Endpoint, uint8(i))
	}
	return rules, nil
}

// attached lists the interfaces that have a chain, which are few of all slots.
func (m *openedMaps) attached() (list []attachment, err error) {
	keep := func(_ []uint32, all []attachment) {
		for _, one := range all {
			if one.Interface != 0 && one.Chain != 0 {
				list = append(list, one)
			}
		}
	}
	if err := readBatches(m.attachments, keep); err != nil {
		return nil, fmt.Errorf("reading attachments: %w", err)
	}
	more, err := readHash[uint32, attachment](m.overflow)
	if err != nil {
		return nil, fmt.Errorf("reading attachments: %w", err)
	}
	for _, entry := range more {
		keep(nil, []attachment{entry.value})
	}
	return list, nil
}

// attachedTo lists those of these interfaces that have a chain.
func (m *openedMaps) attachedTo(interfaces []int) (list []attachment, err error) {
	for _, index := range interfaces {
		var one attachment
		err := m.attachments.Lookup(uint32(index)%m.attachments.MaxEntries(), &one)
		if err == nil && one.Interface != uint32(index) {
			err = m.overflow.Lookup(uint32(index), &one)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("reading attachments: %w", err)
		}
		if err == nil && one.Chain != 0 {
			list = append(list, one)
		}
	}
	return list, nil
}

// form reads what the chain of a word is like.
func (m *openedMaps) form(word uint64) (chainForm, error) {
	var id ebpf.MapID
	if err := m.chains.Lookup(uint32(endpoint.Word(word).Slot()), &id); errors.Is(err, ebpf.ErrKeyNotExist) {
		return chainForm{}, nil // it was replaced just now
	} else if err != nil {
		return chainForm{}, fmt.Errorf("reading chains: %w", err)
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if form, ok := m.forms[id]; ok {
		return form, nil
	}
	var content chain
	inner, err := ebpf.NewMapFromID(id)
	if err == nil {
		err = errors.Join(inner.Lookup(uint32(0), &content), inner.Close())
	}
	if errors.Is(err, os.ErrNotExist) {
		return chainForm{}, nil
	}
	if err != nil {
		return chainForm{}, fmt.Errorf("reading a chain: %w", err)
	}
	form := formOf(&content)
	if len(m.forms) >= int(m.chains.MaxEntries()) {
		clear(m.forms)
	}
	m.forms[id] = form
	return form, nil
}

func formOf(content *chain) chainForm {
	form := chainForm{rules: uint8(min(int(content.Rules), len(content.Rule))), limits: map[uint32]uint8{}}
	for i := range form.rules {
		rule := &content.Rule[i]
		first := min(int(rule.FirstAction), len(content.Action))
		for _, action := range content.Action[first:min(first+int(rule.Actions), len(content.Action))] {
			if action.Kind == endpoint.ActionRateLimit {
				form.limits[action.Limit] = i
			}
		}
	}
	return form
}

func (m *openedMaps) shownSubflows() ([]agentapi.Subflow, error) {
	entries, err := readHash[subflowKey, subflow](m.subflows)
	if err != nil {
		return nil, fmt.Errorf("reading subflows: %w", err)
	}
	attached, err := m.attached()
	if err != nil {
		return nil, err
	}
	of := byEndpoint(attached)
	subflows := make([]agentapi.Subflow, 0, len(entries))
	for i := range entries {
		at, ok := of[entries[i].key.Endpoint]
		if !ok {
			continue // its endpoint is gone
		}
		shown, err := m.show(at, &entries[i].key, &entries[i].value)
		if err != nil {
			return nil, err
		}
		subflows = append(subflows, shown)
	}
	slices.SortFunc(subflows, compareSubflows)
	return subflows, nil
}

func byEndpoint(attached []attachment) map[uint32]attachment {
	of := map[uint32]attachment{}
	for _, at := range attached {
		of[at.Endpoint] = at
	}
	return of
}

// EachSubflow visits what Subflows returns without holding all of it in memory, in no
// order, and a subflow twice where others come and go meanwhile. The visitor must not
// keep the pointer.
func (p *Pins) EachSubflow(visit func(*agentapi.Subflow)) error {
	return p.with(func(m *openedMaps) error {
		attached, err := m.attached()
		if err != nil {
			return err
		}
		return m.eachSubflow(attached, visit)
	})
}

// EachSubflowOf is EachSubflow of the endpoints on these interfaces alone. It does not go
// through the 65,536 places that interfaces have, which takes milliseconds.
func (p *Pins) EachSubflowOf(interfaces []int, visit func(*agentapi.Subflow)) error {
	return p.with(func(m *openedMaps) error {
		attached, err := m.attachedTo(interfaces)
		if err != nil || len(attached) == 0 {
			return err
		}
		return m.eachSubflow(attached, visit)
	})
}

func (m *openedMaps) eachSubflow(attached []attachment, visit func(*agentapi.Subflow)) error {
	of := byEndpoint(attached)
	var failed error
	err := readBatches(m.subflows, func(keys []subflowKey, values []subflow) {
		for i := range keys {
			at, ok := of[keys[i].Endpoint]
			if !ok || failed != nil {
				continue
			}
			var shown agentapi.Subflow
			if shown, failed = m.show(at, &keys[i], &values[i]); failed == nil {
				visit(&shown)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("reading subflows: %w", err)
	}
	return failed
}

func compareSubflows(a, b agentapi.Subflow) int {
	return cmp.Or(strings.Compare(a.Endpoint, b.Endpoint), cmp.Compare(a.Token, b.Token),
		a.Local.Compare(b.Local), a.Remote.Compare(b.Remote))
}

// show turns a record into what users see.
func (m *openedMaps) show(at attachment, key *subflowKey, s *subflow) (agentapi.Subflow, error) {
	if err := m.complete(key, s); err != nil {
		return agentapi.Subflow{}, err
	}
	shown := agentapi.Subflow{
		Endpoint: m.names.endpointAt(at.Endpoint, at.Interface),
		Token:    agentapi.Token(s.Token), InitiatorToken: agentapi.Token(s.InitiatorToken),
		Local:  bpf.AddrPort(key.Local.Word, key.LocalPort),
		Remote: bpf.AddrPort(key.Remote.Word, key.RemotePort),
		Path:   m.Path(s.Path), Backup: isBackup(s), Ended: ended(s.Ended),
		RTTMicroseconds: rttOf(s), Sent: trafficOf(s, 0), Received: trafficOf(s, 1),
	}
	for direction := range s.Limit {
		if s.Limit[direction].Rate == 0 {
			continue
		}
		limit, err := m.limit(at, s, direction)
		if err != nil {
			return shown, err
		}
		shown.Limits = append(shown.Limits, limit)
	}
	return shown, nil
}

// complete adds what the programs keep beside a record.
func (m *openedMaps) complete(key *subflowKey, s *subflow) error {
	var steady endpoint.FromEndpointSteady
	if err := m.steady.Lookup(endpoint.SteadySlot(key), &steady); err != nil {
		return fmt.Errorf("reading steady subflows: %w", err)
	}
	steady.Complete(key, s)
	return nil
}

// isBackup is what the rules want where they want something, else what the ends
// said.
func isBackup(s *subflow) bool {
	switch s.BackupState.Wanted {
	case endpoint.BackupOff:
		return false
	case endpoint.BackupOn:
		return true
	}
	return s.Backup != 0
}

// ended is true after a reset, or a FIN in each direction.
func ended(bits uint8) bool {
	const fins = endpoint.EndedFINFrom | endpoint.EndedFINTo
	return bits&endpoint.EndedReset != 0 || bits&fins == fins
}

// rttOf adds the ways to both ends, as they are seen from the host. The way to
// the pod alone says nothing.
func rttOf(s *subflow) uint64 {
	if away := uint64(s.Traffic[endpoint.FromEndpoint].SmoothedRtt); away != 0 {
		return away + uint64(s.Traffic[endpoint.ToEndpoint].SmoothedRtt)
	}
	return uint64(s.SeededRtt)
}

func trafficOf(s *subflow, direction int) agentapi.Traffic {
	t := &s.Traffic[direction]
	return agentapi.Traffic{
		Bytes: t.Bytes, Packets: t.Packets,
		Retransmissions: uint64(t.Retransmitted), Reordered: uint64(t.Reordered),
	}
}

// What the programs' enums stand for.
var (
	mechanismValues = []v1alpha1.RateLimitMechanism{
		endpoint.MechanismAuto: v1alpha1.RateLimitAuto, endpoint.MechanismPace: v1alpha1.RateLimitPace,
		endpoint.MechanismWindow: v1alpha1.RateLimitWindow, endpoint.MechanismPolice: v1alpha1.RateLimitPolice,
	}
	scopeValues = []v1alpha1.RateLimitScope{
		endpoint.ScopeSubflow: v1alpha1.RateLimitPerSubflow, endpoint.ScopeConnection: v1alpha1.RateLimitPerConnection,
		endpoint.ScopeEndpoint: v1alpha1.RateLimitPerEndpoint,
	}
	reasonValues = []agentapi.Why{
		endpoint.WhyAsked: agentapi.WhyAsked, endpoint.WhyOwnSocket: agentapi.WhyOwnSocket,
		endpoint.WhyNoSocket: agentapi.WhyNoSocket, endpoint.WhyNoSYN: agentapi.WhyNoSYN,
		endpoint.WhyShortRTT: agentapi.WhyShortRTT, endpoint.WhyNoRTT: agentapi.WhyNoRTT,
	}
)

// valueOf is the zero value for what a newer program may have written.
func valueOf[T any](values []T, at uint8) (value T) {
	if int(at) < len(values) {
		value = values[at]
	}
	return value
}

func (m *openedMaps) limit(at attachment, s *subflow, direction int) (agentapi.Limit, error) {
	l := &s.Limit[direction]
	limit := agentapi.Limit{
		Direction: directionName(direction == endpoint.ToEndpoint), BitsPerSecond: l.Rate * 8,
		Per: valueOf(scopeValues, l.Scope), Asked: valueOf(mechanismValues, l.Mechanism), Why: valueOf(reasonValues, l.Why),
	}
	if l.InUse != 0 {
		limit.InUse = valueOf(mechanismValues, l.InUse)
	}
	form, err := m.form(at.Chain)
	if err != nil {
		return limit, err
	}
	if rule, ok := form.limits[l.Id]; ok {
		limit.Policy, limit.Rule = m.names.Rule(at.Endpoint, rule)
	}
	return limit, nil
}
