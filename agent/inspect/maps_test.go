// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/testutil"
)

// pinned are the programs' maps, in a BPF file system of the test's own.
type pinned struct {
	t         *testing.T
	directory string
	maps      map[string]*ebpf.Map
}

func pin(t *testing.T) *pinned {
	t.Helper()
	p := &pinned{t: t, directory: testutil.BPFFS(t), maps: map[string]*ebpf.Map{}}
	spec, err := endpoint.LoadFromEndpoint()
	require.NoError(t, err)
	for _, name := range []string{"attachments", "attachments_overflow", "chains", "chain_counters", "subflows", "steady_subflows"} {
		made, err := ebpf.NewMap(spec.Maps[name])
		require.NoError(t, err)
		t.Cleanup(func() { made.Close() })
		require.NoError(t, made.Pin(filepath.Join(p.directory, name)))
		p.maps[name] = made
	}
	p.pinPaths()
	return p
}

// pinPaths names the paths as agents do: the one between those that remain is gone.
func (p *pinned) pinPaths() {
	p.t.Helper()
	builder := node.NewBuilder(node.OpenRegistry(p.directory, logr.Discard()))
	defer builder.Close()
	for _, names := range [][]string{{"blue", "cyan", "green"}, {"blue", "green"}} {
		var sources node.Sources
		for i, name := range names {
			sources.Resolution.Paths = append(sources.Resolution.Paths, paths.Path{Name: name, NIC: paths.NIC{Index: i + 1}})
		}
		_, err := builder.Build(sources)
		require.NoError(p.t, err)
	}
}

func (p *pinned) put(name string, key, value any) {
	p.t.Helper()
	require.NoError(p.t, p.maps[name].Put(key, value))
}

// putChain fills a slot, as agents do: with a map of its own.
func (p *pinned) putChain(slot uint32, content *chain) {
	p.t.Helper()
	inner, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: uint32(binary.Size(content)), MaxEntries: 1,
	})
	require.NoError(p.t, err)
	defer inner.Close()
	require.NoError(p.t, inner.Put(uint32(0), content))
	p.put("chains", slot, inner)
}

// attach gives an interface an endpoint, a chain and counters.
func (p *pinned) attach(index, id, slot, row uint32) {
	p.t.Helper()
	a := attachment{Interface: index, Endpoint: id, Chain: uint64(slot) | uint64(row)<<16 | 9<<32}
	p.put("attachments", index&65535, a)
}

func (p *pinned) read(names *Directory) *Pins { return NewPins(p.directory, p.directory, names) }

func words(text string) (words [4]uint32) {
	address := netip.MustParseAddr(text).As16()
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(address[i*4:])
	}
	return words
}

func networkPort(number uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, number))
}

func keyOf(id uint32, local string, localPort uint16, remote string, remotePort uint16) (key subflowKey) {
	key.Endpoint, key.LocalPort, key.RemotePort = id, networkPort(localPort), networkPort(remotePort)
	key.Local.Word, key.Remote.Word = words(local), words(remote)
	return key
}

// twoRules is a chain of two rules, the second with two limits.
func twoRules() *chain {
	content := &chain{Rules: 2}
	content.Rule[0].Actions = 1
	content.Rule[1].FirstAction, content.Rule[1].Actions = 1, 2
	content.Action[0].Kind = 9
	for i, limit := range []uint32{77, 78} {
		content.Action[1+i].Kind, content.Action[1+i].Limit = endpoint.ActionRateLimit, limit
	}
	return content
}

func named(t *testing.T) *Directory {
	t.Helper()
	directory, err := OpenDirectory("")
	require.NoError(t, err)
	require.NoError(t, directory.Set(map[uint32]Endpoint{
		5: {Name: "team/web", Rules: []RuleName{{"ClusterMPTCPPolicy/all", "refuse"}, {"MPTCPPolicy/team/web", "slow"}}},
	}))
	return directory
}

