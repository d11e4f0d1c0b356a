// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

type verdict int32

const (
	next    verdict = -1
	dropped verdict = 2
)

const (
	theEndpoint = 7
	blue        = 0
	green       = 1
)

// skBuff is short for it.
type skBuff = bpf.SKBuff

// ends are the addresses of an endpoint and of its peer.
type ends struct{ local, remote netip.AddrPort }

var endsOf = map[int]ends{
	4: {netip.MustParseAddrPort("10.244.1.2:40000"), netip.MustParseAddrPort("10.244.2.2:80")},
	6: {netip.MustParseAddrPort("[fd00:244:1::2]:40000"), netip.MustParseAddrPort("[fd00:244:2::2]:80")},
}

var versions = []int{4, 6}

func forEachVersion(t *testing.T, f func(t *testing.T, e ends)) {
	for _, version := range versions {
		t.Run(map[int]string{4: "IPv4", 6: "IPv6"}[version], func(t *testing.T) { f(t, endsOf[version]) })
	}
}

// out and in are segments from and to the endpoint.
func (e ends) out() segment {
	return segment{from: e.local, to: e.remote, sequence: 1001, answer: 5001, flags: ack, window: 0xffff}
}

func (e ends) in() segment {
	return segment{from: e.remote, to: e.local, sequence: 5001, answer: 1001, flags: ack, window: 0xffff}
}

func (e ends) port(number uint16) ends {
	e.local = netip.AddrPortFrom(e.local.Addr(), number)
	return e
}

// host is a namespace with the host's end of an endpoint's interface and NICs, and
// the programs, loaded but attached nowhere.
type host struct {
	*network.Namespace
	peer  *network.Namespace
	pod   uint32
	nics  [2]uint32
	from  *ebpf.Program
	to    *ebpf.Program
	atNIC *atNIC
	maps  *endpoint.FromEndpointMaps
	inner *ebpf.MapSpec
	epoch uint32
}

func newHost(t testing.TB) *host {
	t.Helper()
	h := &host{Namespace: network.NamespaceForTest(t), peer: network.NamespaceForTest(t)}
	for i, name := range []string{"pod", "blue", "green"} {
		require.NoError(t, network.Connect(h.Namespace, name, h.peer, name, network.Options{MTU: 9000}))
		index, err := h.Index(name)
		require.NoError(t, err)
		if i == 0 {
			h.pod = uint32(index)
		} else {
			h.nics[i-1] = uint32(index)
		}
	}
	h.load(t)
	return h
}

// programs are what is loaded of a host.
type programs struct {
	from  endpoint.FromEndpointObjects
	to    endpoint.ToEndpointObjects
	atNIC endpoint.AtNICObjects
	inner *ebpf.MapSpec
}

// common are those that all tests have, one after the other.
var common *programs

// load loads the programs for the first test, and clears their maps for all others.
func (h *host) load(t testing.TB) {
	t.Helper()
	if common == nil {
		common = loadPrograms(t)
	}
	p := common
	require.NoError(t, packettest.Clear(&p.from.FromEndpointMaps, &p.to.ToEndpointMaps, &p.atNIC.AtNICMaps))
	h.from, h.to, h.maps, h.inner = p.from.FromEndpoint, p.to.ToEndpoint, &p.from.FromEndpointMaps, p.inner
	h.useAtNIC(t, &p.atNIC)
	h.setPaths(t, h.nics[blue], h.nics[green])
}

// loadPrograms lets the programs share all maps, as pinning does.
func loadPrograms(t testing.TB) *programs {
	t.Helper()
	p := &programs{}
	fromSpec, err := endpoint.LoadFromEndpoint()
	require.NoError(t, err)
	p.inner = fromSpec.Maps[endpoint.FromEndpointMapChains].InnerMap
	require.NoError(t, fromSpec.LoadAndAssign(&p.from, nil))
	toSpec, err := endpoint.LoadToEndpoint()
	require.NoError(t, err)
	require.NoError(t, toSpec.LoadAndAssign(&p.to, p.shared(toSpec)))
	atNICSpec, err := endpoint.LoadAtNIC()
	require.NoError(t, err)
	require.NoError(t, atNICSpec.LoadAndAssign(&p.atNIC, p.shared(atNICSpec, "chain_counters")))
	return p
}

// shared are the maps of from_endpoint that another program has too, some excepted.
func (p *programs) shared(spec *ebpf.CollectionSpec, except ...string) *ebpf.CollectionOptions {
	replacements := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if m := mapNamed(&p.from, name); m != nil && !slices.Contains(except, name) {
			replacements[name] = m
		}
	}
	return &ebpf.CollectionOptions{MapReplacements: replacements}
}

func mapNamed(objects *endpoint.FromEndpointObjects, name string) *ebpf.Map {
	m := &objects.FromEndpointMaps
	return map[string]*ebpf.Map{
		"attachments": m.Attachments, "attachments_overflow": m.AttachmentsOverflow, "chains": m.Chains,
		"chain_counters": m.ChainCounters, "subflows": m.Subflows, "mptcp_connections": m.MptcpConnections,
		"bypass_cache": m.BypassCache, "steady_subflows": m.SteadySubflows, "path_interfaces": m.PathInterfaces, "events": m.Events,
		"buckets": m.Buckets, "hidden_addresses": m.HiddenAddresses, "custom_blocks": m.CustomBlocks,
		"block_context": m.BlockContext, "run_context": m.RunContext,
	}[name]
}

