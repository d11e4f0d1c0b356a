// SPDX-License-Identifier: Apache-2.0

package papers

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
	"braid.dev/braid/hack/bench/baseline"
	"braid.dev/braid/hack/bench/rig"
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

// chain is one that is attached to the pods' interfaces: it loads the programs for a
// pod's interface on its node's side.
type chain func(own *rig.Closers, pod, peer *network.Pod) ([]hooked, error)

// measureFCT runs many flows at once through a chain, and counts the time spent in
// a host's programs as seed 001 does: as a share of the flows' completion times. Both
// ends of each flow have the chain; the figure is their mean. Its 0.63 % are the mean
// over granularities of selection with a chain of 4; all packets through a chain of 8
// are the harsher count.
func measureFCT(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	for _, s := range surroundings {
		s.flows = slices.DeleteFunc(slices.Clone(s.flows), func(flows int) bool {
			return !m.Cases.MatchString(fmt.Sprintf("%sflows%d", s.prefix, flows))
		})
		if len(s.flows) == 0 {
			continue
		}
		err := rig.Use(ctx, s.build, func(o *overhead) error {
			o.Measurement = m
			for _, flows := range s.flows {
				if err := s.measure(o, ctx, flows); err != nil {
					return fmt.Errorf("%d flows: %w", flows, err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// build makes the network and starts the server.
func (s surrounding) build(ctx context.Context) (*overhead, error) {
	if err := network.Teardown(overheadNetwork); err != nil {
		return nil, err
	}
	n, err := network.Build(network.Spec{
		Name: overheadNetwork, Nodes: 2, Paths: rig.Paths[:1], PodsPerNode: 1, IPv4: true, PathDelays: rig.Evenly(rig.Paths[:1], s.delay),
	})
	if err != nil {
		return nil, err
	}
	o := &overhead{network: n, client: n.Nodes[0].Pods[0], server: n.Nodes[1].Pods[0], prefix: s.prefix}
	if o.flows, err = rig.NewFlows(ctx, o.client, o.server); err != nil {
		return nil, errors.Join(err, n.Delete())
	}
	return o, nil
}

// overhead is measured between two pods.
type overhead struct {
	*rig.Measurement
	network        *network.Network
	flows          *rig.Flows
	client, server *network.Pod
	prefix         string
	// perRun is what the kernel counts for a run of an empty program among the same
	// flows, in ns.
	perRun float64
}

// Close stops the server and removes the network.
func (o *overhead) Close() error { return errors.Join(o.flows.Close(), o.network.Delete()) }

// lap is what one lap of flows took, in seconds.
type lap struct {
	completion float64 // of all flows together
	programs   float64 // counted by the kernel, its counting included
	runs       float64
	spent      rig.CPU // for each gigabyte
}

// measureGranularities runs laps with a chain of 4, a selector and three actions, at
// each granularity in turns. One flow alone is run once for each of a hundred sizes.
func (o *overhead) measureGranularities(ctx context.Context, flows int) error {
	sizes := rig.SizesOf(max(flows, 100))
	for range o.trialsOf(flows) {
		if err := o.countEmpty(ctx, sizes, flows, "fct_empty_ns"); err != nil {
			return err
		}
		mean := 0.0
		for _, g := range granularities {
			with, err := o.lap(ctx, sizes, flows, rulesChain(g.match, chainOf4), true)
			if err != nil {
				return err
			}
			share := o.percent(with)
			mean += share / float64(len(granularities))
			o.Add(fmt.Sprintf("%sfct_granularity.%s.overhead_pct.flows%d", o.prefix, g.name, flows), share)
		}
		o.Add(fmt.Sprintf("%sfct_overhead_pct.flows%d", o.prefix, flows), mean)
	}
	return nil
}

// measureAllPackets runs laps with and without a chain of 8 in turns.
func (o *overhead) measureAllPackets(ctx context.Context, flows int) error {
	sizes, rules := rig.SizesOf(max(flows, 100)), rulesChain(matchAll, chainOf8)
	for range o.trialsOf(flows) {
		if err := o.countEmpty(ctx, sizes, flows, "empty_ns"); err != nil {
			return err
		}
		var laps [4]lap
		for i, l := range []struct {
			chain   chain
			counted bool
		}{{nil, false}, {rules, false}, {rules, true}, {baselineChain, true}} {
			var err error
			if laps[i], err = o.lap(ctx, sizes, flows, l.chain, l.counted); err != nil {
				return err
			}
		}
		bare, uncounted := laps[0].spent.Sum(), laps[1].spent.Sum()
		o.Add(fmt.Sprintf("%soverhead_pct.flows%d", o.prefix, flows), o.percent(laps[2]))
		o.Add(fmt.Sprintf("%sbaseline.overhead_pct.flows%d", o.prefix, flows), o.percent(laps[3]))
		o.Add(fmt.Sprintf("%sextra_cpu_pct.flows%d", o.prefix, flows), 100*(uncounted-bare)/bare)
	}
	return nil
}

// trialsOf keeps the largest laps few: they take most of a minute.
func (o *overhead) trialsOf(flows int) int {
	if flows > 1000 {
		return min(o.Trials, 2)
	}
	return o.Trials
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
func (o *overhead) lap(ctx context.Context, sizes []int64, atOnce int, attached chain, counted bool) (r lap, err error) {
	var own rig.Closers
	defer func() { err = errors.Join(err, own.Close()) }()
	programs, err := o.attach(&own, attached)
	if err != nil {
		return r, err
	}
	if counted {
		statistics, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
		if err != nil {
			return r, fmt.Errorf("counting the programs' time: %w", err)
		}
		defer func() { err = errors.Join(err, statistics.Close()) }()
	}
	before, err := rig.ReadCPU()
	if err != nil {
		return r, err
	}
	var moved int64
	for begin := 0; begin < len(sizes); begin += atOnce {
		wave := sizes[begin:min(begin+atOnce, len(sizes))]
		times, err := o.flows.Run(ctx, wave, len(wave))
		if err != nil {
			return r, err
		}
		for i, took := range times {
			r.completion += took.Seconds()
			moved += wave[i]
		}
	}
	if r.spent, err = before.Since(moved); err != nil {
		return r, err
	}
	err = r.count(programs)
	if r.runs > 0 {
		rig.Say("%s%d flows, %.2f ms each, %.0f runs of %.0f ns with what counting takes", o.prefix, atOnce,
			1000*r.completion/float64(len(sizes)), r.runs, r.programs/r.runs*1e9)
	}
	return r, err
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
func (o *overhead) attach(own *rig.Closers, attached chain) (programs []hooked, err error) {
	if attached == nil {
		return nil, nil
	}
	for _, ends := range [][2]*network.Pod{{o.client, o.server}, {o.server, o.client}} {
		of, err := attached(own, ends[0], ends[1])
		if err != nil {
			return nil, err
		}
		for _, one := range of {
			link, err := attachTo(ends[0], one)
			if err != nil {
				return nil, err
			}
			own.Own(link)
		}
		programs = append(programs, of...)
	}
	return programs, nil
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
func emptyChain(own *rig.Closers, _, _ *network.Pod) (programs []hooked, err error) {
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		empty, err := own.LoadEmpty()
		if err != nil {
			return nil, err
		}
		programs = append(programs, hooked{empty, hook})
	}
	return programs, nil
}

// countEmpty runs a lap with empty programs: what the kernel counts for one is what
// counting takes, with its caches as cold as those of the others.
func (o *overhead) countEmpty(ctx context.Context, sizes []int64, flows int, figure string) error {
	r, err := o.lap(ctx, sizes, flows, emptyChain, true)
	if err != nil {
		return err
	}
	o.perRun = r.programs / r.runs * 1e9
	o.Add(fmt.Sprintf("%s%s.flows%d", o.prefix, figure, flows), o.perRun)
	return nil
}

// chainOf4 are the actions beside one selector, chainOf8 those beside four.
var (
	chainOf8 = []v1alpha1.Action{
		rig.LimitTo(10_000_000, v1alpha1.RateLimitWindow), {Type: v1alpha1.ActionReportSubflow},
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

// rulesChain is the endpoint half with a match and actions. The rate limit is beyond
// what is possible: windows are computed and stay as they are.
func rulesChain(match func(pod, peer *network.Pod) v1alpha1.Selectors, actions []v1alpha1.Action) chain {
	return func(own *rig.Closers, pod, peer *network.Pod) ([]hooked, error) {
		index, err := pod.Node.Index(pod.HostInterface)
		if err != nil {
			return nil, err
		}
		h, err := newHalf(index, rig.RuleOf(&v1alpha1.Match{Selectors: match(pod, peer)}, actions...))
		if err != nil {
			return nil, err
		}
		own.Own(h)
		return []hooked{{h.from, ebpf.AttachTCXIngress}, {h.to, ebpf.AttachTCXEgress}}, nil
	}
}

// baselineChain is the baseline with as many blocks. A rate limit of the largest window
// limits nothing. Its direction is that of what a pod sends: of each packet one of the
// two hosts has the chain.
func baselineChain(own *rig.Closers, pod, peer *network.Pod) ([]hooked, error) {
	chain, err := baseline.New()
	if err != nil {
		return nil, err
	}
	own.Own(chain)
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