func TestRulesAreReadWithTheirCounters(t *testing.T) {
	p := pin(t)
	p.putChain(3, twoRules())
	p.attach(1000, 5, 3, 40)
	p.attach(1001, 6, 3, 41) // shares the chain
	p.attach(1002, 7, 0, 0)
	p.put("attachments", uint32(1002), attachment{Interface: 1002, Endpoint: 7}) // has none
	var counted counters
	counted.Rule[1].Hits, counted.Rule[1].Bytes, counted.Rule[1].Acted = 10, 20, 30
	p.put("chain_counters", uint32(40), counted)

	rules, err := p.read(named(t)).Rules()
	require.NoError(t, err)
	want := []agentapi.Rule{
		{Endpoint: "#6", Name: "#1"},
		{Endpoint: "#6", Name: "#2"},
		{Endpoint: "team/web", Policy: "ClusterMPTCPPolicy/all", Name: "refuse"},
		{Endpoint: "team/web", Policy: "MPTCPPolicy/team/web", Name: "slow", Hits: 10, Bytes: 20, Acted: 30},
	}
	if !slices.Equal(rules, want) {
		t.Errorf("the rules are %+v, want %+v", rules, want)
	}
}

func TestInterfacesThatShareASlotAreFoundInTheOverflow(t *testing.T) {
	p := pin(t)
	p.putChain(0, twoRules())
	p.attach(1000, 5, 0, 1)
	p.put("attachments_overflow", uint32(66536), attachment{Interface: 66536, Endpoint: 8, Chain: 2<<16 | 1<<32})
	rules, err := p.read(named(t)).Rules()
	require.NoError(t, err)
	if len(rules) != 4 || rules[0].Endpoint != "#8" || rules[2].Endpoint != "team/web" {
		t.Errorf("the rules are %+v", rules)
	}
}

func TestAnEndpointWithoutANameHasThatOfItsInterface(t *testing.T) {
	loopback, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	p := pin(t)
	p.putChain(0, twoRules())
	p.attach(uint32(loopback.Index), 9, 0, 1)
	rules, err := p.read(named(t)).Rules()
	require.NoError(t, err)
	if len(rules) != 2 || rules[0].Endpoint != "lo" {
		t.Errorf("the rules are %+v", rules)
	}
}

func TestSubflowsAreReadWithWhatLimitsThem(t *testing.T) {
	p := pin(t)
	p.putChain(3, twoRules())
	p.attach(1000, 5, 3, 40)
	var record subflow
	record.Token, record.InitiatorToken, record.Path, record.Backup = 0xabc, 0xdef, 2, 1
	record.Traffic[0].SmoothedRtt, record.Traffic[1].SmoothedRtt, record.SeededRtt = 4000, 100, 9999
	record.Traffic[0].Bytes, record.Traffic[0].Packets = 1, 2
	record.Traffic[1].Retransmitted, record.Traffic[1].Reordered = 3, 4
	record.Limit[0].Rate, record.Limit[0].Id, record.Limit[0].Scope, record.Limit[0].InUse, record.Limit[0].Why = 1000, 78, 2, 2, 3
	record.Limit[1].Rate, record.Limit[1].Id, record.Limit[1].Mechanism, record.Limit[1].Why = 500, 1, 3, 200
	p.put("subflows", keyOf(5, "::ffff:10.0.0.1", 43210, "::ffff:10.0.0.2", 80), record)
	p.put("subflows", keyOf(5, "fd00::1", 1, "fd00::2", 2), subflow{Token: 0xabd, Path: 0xff, SeededRtt: 7, Ended: 4})
	p.put("subflows", keyOf(99, "fd00::1", 1, "fd00::2", 2), subflow{}) // of an endpoint that is gone

	subflows, err := p.read(named(t)).Subflows()
	require.NoError(t, err)
	want := []agentapi.Subflow{
		{
			Endpoint: "team/web", Token: 0xabc, InitiatorToken: 0xdef, Path: "green", Backup: true, RTTMicroseconds: 4100,
			Local: netip.MustParseAddrPort("10.0.0.1:43210"), Remote: netip.MustParseAddrPort("10.0.0.2:80"),
			Sent: agentapi.Traffic{Bytes: 1, Packets: 2}, Received: agentapi.Traffic{Retransmissions: 3, Reordered: 4},
			Limits: []agentapi.Limit{{
				Policy: "MPTCPPolicy/team/web", Rule: "slow", Direction: v1alpha1.DirectionFromEndpoint, BitsPerSecond: 8000,
				Per: v1alpha1.RateLimitPerEndpoint, Asked: v1alpha1.RateLimitAuto, InUse: v1alpha1.RateLimitWindow, Why: agentapi.WhyNoSocket,
			}, {
				Direction: v1alpha1.DirectionToEndpoint, BitsPerSecond: 4000,
				Per: v1alpha1.RateLimitPerSubflow, Asked: v1alpha1.RateLimitPolice,
			}},
		},
		{
			Endpoint: "team/web", Token: 0xabd, RTTMicroseconds: 7, Ended: true,
			Local: netip.MustParseAddrPort("[fd00::1]:1"), Remote: netip.MustParseAddrPort("[fd00::2]:2"),
		},
	}
	if !reflect.DeepEqual(subflows, want) {
		t.Errorf("the subflows are\n%+v, want\n%+v", subflows, want)
	}
}

