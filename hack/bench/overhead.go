// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/hack/bench/baseline"
	"braid.dev/braid/internal/lab/network"
)

// overheadNetwork is the name of the network for flow completion times. Its links are
// not shaped: the faster flows are, the more the programs' time weighs.
const overheadNetwork = "benchfct"

// surrounding is a network on which flows are timed.
type surrounding struct {
	prefix  string // of its figures
	delay   time.Duration
	flows   []int // at once
	measure func(*overhead, context.Context, int) error
}

// Between two namespaces of a machine there is no delay: flows are so short that the
// programs' time weighs most. A data centre's network has a round trip of 0.2 ms.
var surroundings = []surrounding{
	{"chain.", 100 * time.Microsecond, []int{1, 100, 1000, 10000}, (*overhead).measureGranularities},
	{"chain.fct_all_packets.", 0, []int{1, 100, 1000, 10000}, (*overhead).measureAllPackets},
	{"chain.fct_all_packets.rtt200us.", 100 * time.Microsecond, []int{1, 100}, (*overhead).measureAllPackets},
}

// granularities are what a chain's only selector selects, from the coarsest to the
// finest of those that seed 001's table I has: everything between two hosts, a
// connection, a subflow, a type of packet.
var granularities = []struct {
	name  string
	match func(pod, peer *network.Pod) v1alpha1.Selectors
}{
	{"all", matchPair},
	{"connection", matchToken},
	{"subflow", matchSubflow},
	{"packet_type", matchType},
}

func matchPair(pod, peer *network.Pod) v1alpha1.Selectors {
	return v1alpha1.Selectors{AddressPair: []v1alpha1.IPAddress{v1alpha1.IPAddress(pod.IPv4), v1alpha1.IPAddress(peer.IPv4)}}
}

// matchToken selects one connection, which is none of the flows'.
func matchToken(*network.Pod, *network.Pod) v1alpha1.Selectors {
	return v1alpha1.Selectors{Token: fmt.Sprintf("0x%08x", chainToken)}
}

// matchSubflow selects one subflow, which is none of the flows'.
func matchSubflow(pod, peer *network.Pod) v1alpha1.Selectors {
	return v1alpha1.Selectors{Subflow: &v1alpha1.SubflowTuple{
		SourceAddress: v1alpha1.IPAddress(pod.IPv4), SourcePort: 40000,
		DestinationAddress: v1alpha1.IPAddress(peer.IPv4), DestinationPort: 1,
	}}
}

func matchType(*network.Pod, *network.Pod) v1alpha1.Selectors {
	return v1alpha1.Selectors{PacketTypes: []v1alpha1.PacketType{v1alpha1.PacketPureACK}}
}

// hooked is a program that runs on a pod's packets, and where.
type hooked struct {
	program *ebpf.Program
	hook    ebpf.AttachType
}

// chained is a chain that is attached to the pods' interfaces.
type chained interface {
	// load returns the programs for a pod's interface on its node's side.
	load(pod, peer *network.Pod) ([]hooked, error)
	Close() error
}

