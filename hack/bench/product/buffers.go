// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

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

// secondPath is what the second of two paths is like, or all but the first of more; the first one
// has 100 Mbit/s.
type secondPath struct {
	name  string
	more  int           // paths that are as the second one
	delay time.Duration // one way
	make  func(*rig.Lab, string) error
	// during is done while a transfer runs.
	during func(*rig.Lab, string) error
}

var secondPaths = []secondPath{
	{name: "equal"},
	{name: "slow", make: shaped(10)},
	{name: "two_slow", more: 1, make: shaped(10)},
	{name: "two_very_slow", more: 1, make: shaped(3)},
	{name: "two_hardly_any", more: 1, make: shaped(1)},
	{name: "third_very_slow", more: 1, make: onlyTheLast(shaped(3))},
	{name: "half_and_very_slow", more: 1, make: shapedEach(50, 2)},
	{name: "lossy", make: func(l *rig.Lab, path string) error { return l.Network.Lose(l.Sender.Node, path, 0.01) }},
	{name: "policed", make: policed},
	{name: "third_policed", more: 1, make: onlyTheLast(policed)},
	{name: "late", delay: 10 * time.Millisecond},
	{name: "fails", during: failForAWhile},
}

// shaped has a path carry so many Mbit/s.
func shaped(mbit int) func(*rig.Lab, string) error {
	return func(l *rig.Lab, path string) error {
		return eachNode(l, func(n *network.Node) error { return n.Shape(path, mbit) })
	}
}

// shapedEach has the second and the third path carry so many Mbit/s.
func shapedEach(mbit ...int) func(*rig.Lab, string) error {
	return func(l *rig.Lab, path string) error {
		return shaped(mbit[slices.Index(rig.Paths[1:], path)])(l, path)
	}
}

// policed has a path lose at once what is more than half a link's rate and a burst of 256 kB.
func policed(l *rig.Lab, path string) error {
	return l.Network.Police(path, rig.LinkMbit/2, 256_000)
}

// onlyTheLast makes the last path so, and leaves the second one as good as the first.
func onlyTheLast(do func(*rig.Lab, string) error) func(*rig.Lab, string) error {
	return func(l *rig.Lab, path string) error {
		if path != rig.Paths[2] {
			return nil
		}
		return do(l, path)
	}
}

func eachNode(l *rig.Lab, do func(*network.Node) error) (failed error) {
	for _, node := range l.Network.Nodes {
		failed = errors.Join(failed, do(node))
	}
	return failed
}

// failForAWhile has a path lose everything with its carriers up, twice.
func failForAWhile(l *rig.Lab, path string) error {
	for range 2 {
		time.Sleep(800 * time.Millisecond)
		if err := l.Network.Block(l.Sender.Node, path, true); err != nil {
			return err
		}
		time.Sleep(300 * time.Millisecond)
		if err := l.Network.Block(l.Sender.Node, path, false); err != nil {
			return err
		}
	}
	return nil
}

// bounded ends a transfer that stands still soon after its time.
var bounded = traffic.Options{Duration: 3 * time.Second, Warmup: 700 * time.Millisecond, Patience: 4 * time.Second}

// bufferedPort is where a new server listens for each transfer.
const bufferedPort = "5002"

// measureBuffers compares the goodput of one connection between two pods of the default policy to
// that of plain TCP on the best path between two that no policy selects, in cells of receive
// buffer, second path and direction.
func measureBuffers(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	for _, second := range secondPaths {
		if !slices.ContainsFunc(cellsOf(second), func(c cell) bool { return m.Cases.MatchString(c.name()) }) {
			continue
		}
		if err := rig.Use(ctx, second.build, func(l *rig.Lab) error { return measureCells(ctx, m, l, second) }); err != nil {
			return fmt.Errorf("second path %s: %w", second.name, err)
		}
	}
	summarize(m)
	return nil
}

// build brings up a lab with such a second path.
func (s secondPath) build(ctx context.Context) (*rig.Lab, error) {
	others := rig.Paths[1 : 2+s.more]
	spec := network.Spec{Paths: rig.Paths[:2+s.more], LinkMbit: rig.LinkMbit, PathDelays: map[string]time.Duration{}}
	for _, path := range others {
		spec.PathDelays[path] = s.delay
	}
	l, err := rig.NewLab(ctx, spec, rig.PodOf("demo", "plain-client", 1), rig.PodOf("demo", "plain-server", 2))
	if err != nil {
		return nil, err
	}
	for _, path := range others {
		if s.make != nil {
			err = errors.Join(err, s.make(l, path))
		}
	}
	if err = errors.Join(err, l.Spread(ctx, "")); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
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

func measureCells(ctx context.Context, m *rig.Measurement, l *rig.Lab, second secondPath) error {
	for range m.Trials {
		for _, c := range cellsOf(second) {
			if !m.Cases.MatchString(c.name()) {
				continue
			}
			if err := c.measure(ctx, m, l); err != nil {
				return fmt.Errorf("%s: %w", c.name(), err)
			}
		}
	}
	return nil
}

// contender is a kind of connection that cells compare.
type contender struct {
	name           string
	client, server *network.Pod
	protocol       network.Protocol
}

func contendersOf(l *rig.Lab) []contender {
	return []contender{
		{"tcp", l.Network.Pod("plain-client"), l.Network.Pod("plain-server"), network.TCP},
		{"braid", l.Sender, l.Receiver, network.MPTCP},
	}
}

// measure runs one trial of a cell.
func (c cell) measure(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	mbit, stalls := map[string]float64{}, 0.0
	for s := range rig.Shuffled(contendersOf(l)) {
		result, err := c.transfer(ctx, l, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		mbit[s.name] = result.Mbit
		m.Add(c.name()+"."+s.name, result.Mbit)
		if s.protocol != network.TCP && result.Failed > 0 {
			stalls++
			rig.Say("%s: %v after %d bytes", c.name(), result.Errors, result.Bytes)
		}
	}
	if mbit["tcp"] == 0 {
		return errors.New("plain TCP moved nothing over the first path")
	}
	m.Add(c.name()+".to_tcp", mbit["braid"]/mbit["tcp"])
	m.Add(c.name()+".stalls", stalls)
	return nil
}

// transfer runs one. The server's socket is a new one: buffers are those of the time at which a
// socket was made.
func (c cell) transfer(ctx context.Context, l *rig.Lab, s contender) (*traffic.Result, error) {
	for _, pod := range []*network.Pod{s.client, s.server} {
		if err := errors.Join(pod.Sysctl("net.ipv4.tcp_rmem", c.setting), pod.Sysctl("net.ipv4.tcp_wmem", defaultSendBuffers)); err != nil {
			return nil, err
		}
	}
	server, err := rig.Serve(ctx, s.server.Namespace, bufferedPort)
	if err != nil {
		return nil, err
	}
	options := bounded
	options.Direction = c.direction
	route := rig.Route{From: s.client.Namespace, To: net.JoinHostPort(s.server.IPv4, bufferedPort), Protocol: s.protocol}
	running, err := route.Start(ctx, options)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	if c.second.during != nil {
		err = c.second.during(l, rig.Paths[1])
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