func TestSubflowsOfSomeInterfacesAreReadAlone(t *testing.T) {
	p := pin(t)
	p.putChain(0, twoRules())
	p.attach(1000, 5, 0, 1)
	p.attach(1001, 6, 0, 1)
	p.put("attachments_overflow", uint32(66536), attachment{Interface: 66536, Endpoint: 8, Chain: 2<<16 | 1<<32})
	for _, number := range []uint32{5, 6, 8} {
		p.put("subflows", keyOf(number, "fd00::1", 1, "fd00::2", 2), subflow{Token: number})
	}
	for _, test := range []struct {
		interfaces []int
		tokens     []uint32
	}{{nil, nil}, {[]int{1000}, []uint32{5}}, {[]int{66536}, []uint32{8}}, {[]int{1000, 1001, 2000, 67536}, []uint32{5, 6}}} {
		var tokens []uint32
		require.NoError(t, p.read(named(t)).EachSubflowOf(test.interfaces, func(subflow *agentapi.Subflow) { tokens = append(tokens, uint32(subflow.Token)) }))
		slices.Sort(tokens)
		require.Equal(t, test.tokens, tokens)
	}
}

func TestThePathsOfEventsAreNamed(t *testing.T) {
	pins := pin(t).read(named(t))
	for slot, want := range map[uint8]string{0: "blue", 1: "", 2: "green", 0xff: ""} {
		if got := pins.Path(slot); got != want {
			t.Errorf("path %d is %q, want %q", slot, got, want)
		}
	}
	if got := NewPins(t.TempDir(), t.TempDir(), named(t)).Path(0); got != "" {
		t.Errorf("without pins the path is %q", got)
	}
}

func TestASubflowIsOverAfterAResetOrTwoFINs(t *testing.T) {
	for bits, want := range map[uint8]bool{0: false, 1: false, 2: false, 3: true, 4: true, 5: true, 7: true} {
		if got := ended(bits); got != want {
			t.Errorf("with bits %03b: %t", bits, got)
		}
	}
}