// measureOverhead runs many flows at once through a chain, and counts the time spent in
// a host's programs as seed 001 does: as a share of the flows' completion times. Both
// ends of each flow have the chain; the figure is their mean. Its 0.63 % are the mean
// over granularities of selection with a chain of 4; all packets through a chain of 8
// are the harsher count.
func measureOverhead(ctx context.Context, b *bench) (err error) {
	for _, s := range surroundings {
		if s.flows = b.countsIn(s); len(s.flows) == 0 {
			continue
		}
		if err := b.overheadIn(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// countsIn are the numbers of flows of the cases that are to be measured.
func (b *bench) countsIn(s surrounding) []int {
	return slices.DeleteFunc(slices.Clone(s.flows), func(flows int) bool {
		return !b.cases.MatchString(fmt.Sprintf("%sflows%d", s.prefix, flows))
	})
}

func (b *bench) overheadIn(ctx context.Context, s surrounding) (err error) {
	if err := network.Teardown(overheadNetwork); err != nil {
		return err
	}
	paths := pathNames[:1]
	n, err := network.Build(network.Spec{
		Name: overheadNetwork, Nodes: 2, Paths: paths, PodsPerNode: 1, IPv4: true, PathDelays: map[string]time.Duration{paths[0]: s.delay},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Delete()) }()
	client, server := n.Nodes[0].Pods[0], n.Nodes[1].Pods[0]
	f, err := newFlows(ctx, client.Namespace, server.Namespace, server.IPv4)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	o := overhead{bench: b, flows: f, client: client, server: server, prefix: s.prefix}
	for _, flows := range s.flows {
		if err := s.measure(&o, ctx, flows); err != nil {
			return fmt.Errorf("%d flows: %w", flows, err)
		}
	}
	return nil
}

type overhead struct {
	*bench
	*flows
	client, server *network.Pod
	// perRun is what the kernel counts for a run of an empty program among the same
	// flows, in ns.
	perRun float64
	empty  []float64 // perRun of all trials
	prefix string
}

// lap is what one lap of flows took, in seconds.
type lap struct {
	completion float64 // of all flows together
	programs   float64 // counted by the kernel, its counting included
	runs       float64
	spent      cpu // for each gigabyte
}

// measureGranularities runs laps with a chain of 4, a selector and three actions, at
// each granularity in turns. One flow alone is run once for each of a hundred sizes.
func (o *overhead) measureGranularities(ctx context.Context, flows int) error {
	sizes := sizesOf(max(flows, 100))
	shares := map[string][]float64{}
	var means []float64
	o.empty = nil
	for trial := range o.trialsOf(flows) {
		if err := o.countEmpty(ctx, sizes, flows); err != nil {
			return err
		}
		mean := 0.0
		for _, g := range granularities {
			with, err := o.lap(ctx, sizes, flows, &halfChain{match: g.match, actions: chainOf4}, true)
			if err != nil {
				return err
			}
			share := o.percent(with)
			shares[g.name] = append(shares[g.name], share)
			mean += share / float64(len(granularities))
			fmt.Printf("%s%d flows trial %d: a chain of 4 for %s: %.2f ms each, %.0f runs of %.0f ns, %.3f %% of completion\n",
				o.prefix, flows, trial+1, g.name, each(with, sizes), with.runs, o.perRunOf(with), share)
		}
		means = append(means, mean)
	}
	o.add(fmt.Sprintf("%sfct_overhead_pct.flows%d", o.prefix, flows), "%", means)
	o.add(fmt.Sprintf("%sfct_empty_ns.flows%d", o.prefix, flows), "ns/run", o.empty)
	for _, g := range granularities {
		o.add(fmt.Sprintf("%sfct_granularity.%s.overhead_pct.flows%d", o.prefix, g.name, flows), "%", shares[g.name])
	}
	return nil
}

// measureAllPackets runs laps with and without a chain of 8 in turns.
func (o *overhead) measureAllPackets(ctx context.Context, flows int) error {
	var ours, standins, extra []float64
	sizes := sizesOf(max(flows, 100))
	o.empty = nil
	for trial := range o.trialsOf(flows) {
		if err := o.countEmpty(ctx, sizes, flows); err != nil {
			return err
		}
		bare, err := o.lap(ctx, sizes, flows, nil, false)
		if err != nil {
			return err
		}
		uncounted, err := o.lap(ctx, sizes, flows, &halfChain{match: matchAll, actions: chainOf8}, false)
		if err != nil {
			return err
		}
		with, err := o.lap(ctx, sizes, flows, &halfChain{match: matchAll, actions: chainOf8}, true)
		if err != nil {
			return err
		}
		standin, err := o.lap(ctx, sizes, flows, &standinChain{}, true)
		if err != nil {
			return err
		}
		ours, standins = append(ours, o.percent(with)), append(standins, o.percent(standin))
		extra = append(extra, 100*(uncounted.spent.sum()-bare.spent.sum())/bare.spent.sum())
		fmt.Printf("%s%d flows trial %d: %.2f ms each; a chain of 8: %.2f ms, %.0f runs of %.0f ns, %.3f %% of completion; the stand-in's: %.0f runs of %.0f ns, %.3f %%\n",
			o.prefix, flows, trial+1, each(bare, sizes), each(with, sizes), with.runs, o.perRunOf(with), ours[trial],
			standin.runs, o.perRunOf(standin), standins[trial])
	}
	o.add(fmt.Sprintf("%soverhead_pct.flows%d", o.prefix, flows), "%", ours)
	o.add(fmt.Sprintf("%sstandin.overhead_pct.flows%d", o.prefix, flows), "%", standins)
	o.add(fmt.Sprintf("%sempty_ns.flows%d", o.prefix, flows), "ns/run", o.empty)
	o.add(fmt.Sprintf("%sextra_cpu_pct.flows%d", o.prefix, flows), "%", extra)
	return nil
}

// each is a flow's completion time in ms.
func each(r lap, sizes []int64) float64 { return 1000 * r.completion / float64(len(sizes)) }

// perRunOf is the time of a run, without that of counting it, in ns.
func (o *overhead) perRunOf(r lap) float64 { return r.programs/r.runs*1e9 - o.perRun }

func (c cpu) sum() float64 { return c.process + c.softirqs }

// trialsOf keeps the largest laps few: they take most of a minute.
func (o *overhead) trialsOf(flows int) int {
	if flows > 1000 {
		return min(o.trials, 2)
	}
	return o.trials
}

// hosts have a chain each, for the same flows.
const hosts = 2

// percent is the time in one host's programs, without that of counting it, to the
// completion times.
func (o *overhead) percent(r lap) float64 {
	return 100 * math.Max(0, r.programs-r.runs*o.perRun/1e9) / r.completion / hosts
}

// lap runs the flows; atOnce 1 runs them one after another. Counting the programs'
// time costs time itself.
func (o *overhead) lap(ctx context.Context, sizes []int64, atOnce int, chain chained, counted bool) (r lap, err error) {
	programs, detach, err := o.attach(chain)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, detach()) }()
	if counted {
		statistics, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
		if err != nil {
			return r, fmt.Errorf("counting the programs' time: %w", err)
		}
		defer func() { err = errors.Join(err, statistics.Close()) }()
	}
	before, err := readCPU()
	if err != nil {
		return r, err
	}
	var moved int64
	for begin := 0; begin < len(sizes); begin += atOnce {
		wave := sizes[begin:min(begin+atOnce, len(sizes))]
		times, err := o.run(ctx, wave)
		if err != nil {
			return r, err
		}
		for i, took := range times {
			r.completion += took.Seconds()
			moved += wave[i]
		}
	}
	if r.spent, err = before.since(moved); err != nil {
		return r, err
	}
	return r, r.count(programs)
}

func (r *lap) count(programs []hooked) error {
	for _, one := range programs {
		counted, err := one.program.Stats()
		if err != nil {
			return fmt.Errorf("reading the time of %s: %w", one.program, err)
		}
		r.programs += counted.Runtime.Seconds()
		r.runs += float64(counted.RunCount)
	}
	return nil
}

// attach puts a chain on the pods' interfaces; nil is none.
func (o *overhead) attach(chain chained) (programs []hooked, detach func() error, err error) {
	var attached loaded
	detach = func() error { return attached.close() }
	if chain == nil {
		return nil, detach, nil
	}
	attached = append(attached, chain)
	for _, ends := range [][2]*network.Pod{{o.client, o.server}, {o.server, o.client}} {
		of, err := chain.load(ends[0], ends[1])
		if err != nil {
			return nil, nil, errors.Join(err, detach())
		}
		for _, one := range of {
			link, err := attachTo(ends[0], one)
			if err != nil {
				return nil, nil, errors.Join(err, detach())
			}
			attached = append(attached, link)
		}
		programs = append(programs, of...)
	}
	return programs, detach, nil
}

func attachTo(pod *network.Pod, one hooked) (attached link.Link, err error) {
	index, err := pod.Node.Index(pod.HostInterface)
	if err != nil {
		return nil, err
	}
	err = pod.Node.Do(func() error {
		attached, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: one.program, Attach: one.hook})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("attaching %s: %w", one.program, err)
	}
	return attached, nil
}

