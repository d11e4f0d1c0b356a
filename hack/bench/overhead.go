// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/standin"
	"braid.dev/braid/hack/lab/network"
)

// overheadNetwork is the name of the network for flow completion times. Its links are
// not shaped: the faster flows are, the more the programs' time weighs.
const overheadNetwork = "benchfct"

// surrounding is a network on which flows are timed.
type surrounding struct {
	prefix string // of its figures
	delay  time.Duration
	flows  []int // at once
}

// Between two namespaces of a machine there is no delay: flows are so short that the
// programs' time weighs most. A data centre's network has a round trip of 0.2 ms.
var surroundings = []surrounding{
	{"chain.", 0, []int{1, 100, 1000, 10000}},
	{"chain.rtt200us.", 100 * time.Microsecond, []int{1, 100}},
}

// hooked is a program that runs on a pod's packets, and where.
type hooked struct {
	program *ebpf.Program
	hook    ebpf.AttachType
}

// chained is a chain of 8 blocks that all packets of the pods go through.
type chained interface {
	// load returns the programs for a pod's interface on its node's side.
	load(pod, peer *network.Pod) ([]hooked, error)
	Close() error
}

// measureOverhead runs many flows at once through a chain of 8 blocks, and counts
// the time spent in a host's programs as seed 001 does: as a share of the flows'
// completion times. Both ends of each flow have the chain; the figure is their mean.
func measureOverhead(ctx context.Context, b *bench) (err error) {
	perRun, err := costOfStatistics()
	if err != nil {
		return err
	}
	b.add("chain.statistics_ns", "ns/run", []float64{perRun})
	for _, s := range surroundings {
		if err := b.overheadIn(ctx, s, perRun); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) overheadIn(ctx context.Context, s surrounding, perRun float64) (err error) {
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
	o := overhead{bench: b, flows: f, client: client, server: server, perRun: perRun, prefix: s.prefix}
	for _, flows := range s.flows {
		if err := o.measure(ctx, flows); err != nil {
			return fmt.Errorf("%d flows: %w", flows, err)
		}
	}
	return nil
}

type overhead struct {
	*bench
	*flows
	client, server *network.Pod
	// perRun is what the kernel counts for a run of an empty program, in ns.
	perRun float64
	prefix string
}

// lap is what one lap of flows took, in seconds.
type lap struct {
	completion float64 // of all flows together
	programs   float64 // counted by the kernel, its counting included
	runs       float64
	spent      cpu // for each gigabyte
}

// measure runs laps with and without a chain in turns. One flow alone is run once
// for each of a hundred sizes.
func (o *overhead) measure(ctx context.Context, flows int) error {
	var ours, standins, extra []float64
	sizes := sizesOf(max(flows, 100))
	for trial := range o.trialsOf(flows) {
		bare, err := o.lap(ctx, sizes, flows, nil, false)
		if err != nil {
			return err
		}
		uncounted, err := o.lap(ctx, sizes, flows, &halfChain{}, false)
		if err != nil {
			return err
		}
		with, err := o.lap(ctx, sizes, flows, &halfChain{}, true)
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
	o.add(fmt.Sprintf("%sfct_overhead_pct.flows%d", o.prefix, flows), "%", ours)
	o.add(fmt.Sprintf("%sstandin.fct_overhead_pct.flows%d", o.prefix, flows), "%", standins)
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

// costOfStatistics is the time that the kernel counts for an empty program.
func costOfStatistics() (perRun float64, err error) {
	var empty bpf.EmptyObjects
	if err := bpf.LoadEmptyObjects(&empty, nil); err != nil {
		return 0, fmt.Errorf("loading the empty program: %w", err)
	}
	defer empty.Close()
	statistics, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return 0, fmt.Errorf("counting the programs' time: %w", err)
	}
	defer statistics.Close()
	if _, _, err := empty.Empty.Benchmark(segmentOf(chainLocal, chainRemote), repeats, nil); err != nil {
		return 0, fmt.Errorf("running the empty program: %w", err)
	}
	counted, err := empty.Empty.Stats()
	if err != nil {
		return 0, fmt.Errorf("reading the time of the empty program: %w", err)
	}
	return float64(counted.Runtime) / float64(time.Nanosecond) / float64(counted.RunCount), nil
}

// halfChain is the endpoint half with 4 selectors that every packet between the pods
// matches, one of which is looked at each time, and 4 actions. The rate limit is
// beyond what is possible: windows are computed and stay as they are.
type halfChain struct{ loaded }

func (c *halfChain) Close() error { return c.close() }

func (c *halfChain) load(pod, peer *network.Pod) ([]hooked, error) {
	index, err := pod.Node.Index(pod.HostInterface)
	if err != nil {
		return nil, err
	}
	pods := &v1alpha1.Side{CIDR: "10.244.0.0/16"}
	match := &v1alpha1.Match{Selectors: v1alpha1.Selectors{
		AddressPair: []v1alpha1.IPAddress{v1alpha1.IPAddress(pod.IPv4), v1alpha1.IPAddress(peer.IPv4)},
		Source:      pods, Destination: pods,
		PacketTypes: []v1alpha1.PacketType{v1alpha1.PacketSYN, v1alpha1.PacketData, v1alpha1.PacketPureACK, v1alpha1.PacketFIN},
	}}
	h, err := newHalf(index, ruleOf(match,
		limitTo(10_000_000, v1alpha1.RateLimitWindow), v1alpha1.Action{Type: v1alpha1.ActionReportSubflow},
		v1alpha1.Action{Type: v1alpha1.ActionRecord}, v1alpha1.Action{Type: v1alpha1.ActionBlockSubflow},
	))
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
	chain, err := standin.New()
	if err != nil {
		return nil, err
	}
	c.loaded = append(c.loaded, chain)
	pair := standin.Selector{Kind: standin.SelectIPPair}
	types := standin.Selector{Kind: standin.SelectPacketType, Types: math.MaxUint32}
	actions := []standin.Action{
		{Kind: standin.ActRateLimit, Parameter: math.MaxUint16}, {Kind: standin.ActGetSubflow},
		{Kind: standin.ActRecord}, {Kind: standin.ActRateLimit, Parameter: math.MaxUint16},
	}
	subflow := standin.Subflow{
		Local:  netip.AddrPortFrom(netip.MustParseAddr(pod.IPv4), 0),
		Remote: netip.AddrPortFrom(netip.MustParseAddr(peer.IPv4), 0),
	}
	if err := chain.Set(subflow, []standin.Selector{pair, pair, pair, types}, actions); err != nil {
		return nil, err
	}
	return []hooked{{chain.Program(), ebpf.AttachTCXIngress}}, nil
}