func (h *host) setPaths(t testutil.TB, interfaces ...uint32) {
	t.Helper()
	var paths endpoint.FromEndpointPaths
	copy(paths.Interface[:], interfaces)
	require.NoError(t, h.maps.PathInterfaces.Put(uint32(0), paths))
}

// put stores a chain in a slot.
func (h *host) put(t testutil.TB, slot uint32, chain *endpoint.FromEndpointChain) {
	t.Helper()
	inner, err := ebpf.NewMap(h.inner)
	require.NoError(t, err)
	defer inner.Close()
	require.NoError(t, inner.Put(uint32(0), chain))
	require.NoError(t, h.maps.Chains.Put(slot, inner))
}

func word(slot, row, epoch uint32) uint64 {
	return uint64(epoch)<<32 | uint64(row)<<16 | uint64(slot)
}

// attach gives an interface a chain, by one word.
func (h *host) attach(t testutil.TB, attachment endpoint.FromEndpointAttachment) {
	t.Helper()
	require.NoError(t, h.maps.Attachments.Put(attachment.Interface&0xffff, attachment))
}

// use gives the endpoint this chain, anew in slot 1 and row 1.
func (h *host) use(t testutil.TB, chain *endpoint.FromEndpointChain) {
	t.Helper()
	h.epoch++
	h.put(t, 1, chain)
	require.NoError(t, h.maps.ChainCounters.Put(uint32(1), endpoint.FromEndpointCounters{}))
	h.attach(t, endpoint.FromEndpointAttachment{Interface: h.pod, Endpoint: theEndpoint, Chain: word(1, 1, h.epoch)})
}

// forget empties what is remembered of subflows and connections.
func (h *host) forget(t testutil.TB) {
	t.Helper()
	clearMap[endpoint.FromEndpointSubflowKey](t, h.maps.Subflows)
	clearMap[endpoint.FromEndpointMptcpConnectionKey](t, h.maps.MptcpConnections)
}

func clearMap[K any](t testutil.TB, m *ebpf.Map) {
	t.Helper()
	var key K
	for m.NextKey(nil, &key) == nil {
		require.NoError(t, m.Delete(key))
	}
}

// sends and receives run the programs on what the endpoint sends and receives.
func (h *host) sends(t testutil.TB, s segment) verdict {
	t.Helper()
	return h.run(t, h.from, s.frame(), skBuff{Ifindex: h.pod})
}

func (h *host) receives(t testutil.TB, s segment) verdict {
	t.Helper()
	return h.receivesBy(t, blue, s)
}

// receivesBy runs what is at the NIC's hook first, as the packet would meet it.
func (h *host) receivesBy(t testutil.TB, path int, s segment) verdict {
	t.Helper()
	frame := s.frame()
	return h.atNIC.expectTheSame(t, path, frame, func() verdict {
		return h.run(t, h.to, frame, skBuff{Ifindex: h.pod, IngressIfindex: h.nics[path]})
	})
}

// passes is the segment in the direction that its addresses tell.
func (h *host) passes(t testutil.TB, e ends, s segment) verdict {
	t.Helper()
	if s.from == e.local {
		return h.sends(t, s)
	}
	return h.receives(t, s)
}

// run runs a program that must not change the packet.
func (h *host) run(t testutil.TB, program *ebpf.Program, frame []byte, context skBuff) verdict {
	t.Helper()
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: context}
	var result uint32
	err := h.Do(func() (err error) {
		result, err = program.Run(&options)
		return err
	})
	if err != nil {
		t.Fatalf("running the program with %d bytes: %v", len(frame), err)
	}
	if !bytes.Equal(options.DataOut, frame) {
		t.Errorf("the packet was changed:\n%x\n%x", frame, options.DataOut)
	}
	v := verdict(int32(result))
	if v != next && v != dropped {
		t.Fatalf("the verdict is %d", v)
	}
	return v
}

func keyOf(e ends) endpoint.FromEndpointSubflowKey {
	return endpoint.FromEndpointSubflowKey{
		Local: toAddress(e.local.Addr().As16()), Remote: toAddress(e.remote.Addr().As16()),
		LocalPort: swap(e.local.Port()), RemotePort: swap(e.remote.Port()), Endpoint: theEndpoint,
	}
}

func swap(port uint16) uint16 { return port<<8 | port>>8 }

// subflow is the record of a subflow, or nil.
func (h *host) subflow(t testutil.TB, e ends) *endpoint.FromEndpointSubflow {
	t.Helper()
	var record endpoint.FromEndpointSubflow
	err := h.maps.Subflows.Lookup(keyOf(e), &record)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	require.NoError(t, err)
	key := keyOf(e)
	var steady endpoint.FromEndpointSteady
	require.NoError(t, h.maps.SteadySubflows.Lookup(endpoint.SteadySlot(&key), &steady))
	steady.Complete(&key, &record)
	return &record
}

func (h *host) mustSubflow(t testutil.TB, e ends) *endpoint.FromEndpointSubflow {
	t.Helper()
	record := h.subflow(t, e)
	if record == nil {
		t.Fatalf("there is no record of %v", e)
	}
	return record
}

// counters are those of the endpoint's chain.
func (h *host) counters(t testutil.TB) endpoint.FromEndpointCounters {
	t.Helper()
	return h.countersAt(t, 1)
}

func (h *host) countersAt(t testutil.TB, row uint32) (counters endpoint.FromEndpointCounters) {
	t.Helper()
	require.NoError(t, h.maps.ChainCounters.Lookup(row, &counters))
	return counters
}
