// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/transport"
	"braid.dev/braid/agent/transport/incasttest"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
)

const (
	crowdName   = "incast"
	crowdState  = "/run/braid-bench-incast"
	crowdPods   = crowdState + "-pods"
	crowdMbit   = rig.LinkMbit
	crowdBuffer = 64 << 10
	// coreMbit is the rate of the NIC of half of the senders, where that is a bottleneck.
	coreMbit = 30
)

// crowd is a receiver behind a NIC of 100 Mbit/s with a buffer of 64 kB for each path, and eight
// senders on two other nodes.
type crowd struct {
	*network.Network
	part    *transport.Part
	builder *node.Builder
	spread  *incasttest.Spread // nil for a single path
}

// cleanCrowd removes what a killed run left.
func cleanCrowd() error {
	err := network.Teardown(crowdName)
	if failed := unix.Unmount(crowdState, unix.MNT_DETACH); failed != nil && !errors.Is(failed, unix.EINVAL) && !errors.Is(failed, unix.ENOENT) {
		err = errors.Join(err, fmt.Errorf("unmounting %s: %w", crowdState, failed))
	}
	return errors.Join(err, os.RemoveAll(crowdState), os.RemoveAll(crowdPods))
}

// crowdOn makes one whose nodes have so many paths, in an overlay or not. Over several the
// connections of MPTCP have a subflow on each.
func crowdOn(paths int, overlay network.Overlay) func(context.Context) (*crowd, error) {
	return func(ctx context.Context) (*crowd, error) {
		c := &crowd{}
		if err := errors.Join(cleanCrowd(), os.MkdirAll(crowdState, 0o700)); err != nil {
			return nil, err
		}
		if err := unix.Mount("bpf", crowdState, "bpf", 0, ""); err != nil {
			return nil, fmt.Errorf("mounting a BPF file system: %w", err)
		}
		var err error
		spec := network.Spec{Name: crowdName, Nodes: 3, Paths: rig.Paths[:paths], LinkMbit: 10 * crowdMbit, PodsPerNode: 4, Overlay: overlay}
		if c.Network, err = network.Build(spec); err != nil {
			return nil, errors.Join(err, cleanCrowd())
		}
		c.builder = nodetest.NewBuilder(filepath.Join(crowdState, "registry"))
		c.part = transport.Open(transport.Options{PinPath: crowdState, NamespaceDirectories: []string{network.Directory}, Log: logr.Discard()})
		if err := c.prepare(ctx); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	}
}

func (c *crowd) prepare(ctx context.Context) (err error) {
	for _, path := range c.Spec.Paths {
		if err := c.Fabric.ShapeQueue(path+".1", crowdMbit, crowdBuffer); err != nil {
			return err
		}
	}
	if len(c.Spec.Paths) > 1 {
		c.spread, err = incasttest.SpreadOver(ctx, c.Network, crowdState, crowdPods)
	}
	return err
}

// Close removes everything.
func (c *crowd) Close() error {
	failed := c.Nodes[0].Do(func() error { return c.part.Remove(context.Background()) })
	if c.spread != nil {
		failed = errors.Join(failed, c.spread.Close())
	}
	return errors.Join(failed, c.part.Close(), c.Delete(), cleanCrowd())
}

func (c *crowd) receiver() *network.Pod { return c.Nodes[0].Pods[0] }

func (c *crowd) senders() []*network.Pod {
	return append(append([]*network.Pod{}, c.Nodes[1].Pods...), c.Nodes[2].Pods...)
}

// give has the receiver give credits and so many senders heed them. All use cubic.
func (c *crowd) give(ctx context.Context, heeding int) error {
	model, err := c.model()
	if err != nil {
		return err
	}
	pods := []nodetest.Pod{{UID: "receiver", Namespace: c.receiver().Path()}}
	for _, sender := range c.senders() {
		pods = append(pods, nodetest.Pod{UID: types.UID(sender.Name), Namespace: sender.Path()})
	}
	credits := &v1alpha1.Incast{Mode: v1alpha1.IncastCredits, Peers: []v1alpha1.CIDR{"10.244.0.0/16", "fd00::/8"}}
	model.Endpoints = nodetest.Model(pods...).Endpoints
	for i := range model.Endpoints {
		model.Endpoints[i].Transport = &v1alpha1.Transport{CongestionControl: "cubic"}
		if heeding > 0 && i <= heeding {
			model.Endpoints[i].Incast = credits
		}
	}
	model.Endpoints[0].Addresses = []netip.Addr{netip.MustParseAddr(c.receiver().IPv4), netip.MustParseAddr(c.receiver().IPv6)}
	return c.Nodes[0].Do(func() error { return nodetest.Failures(c.part.Apply(ctx, model)) })
}

