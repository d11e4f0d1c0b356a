// SPDX-License-Identifier: Apache-2.0

package programs_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/programs"
	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/internal/testutil"
)

// Values of enums in chain.h.
const (
	matched          = 0xffff
	notMatched       = 0xfffe
	actionDrop       = 8
	actionRunProgram = 10
	bothDirections   = 3
	loopback         = 1 // the interface that a test run of a program is on
	anEndpoint       = 7
	fromEndpoint     = 0
	verdictNext      = -1
	verdictShot      = 2
	offsetOfOptions  = 14 + 20 + 20
)

// realChain is the programs of the endpoint half, attached nowhere.
type realChain struct {
	from, to *ebpf.Collection
	spec     *ebpf.CollectionSpec
	on       uint32 // the endpoint's interface
	epoch    uint64
}

func newRealChain(t *testing.T) *realChain {
	t.Helper()
	fromSpec, err := endpoint.LoadFromEndpoint()
	require.NoError(t, err)
	toSpec, err := endpoint.LoadToEndpoint()
	require.NoError(t, err)
	c := &realChain{spec: fromSpec, on: loopback}
	c.from, err = ebpf.NewCollection(fromSpec)
	require.NoError(t, err)
	t.Cleanup(c.from.Close)
	shared := map[string]*ebpf.Map{}
	for name, m := range c.from.Maps {
		if toSpec.Maps[name] != nil && name != ".rodata" {
			shared[name] = m
		}
	}
	c.to, err = ebpf.NewCollectionWithOptions(toSpec, ebpf.CollectionOptions{MapReplacements: shared})
	require.NoError(t, err)
	t.Cleanup(c.to.Close)
	return c
}

// rule is one whose match is every packet.
type rule []endpoint.FromEndpointAction

func custom(slot uint32, value int64) endpoint.FromEndpointAction {
	return endpoint.FromEndpointAction{Kind: actionRunProgram, Limit: slot, Value: value}
}

func (c *realChain) set(t *testing.T, rules ...rule) {
	t.Helper()
	c.setMatching(t, make([]*endpoint.FromEndpointSelector, len(rules)), rules...)
}

// setMatching is set with a selector for each rule; nil where it matches every packet.
func (c *realChain) setMatching(t *testing.T, selectors []*endpoint.FromEndpointSelector, rules ...rule) {
	t.Helper()
	var chain endpoint.FromEndpointChain
	next := uint16(0)
	for i, rule := range rules {
		chain.Rule[i] = endpoint.FromEndpointRule{
			FirstSelector: matched, FirstAction: next, Actions: uint8(len(rule)), Directions: bothDirections,
		}
		if selectors[i] != nil {
			chain.Rule[i].FirstSelector, chain.Selector[i] = uint16(i), *selectors[i]
		}
		next += uint16(copy(chain.Action[next:], rule))
		chain.Rules++
	}
	inner, err := ebpf.NewMap(c.spec.Maps["chains"].InnerMap)
	require.NoError(t, err)
	require.NoError(t, inner.Put(uint32(0), chain))
	require.NoError(t, c.from.Maps["chains"].Put(uint32(0), inner))
	require.NoError(t, inner.Close())
	c.epoch++
	require.NoError(t, c.from.Maps["attachments"].Put(c.on, endpoint.FromEndpointAttachment{
		Interface: c.on, Endpoint: anEndpoint, Chain: c.epoch << 32,
	}))
}

// hits are the packets that a rule matched, and those that its actions changed.
func (c *realChain) hits(t *testing.T, index int) (hits, acted uint64) {
	t.Helper()
	var counters endpoint.FromEndpointCounters
	require.NoError(t, c.from.Maps["chain_counters"].Lookup(uint32(0), &counters))
	return counters.Rule[index].Hits, counters.Rule[index].Acted
}

func (c *realChain) run(t *testing.T, direction int, frame []byte) (verdict int32, out []byte) {
	t.Helper()
	program := c.from.Programs["from_endpoint"]
	if direction != fromEndpoint {
		program = c.to.Programs["to_endpoint"]
	}
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	returned, err := program.Run(options)
	require.NoError(t, err)
	return int32(returned), options.DataOut
}

