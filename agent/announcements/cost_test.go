// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// BenchmarkAPacketOfAConnectionThatLasts is what the program takes of each packet that a
// pod sends on a real connection, next to an empty program that gets the same packets. A
// test run of the program would have no socket to look at.
func BenchmarkAPacketOfAConnectionThatLasts(b *testing.B) {
	for name, after := range map[string]pathmanager.OpenAfter{"announced at once": {}, "announced when it lasts": {Bytes: 256 << 10}} {
		b.Run(name, func(b *testing.B) {
			l := &lab{options: Options{PinPath: testutil.BPFFS(b), Log: logr.Discard()}, manager: v1alpha1.SubflowManagerKernel}
			l.Network = network.ForTest(b, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1})
			l.hold(b, after)
			programs := []*ebpf.Program{l.holder.loaded.Value.HoldAddresses, l.emptyProgram(b)}
			client, server := l.connectPods(b)
			b.Run("segments of a download", func(b *testing.B) { costs(b, programs, func() { carry(b, server, client) }) })
			b.Run("acknowledgements of an upload", func(b *testing.B) { costs(b, programs, func() { carry(b, client, server) }) })
			b.Run("answers to requests", func(b *testing.B) { costs(b, programs, func() { ask(b, client, server) }) })
		})
	}
}

// emptyProgram runs behind the server's.
func (l *lab) emptyProgram(b *testing.B) *ebpf.Program {
	b.Helper()
	empty, err := packettest.NewEmpty()
	require.NoError(b, err)
	b.Cleanup(func() { empty.Close() })
	on := l.Nodes[1]
	index, err := on.Index(on.Pods[0].HostInterface)
	require.NoError(b, err)
	require.NoError(b, on.Do(func() error {
		attached, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: empty, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			b.Cleanup(func() { attached.Close() })
		}
		return err
	}))
	return empty
}

func (l *lab) connectPods(b *testing.B) (client, server net.Conn) {
	b.Helper()
	to := l.Nodes[1].Pods[0]
	_, err := to.Namespace.Run("ip", "mptcp", "endpoint", "add", to.IPv4, "port", "61001", "signal")
	require.NoError(b, err)
	listener, err := to.Namespace.Listen(b.Context(), "tcp", netip.AddrPortFrom(netip.MustParseAddr(to.IPv4), 0).String())
	require.NoError(b, err)
	defer listener.Close()
	client, err = l.Nodes[0].Pods[0].Namespace.Dial(b.Context(), "tcp", listener.Addr().String())
	require.NoError(b, err)
	b.Cleanup(func() { client.Close() })
	server, err = listener.Accept()
	require.NoError(b, err)
	b.Cleanup(func() { server.Close() })
	carry(b, client, server) // and so it lasts
	return client, server
}

// costs reports medians over transfers.
func costs(b *testing.B, programs []*ebpf.Program, transfer func()) {
	b.Helper()
	counting, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	require.NoError(b, err)
	defer counting.Close()
	each := make([][]float64, len(programs))
	packets := uint64(0)
	for b.Loop() {
		before := statistics(b, programs)
		transfer()
		for i, now := range statistics(b, programs) {
			runs := now.RunCount - before[i].RunCount
			each[i] = append(each[i], float64((now.Runtime-before[i].Runtime).Nanoseconds())/float64(runs))
			packets += runs
		}
	}
	b.ReportMetric(median(each[0])-median(each[1]), "ns-above-empty")
	b.ReportMetric(median(each[1]), "ns-empty")
	b.ReportMetric(float64(packets)/float64(len(programs)*b.N), "packets/op")
}

// ask has 2,000 requests be answered one after another, each of 100 bytes.
func ask(b *testing.B, client, server net.Conn) {
	b.Helper()
	const requests, size = 2000, 100
	failed := make(chan error, 1)
	go func() {
		_, err := io.CopyN(server, server, requests*size)
		failed <- err
	}()
	message := make([]byte, size)
	for range requests {
		_, err := client.Write(message)
		require.NoError(b, err)
		_, err = io.ReadFull(client, message)
		require.NoError(b, err)
	}
	require.NoError(b, <-failed)
}