// model is the receiver's node, without its pods.
func (c *crowd) model() (*node.Model, error) {
	tunnels, err := incasttest.TunnelsOf(c.Nodes[0])
	if err != nil {
		return nil, err
	}
	state := nodetest.State{Tunnels: tunnels}
	for _, path := range c.Spec.Paths {
		index, err := c.Nodes[0].Index(path)
		if err != nil {
			return nil, err
		}
		state.Paths = append(state.Paths, nodetest.Path{Name: path, Interface: index, Up: true, Capacity: crowdMbit * 1e6})
	}
	return state.Model(c.builder)
}

// situation is one that is measured with credits and without.
type situation struct {
	name    string
	heeding int // senders, of eight
	foreign int // Mbit/s of UDP to another pod of the receiver's node
	core    bool
	mptcp   bool
	flows   []loads
}

// setting is a network, and what is measured on it.
type setting struct {
	setup      func(context.Context) (*crowd, error)
	situations []situation
}

type loads struct {
	name    string
	options incasttest.Options
}

var (
	crowdLong = 3 * time.Second
	bursts    = []loads{{"8x256k", incasttest.Options{Flows: 8, Bytes: 256 << 10}}, {"32x64k", incasttest.Options{Flows: 32, Bytes: 64 << 10}}}
	longFlows = []loads{{"8long", incasttest.Options{Flows: 8, Duration: crowdLong}}, {"32long", incasttest.Options{Flows: 32, Duration: crowdLong}}}
	allLoads  = append(append([]loads{}, bursts...), longFlows...)

	settings = []setting{
		{crowdOn(1, network.Overlay{}), []situation{
			{name: "tcp", heeding: 8, flows: allLoads}, {name: "mptcp", heeding: 8, mptcp: true, flows: allLoads},
			{name: "half", heeding: 4, flows: allLoads}, {name: "udp", heeding: 8, foreign: crowdMbit / 3, flows: allLoads},
			{name: "core", heeding: 8, core: true, flows: allLoads},
		}},
		{crowdOn(2, network.Overlay{}), []situation{{name: "planes", heeding: 8, mptcp: true, flows: allLoads}}},
		{crowdOn(1, network.Overlay{Outer: 4}), []situation{{name: "vxlan", heeding: 8, flows: allLoads}}},
		{crowdOn(2, network.Overlay{Outer: 4}), []situation{{name: "vxlan_planes", heeding: 8, mptcp: true, flows: allLoads}}},
	}
)

// measureIncast compares credits with cubic alone.
func measureIncast(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	for _, of := range settings {
		if !of.matches(m) {
			continue
		}
		if err := rig.Use(ctx, of.setup, func(c *crowd) error { return c.measureAll(ctx, m, of.situations) }); err != nil {
			return err
		}
	}
	return nil
}

var crowdDesigns = []string{"cubic", "credits"}

func caseOf(s situation, load loads, design string) string {
	return fmt.Sprintf("incast.%s.%s.%s", s.name, load.name, design)
}

// matches tells whether anything is to be measured in it.
func (of setting) matches(m *rig.Measurement) bool {
	for _, s := range of.situations {
		for _, load := range s.flows {
			if slices.ContainsFunc(crowdDesigns, func(design string) bool { return m.Cases.MatchString(caseOf(s, load, design)) }) {
				return true
			}
		}
	}
	return false
}