// emptyChain are empty programs where the endpoint half has its own.
type emptyChain struct{ loaded }

func (c *emptyChain) Close() error { return c.close() }

func (c *emptyChain) load(_, _ *network.Pod) (programs []hooked, err error) {
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		empty, err := packettest.NewEmpty()
		if err != nil {
			return nil, fmt.Errorf("loading the empty program: %w", err)
		}
		c.loaded = append(c.loaded, empty)
		programs = append(programs, hooked{empty, hook})
	}
	return programs, nil
}

// countEmpty runs a lap with empty programs: what the kernel counts for one is what
// counting takes, with its caches as cold as those of the others.
func (o *overhead) countEmpty(ctx context.Context, sizes []int64, flows int) error {
	r, err := o.lap(ctx, sizes, flows, &emptyChain{}, true)
	if err != nil {
		return err
	}
	o.perRun = r.programs / r.runs * 1e9
	o.empty = append(o.empty, o.perRun)
	return nil
}

// halfChain is the endpoint half with a match and actions. The rate limit is beyond
// what is possible: windows are computed and stay as they are.
type halfChain struct {
	loaded
	match   func(pod, peer *network.Pod) v1alpha1.Selectors
	actions []v1alpha1.Action
}

// chainOf4 are the actions beside one selector, chainOf8 those beside four.
var (
	chainOf8 = []v1alpha1.Action{
		limitTo(10_000_000, v1alpha1.RateLimitWindow), {Type: v1alpha1.ActionReportSubflow},
		{Type: v1alpha1.ActionRecord}, {Type: v1alpha1.ActionSuppressAddAddr},
	}
	chainOf4 = chainOf8[:3]
)

