// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// receiveBuffers are settings of net.ipv4.tcp_rmem: sizes that stay as they are, and
// the kernel's default of machines with a few GB, which grows.
var receiveBuffers = []struct{ name, setting string }{
	{"64k", "4096 65536 65536"},
	{"128k", "4096 131072 131072"},
	{"256k", "4096 262144 262144"},
	{"1m", "4096 1048576 1048576"},
	{"default", "4096 131072 6291456"},
}

// defaultSendBuffers are the kernel's, as net.ipv4.tcp_wmem.
const defaultSendBuffers = "4096 16384 4194304"

// secondPath is what the second of two paths is like; the first one has 100 Mbit/s.
type secondPath struct {
	name  string
	delay time.Duration // one way
	make  func(*rig.Pair, string) error
	// during is done while a transfer runs.
	during func(*rig.Pair, string) error
}

var secondPaths = []secondPath{
	{name: "equal"},
	{name: "slow", make: func(p *rig.Pair, path string) error {
		return eachNode(p, func(n *network.Node) error { return n.Shape(path, 10) })
	}},
	{name: "lossy", make: func(p *rig.Pair, path string) error { return p.Lose(p.Nodes[0], path, 0.01) }},
	{name: "late", delay: 10 * time.Millisecond},
	{name: "fails", during: failForAWhile},
}

func eachNode(p *rig.Pair, do func(*network.Node) error) (failed error) {
	for _, node := range p.Nodes {
		failed = errors.Join(failed, do(node))
	}
	return failed
}

// failForAWhile has a path lose everything with its carriers up, twice.
func failForAWhile(p *rig.Pair, path string) error {
	for range 2 {
		time.Sleep(800 * time.Millisecond)
		if err := p.Block(p.Nodes[0], path, true); err != nil {
			return err
		}
		time.Sleep(300 * time.Millisecond)
		if err := p.Block(p.Nodes[0], path, false); err != nil {
			return err
		}
	}
	return nil
}

var (
	// buffered has the subflows that a policy without any settings gives.
	buffered = rig.Mode{
		Name: "braid", Subflows: rig.EachPath, Braid: true,
		OpenAfter: pathmanager.OpenAfter{Bytes: 256 << 10, Time: 500 * time.Millisecond},
	}
	// bounded ends a transfer that stands still soon after its time.
	bounded = traffic.Options{Duration: 3 * time.Second, Warmup: 700 * time.Millisecond, Patience: 4 * time.Second}
)

// measureBuffers compares the goodput of one connection to that of plain TCP on the best
// path, in cells of receive buffer, second path and direction.
func measureBuffers(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	for range m.Trials {
		for _, second := range secondPaths {
			spec := network.Spec{
				Paths: rig.Paths[:2], LinkMbit: rig.LinkMbit, PodsPerNode: 1,
				PathDelays: map[string]time.Duration{rig.Paths[1]: second.delay},
			}
			if !slices.ContainsFunc(cellsOf(second), func(c cell) bool { return m.Cases.MatchString(c.name()) }) {
				continue
			}
			if err := rig.Use(ctx, rig.PairOn(spec), func(p *rig.Pair) error { return measureCells(ctx, m, p, second) }); err != nil {
				return fmt.Errorf("second path %s: %w", second.name, err)
			}
		}
	}
	summarize(m)
	return nil
}

// cell is one situation.
type cell struct {
	second          secondPath
	buffer, setting string
	direction       traffic.Direction
}

func (c cell) name() string {
	return fmt.Sprintf("buffers.%s.%s.%s", c.buffer, c.second.name, c.direction)
}

func cellsOf(second secondPath) (cells []cell) {
	for _, buffer := range receiveBuffers {
		for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
			cells = append(cells, cell{second, buffer.name, buffer.setting, direction})
		}
	}
	return cells
}

func measureCells(ctx context.Context, m *rig.Measurement, p *rig.Pair, second secondPath) error {
	if second.make != nil {
		if err := second.make(p, rig.Paths[1]); err != nil {
			return err
		}
	}
	for _, c := range cellsOf(second) {
		if !m.Cases.MatchString(c.name()) {
			continue
		}
		if err := c.measure(ctx, m, p); err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
	}
	return nil
}

// measure runs one trial of a cell.
func (c cell) measure(ctx context.Context, m *rig.Measurement, p *rig.Pair) error {
	for _, pod := range []*network.Pod{p.Sender(), p.Receiver()} {
		if err := errors.Join(pod.Sysctl("net.ipv4.tcp_rmem", c.setting), pod.Sysctl("net.ipv4.tcp_wmem", defaultSendBuffers)); err != nil {
			return err
		}
	}
	mbit, stalls := map[string]float64{}, 0.0
	for mode := range rig.Shuffled([]rig.Mode{rig.Single, buffered}) {
		result, err := c.transfer(ctx, p, mode)
		if err != nil {
			return fmt.Errorf("%s: %w", mode.Name, err)
		}
		mbit[mode.Name] = result.Mbit
		if mode.Braid && result.Failed > 0 {
			stalls++
			rig.Say("%s: %v after %d bytes", c.name(), result.Errors, result.Bytes)
		}
	}
	if mbit[rig.Single.Name] == 0 {
		return errors.New("plain TCP moved nothing over the first path")
	}
	m.Add(c.name()+".tcp", mbit[rig.Single.Name])
	m.Add(c.name()+".braid", mbit[buffered.Name])
	m.Add(c.name()+".to_tcp", mbit[buffered.Name]/mbit[rig.Single.Name])
	m.Add(c.name()+".stalls", stalls)
	return nil
}

// transfer runs one in a mode, plain TCP for the single path. The server's socket is a
// new one: buffers are those of the time at which a socket was made.
func (c cell) transfer(ctx context.Context, p *rig.Pair, mode rig.Mode) (*traffic.Result, error) {
	const port = 5002
	if err := p.Set(ctx, mode); err != nil {
		return nil, err
	}
	server, err := rig.Serve(ctx, p.Receiver().Namespace, strconv.Itoa(port))
	if err != nil {
		return nil, err
	}
	route := rig.Route{From: p.Sender().Namespace, To: net.JoinHostPort(p.Receiver().IPv4, strconv.Itoa(port))}
	if !mode.Braid {
		route.Protocol = network.TCP
	}
	options := bounded
	options.Direction = c.direction
	running, err := route.Start(ctx, options)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	if c.second.during != nil {
		err = c.second.during(p, rig.Paths[1])
	}
	result, failed := running.End()
	return result, errors.Join(err, failed, server.Close())
}

// summarize notes the worst cell by its median, and how many transfers stood still.
func summarize(m *rig.Measurement) {
	worst, stalls, measured := 0.0, 0.0, false
	for _, second := range secondPaths {
		for _, c := range cellsOf(second) {
			ratios := m.Values(c.name() + ".to_tcp")
			if len(ratios) == 0 {
				continue
			}
			if ratio := rig.Median(ratios); !measured || ratio < worst {
				worst, measured = ratio, true
			}
			for _, stalled := range m.Values(c.name() + ".stalls") {
				stalls += stalled
			}
		}
	}
	if measured {
		m.Add("buffers.worst_cell_to_tcp", worst)
		m.Add("buffers.stalls", stalls)
	}
}