func (c *crowd) measureAll(ctx context.Context, m *rig.Measurement, situations []situation) error {
	for range m.Trials {
		for _, s := range situations {
			if err := c.measure(ctx, m, s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

func (c *crowd) measure(ctx context.Context, m *rig.Measurement, s situation) (failed error) {
	if s.core {
		if err := c.Nodes[1].ShapeQueue(rig.Paths[0], coreMbit, crowdBuffer); err != nil {
			return err
		}
		defer func() {
			failed = errors.Join(failed, c.Nodes[1].ShapeQueue(rig.Paths[0], 10*crowdMbit, 10*crowdBuffer))
		}()
	}
	if s.foreign > 0 {
		stop, err := c.blast(s.foreign)
		if err != nil {
			return err
		}
		defer stop()
	}
	for _, load := range s.flows {
		for design := range rig.Shuffled(crowdDesigns) {
			name := caseOf(s, load, design)
			if !m.Cases.MatchString(name) {
				continue
			}
			heeding := s.heeding
			if design == "cubic" {
				heeding = 0
			}
			if err := errors.Join(c.give(ctx, heeding), c.run(ctx, m, s, load, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *crowd) run(ctx context.Context, m *rig.Measurement, s situation, load loads, name string) error {
	options := load.options
	options.Senders, options.Receiver = c.senders(), c.receiver()
	if !s.mptcp {
		options.Protocol = network.TCP
	}
	before, err := c.received()
	if err != nil {
		return err
	}
	result, err := incasttest.Run(ctx, options)
	if err != nil {
		return err
	}
	m.Add(name+".retransmitted_pct", result.RetransmittedShare())
	m.Add(name+".mbit", result.Mbit())
	if options.Bytes > 0 {
		m.Add(name+".slowest", result.Slowest().Seconds()/c.ideal(options.Flows*options.Bytes))
	} else {
		m.Add(name+".jain", result.Jain())
	}
	if s.heeding < len(options.Senders) && options.Bytes == 0 {
		m.Add(name+".first_half_mbit", firstHalf(result, len(options.Senders), s.heeding))
	}
	if len(before) == 1 {
		return nil
	}
	after, err := c.received()
	if err == nil {
		m.Add(name+".lesser_path_pct", lesserShare(before, after))
	}
	return err
}

// ideal are the seconds that so many bytes take, all at once and evenly, at the rate of the
// links, in frames that are full.
func (c *crowd) ideal(bytes int) float64 {
	payload := 1448.0
	if c.Spec.Overlay.Outer == 4 {
		payload -= 50
	}
	return float64(bytes) * 8 / (float64(len(c.Spec.Paths)) * crowdMbit * 1e6) * 1514 / payload
}

// received is what came in by each NIC of the receiver's node.
func (c *crowd) received() (bytes []float64, err error) {
	for _, path := range c.Spec.Paths {
		counters, err := c.Nodes[0].Counters(path)
		if err != nil {
			return nil, err
		}
		bytes = append(bytes, float64(counters.RxBytes))
	}
	return bytes, nil
}

// lesserShare is what the NIC had by which the least came in, in percent of all.
func lesserShare(before, after []float64) float64 {
	least, all := math.Inf(1), 0.0
	for i := range before {
		least = min(least, after[i]-before[i])
		all += after[i] - before[i]
	}
	return 100 * least / all
}

// firstHalf is the goodput of the flows of the senders that would heed credits.
func firstHalf(result *incasttest.Result, senders, heeding int) float64 {
	bytes := int64(0)
	for i, flow := range result.Flows {
		if i%senders < heeding {
			bytes += flow.Bytes
		}
	}
	return float64(bytes) * 8 / 1e6 / result.Slowest().Seconds()
}

// blast sends datagrams to another pod of the receiver's node until it is told to stop.
func (c *crowd) blast(mbit int) (stop func(), err error) {
	var socket net.Conn
	err = c.Nodes[2].Pods[3].Do(func() (err error) {
		socket, err = net.Dial("udp", net.JoinHostPort(c.Nodes[0].Pods[1].IPv4, "9"))
		return err
	})
	if err != nil {
		return nil, err
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for began, sent := time.Now(), 0; ; {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			for sent < int(time.Since(began).Seconds()*float64(mbit)*1e6/8) {
				_, _ = socket.Write(make([]byte, 1200)) // nobody listens there
				sent += 1242
			}
		}
	}()
	return func() { close(done); <-ended; _ = socket.Close() }, nil
}