func statistics(b *testing.B, of []*ebpf.Program) (all []*ebpf.ProgramStats) {
	b.Helper()
	for _, program := range of {
		one, err := program.Stats()
		require.NoError(b, err)
		all = append(all, one)
	}
	return all
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// shortMode is what agents do for the pods of short connections.
type shortMode struct {
	name string
	with func(b *testing.B, on *network.Node) // nil for nothing
}

func shortModes() []shortMode {
	managed := func(isTold bool, count int) func(*testing.B, *network.Node) {
		return func(b *testing.B, on *network.Node) { holdAndManage(b, on, isTold, count) }
	}
	return []shortMode{{"unmanaged", nil}, {"one-subflow", managed(true, 1)}, {"listened-to", managed(false, subflows)}, {"left-alone", managed(true, subflows)}}
}

// BenchmarkWhatAShortConnectionCosts has a pod ask another one for 1 KiB over a connection of its
// own, time and again. Each round has a few requests of each mode, in another order, of which
// the medians are told: many short rounds bear other work on the machine.
// Where pods are listened to the kernel makes events of each connection; where they are left alone its
// announcement alone is made and held.
func BenchmarkWhatAShortConnectionCosts(b *testing.B) {
	const requests = 20
	modes := shortModes()
	ask := map[string]func(requests int) time.Duration{}
	for i, mode := range modes {
		pods := network.ForTest(b, network.Spec{Nodes: 2, Paths: []string{fmt.Sprint("plane", i)}, PodsPerNode: 1})
		ask[mode.name] = asker(b, pods)
		for _, on := range pods.Nodes {
			if mode.with != nil {
				mode.with(b, on)
			}
		}
	}
	time.Sleep(3 * time.Second) // until they are left alone
	took, used := map[string][]float64{}, map[string][]float64{}
	for b.Loop() {
		rand.Shuffle(len(modes), func(i, j int) { modes[i], modes[j] = modes[j], modes[i] })
		for _, mode := range modes {
			ask[mode.name](1)
			before := processorTime()
			took[mode.name] = append(took[mode.name], float64(ask[mode.name](requests).Nanoseconds())/1000/requests)
			used[mode.name] = append(used[mode.name], float64((processorTime()-before).Nanoseconds())/1000/requests)
		}
	}
	for name := range took {
		b.ReportMetric(median(took[name]), name+"-us")
		b.ReportMetric(median(used[name]), name+"-processor-us")
	}
}

// processorTime is what this process has used: both ends, and what the kernel does at once. What its
// workers do later is not in it.
func processorTime() time.Duration {
	var usage unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// asker has the first node's pod ask the second one's, one request after the other.
func asker(b *testing.B, pods *network.Network) func(requests int) time.Duration {
	b.Helper()
	server := pods.Nodes[1].Pods[0]
	listener, err := server.Listen(context.Background(), "tcp", netip.AddrPortFrom(netip.MustParseAddr(server.IPv4), 0).String())
	require.NoError(b, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			if _, err := connection.Read(make([]byte, 128)); err == nil {
				_, _ = connection.Write(make([]byte, 1024))
			}
			_ = connection.Close()
		}
	}()
	b.Cleanup(func() { _ = listener.Close(); <-done })
	return func(requests int) time.Duration {
		began := time.Now()
		require.NoError(b, pods.Nodes[0].Pods[0].Do(func() error {
			for range requests {
				if err := askOnce(listener.Addr().String()); err != nil {
					return err
				}
			}
			return nil
		}))
		return time.Since(began)
	}
}

func askOnce(address string) error {
	dialer := net.Dialer{KeepAlive: -1}
	dialer.SetMultipathTCP(true)
	connection, err := dialer.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer connection.Close()
	if _, err = connection.Write(make([]byte, 100)); err == nil {
		_, err = io.ReadAll(connection)
	}
	return err
}