func (c *realChain) expect(t *testing.T, verdict int32, frame []byte) {
	t.Helper()
	for direction := range 2 {
		got, out := c.run(t, direction, pureACK())
		if got != verdict || (verdict == verdictNext && !bytes.Equal(out, frame)) {
			t.Errorf("in direction %d the verdict is %d and the packet\n%x, wanted %d and\n%x", direction, got, out, verdict, frame)
		}
	}
}

// newChainNode is a node whose manager works on the real chain.
func newChainNode(t *testing.T) (*node, *realChain) {
	t.Helper()
	c := newRealChain(t)
	n := &node{content: configMaps{}}
	n.options = programs.Options{
		PinPath: testutil.BPFFS(t), CustomBlocks: c.from.Maps["custom_blocks"], BlockContext: c.from.Maps["block_context"],
		Cgroup: cgroupRoot(t), ConfigMaps: n.content, Log: testr.New(t),
	}
	n.start(t)
	return n, c
}

// stamped is the pure ACK with the example's option in it; its TCP checksum is
// wrong by as much as before.
func stamped(out []byte) bool {
	return len(out) == len(pureACK())+8 && slices.Equal(out[offsetOfOptions+12:offsetOfOptions+16], []byte{253, 8, 0xb5, 0xa1})
}

func TestBlocksInTheChainOfAnEndpoint(t *testing.T) {
	n, c := newChainNode(t)
	slots := n.applyAll(t,
		n.put(t, "large", "examples/large.bpf.c", ""), n.put(t, "stamp", "examples/stamp.bpf.c", ""),
		n.put(t, "drop", "testdata/two.bpf.c", "second")).Slots
	large, stamp, drop := slots["policy/large"], slots["policy/stamp"], slots["policy/drop"]

	t.Run("a selector that does not match ends its rule, and the next one runs", func(t *testing.T) {
		c.set(t, rule{custom(large, 1000), custom(drop, 0)}, rule{custom(stamp, 7)})
		for direction := range 2 {
			if verdict, out := c.run(t, direction, pureACK()); verdict != verdictNext || !stamped(out) {
				t.Errorf("direction %d: the verdict is %d, the packet\n%x", direction, verdict, out)
			}
		}
		if hits, acted := c.hits(t, 1); hits != 2 || acted != 2 {
			t.Errorf("the second rule has %d hits and acted %d times", hits, acted)
		}
	})
	t.Run("a selector that matches lets its rule go on", func(t *testing.T) {
		c.set(t, rule{custom(large, 0), custom(drop, 0)}, rule{custom(stamp, 7)})
		c.expect(t, verdictShot, nil)
	})
	t.Run("a program runs before Braid's own action, and after", func(t *testing.T) {
		c.set(t, rule{custom(large, 1000), {Kind: actionDrop}})
		c.expect(t, verdictNext, pureACK())
		c.set(t, rule{custom(large, 0), {Kind: actionDrop}})
		c.expect(t, verdictShot, nil)
	})
	t.Run("a program that is gone is passed over", func(t *testing.T) {
		c.set(t, rule{custom(drop, 0)})
		c.expect(t, verdictShot, nil)
		n.applyAll(t)
		c.expect(t, verdictNext, pureACK())
	})
}

// A chain that asks for more calls than the kernel allows ends where it must, and
// the packet goes on.
func TestMoreCallsThanTheKernelAllows(t *testing.T) {
	n, c := newChainNode(t)
	slot := n.applyAll(t, n.put(t, "large", "examples/large.bpf.c", "")).Slots["policy/large"]
	calls := make([]rule, 40)
	for i := range calls {
		calls[i] = rule{custom(slot, 0)}
	}
	c.set(t, calls...)
	c.expect(t, verdictNext, pureACK())
	if hits, _ := c.hits(t, 39); hits != 2 {
		t.Errorf("the last rule has %d hits, wanted 2", hits)
	}
}