func TestThousandsOfSubflowsAreReadOnceEach(t *testing.T) {
	const count = 5000
	p := pin(t)
	p.putChain(0, twoRules())
	p.attach(1000, 5, 0, 1)
	for number := range uint16(count) {
		p.put("subflows", keyOf(5, "::ffff:10.0.0.1", number+1, "::ffff:10.0.0.2", 80), subflow{})
	}
	pins := p.read(named(t))
	subflows, err := pins.Subflows()
	require.NoError(t, err)
	seen := map[netip.AddrPort]bool{}
	for i := range subflows {
		seen[subflows[i].Local] = true
	}
	if len(subflows) != count || len(seen) != count {
		t.Errorf("%d subflows were read, %d different ones", len(subflows), len(seen))
	}
	var visited []agentapi.Subflow
	require.NoError(t, pins.EachSubflow(func(one *agentapi.Subflow) { visited = append(visited, *one) }))
	slices.SortFunc(visited, func(a, b agentapi.Subflow) int { return a.Local.Compare(b.Local) })
	if !reflect.DeepEqual(visited, subflows) {
		t.Errorf("one by one %d subflows are read, and not the same", len(visited))
	}
}

func TestAReplacedChainIsReadAnew(t *testing.T) {
	p := pin(t)
	p.putChain(0, twoRules())
	p.attach(1000, 5, 0, 1)
	maps := p.read(named(t))
	for rules := range uint32(4) {
		p.putChain(0, &chain{Rules: rules})
		list, err := maps.Rules()
		require.NoError(t, err)
		if len(list) != int(rules) {
			t.Errorf("a chain of %d rules is read as %+v", rules, list)
		}
	}
}

func TestAChainThatMakesNoSenseIsReadWithoutHarm(t *testing.T) {
	content := &chain{Rules: 1 << 30}
	for i := range content.Rule {
		content.Rule[i].FirstAction, content.Rule[i].Actions = 0xffff, 0xff
	}
	content.Rule[1].FirstAction = 127
	content.Action[127].Kind, content.Action[127].Limit = endpoint.ActionRateLimit, 5
	if form := formOf(content); form.rules != 64 || len(form.limits) != 1 || form.limits[5] != 1 {
		t.Errorf("it is read as %+v", form)
	}
}

func TestTheFormOfAChainIsThatOfThePrograms(t *testing.T) {
	spec, err := endpoint.LoadFromEndpoint()
	require.NoError(t, err)
	if got, want := binary.Size(chain{}), spec.Maps["chains"].InnerMap.ValueSize; uint32(got) != want {
		t.Errorf("a chain has %d bytes, want %d", got, want)
	}
}

func TestWithoutPinsThereIsNothing(t *testing.T) {
	pins := NewPins(t.TempDir(), t.TempDir(), named(t))
	rules, err := pins.Rules()
	if err != nil || len(rules) > 0 || pins.Exist() {
		t.Errorf("the rules are %+v (%v)", rules, err)
	}
	subflows, err := pins.Subflows()
	if err != nil || len(subflows) > 0 {
		t.Errorf("the subflows are %+v (%v)", subflows, err)
	}
}

func TestADirectoryIsKeptForLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", DirectoryName)
	first, err := OpenDirectory(path)
	require.NoError(t, err)
	require.NoError(t, first.Set(map[uint32]Endpoint{5: {Name: "team/web", Rules: []RuleName{{"p", "slow"}}}}))
	later, err := OpenDirectory(path)
	require.NoError(t, err)
	policy, rule := later.Rule(5, 0)
	got := fmt.Sprint(later.Endpoint(5), later.Endpoint(6), policy, rule)
	if want := fmt.Sprint("team/web", "#6", "p", "slow"); got != want {
		t.Errorf("it has %s, want %s", got, want)
	}
	if _, unknown := later.Rule(5, 1); unknown != "#2" {
		t.Errorf("the second rule is %s", unknown)
	}
}

func TestADirectoryWithoutEndpointsLeavesNoFile(t *testing.T) {
	state := t.TempDir()
	path := filepath.Join(state, DirectoryName)
	directory, err := OpenDirectory(path)
	require.NoError(t, err)
	require.NoError(t, directory.Set(map[uint32]Endpoint{5: {Name: "team/web"}}))
	_, err = os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, directory.Set(map[uint32]Endpoint{}))
	if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
		t.Errorf("%v is left (%v)", left, err)
	}
}