// matchAll are 4 selectors that every packet between the pods matches, one of which is
// looked at each time.
func matchAll(pod, peer *network.Pod) v1alpha1.Selectors {
	pods := &v1alpha1.Side{CIDR: "10.244.0.0/16"}
	selectors := matchPair(pod, peer)
	selectors.Source, selectors.Destination = pods, pods
	selectors.PacketTypes = []v1alpha1.PacketType{v1alpha1.PacketSYN, v1alpha1.PacketData, v1alpha1.PacketPureACK, v1alpha1.PacketFIN}
	return selectors
}

func (c *halfChain) Close() error { return c.close() }

func (c *halfChain) load(pod, peer *network.Pod) ([]hooked, error) {
	index, err := pod.Node.Index(pod.HostInterface)
	if err != nil {
		return nil, err
	}
	h, err := newHalf(index, ruleOf(&v1alpha1.Match{Selectors: c.match(pod, peer)}, c.actions...))
	if err != nil {
		return nil, err
	}
	c.loaded = append(c.loaded, h)
	return []hooked{{h.from, ebpf.AttachTCXIngress}, {h.to, ebpf.AttachTCXEgress}}, nil
}

// standinChain is the stand-in with as many. A rate limit of the largest window limits
// nothing. Its direction is that of what a pod sends: of each packet one of the two
// hosts has the chain.
type standinChain struct{ loaded }

func (c *standinChain) Close() error { return c.close() }

func (c *standinChain) load(pod, peer *network.Pod) ([]hooked, error) {
	chain, err := baseline.New()
	if err != nil {
		return nil, err
	}
	c.loaded = append(c.loaded, chain)
	pair := baseline.Selector{Kind: baseline.SelectIPPair}
	types := baseline.Selector{Kind: baseline.SelectPacketType, Types: math.MaxUint32}
	actions := []baseline.Action{
		{Kind: baseline.ActRateLimit, Parameter: math.MaxUint16}, {Kind: baseline.ActGetSubflow},
		{Kind: baseline.ActRecord}, {Kind: baseline.ActRateLimit, Parameter: math.MaxUint16},
	}
	subflow := baseline.Subflow{
		Local:  netip.AddrPortFrom(netip.MustParseAddr(pod.IPv4), 0),
		Remote: netip.AddrPortFrom(netip.MustParseAddr(peer.IPv4), 0),
	}
	if err := chain.Set(subflow, []baseline.Selector{pair, pair, pair, types}, actions); err != nil {
		return nil, err
	}
	return []hooked{{chain.Program(), ebpf.AttachTCXIngress}}, nil
}
