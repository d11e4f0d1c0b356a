// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/api/v1alpha1"
)

// answered is what each request gets.
const answered = 1024

// costMode is what the policies of client and server have.
type costMode struct {
	name string
	// of is the transport of both; nil where neither has one.
	of *v1alpha1.Transport
	// others is true where another pod of the node has one.
	others bool
}

func costModes() []costMode {
	settings := v1alpha1.Transport{UserTimeout: after(time.Minute), DelayedAck: after(20 * time.Millisecond), InitialWindow: new(int32(20))}
	exchanged := settings
	exchanged.Request = &v1alpha1.TransportRequest{InitialWindow: new(int32(20)), UserTimeout: after(30 * time.Second)}
	exchanged.Accept = acceptsAll("0.0.0.0/0").Accept
	return []costMode{{name: "none"}, {"others", nil, true}, {"settings", &settings, false}, {"requests", &exchanged, false}}
}

// BenchmarkWhatARequestCosts has a client ask a server for 1 KiB over a connection of its
// own, time and again. Each round has all modes in another order, and the processor time of each
// mode is compared with that of the same round without any policy: client, server and the
// network between them are of this process. programs-us is what the kernel counts for Braid's
// program at both ends of a request, and calls is how often it calls it.
func BenchmarkWhatARequestCosts(b *testing.B) {
	const requests = 1500
	l := newCost(b)
	ratios, programs, calls := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	for b.Loop() {
		modes, took := costModes(), map[string]time.Duration{}
		rand.Shuffle(len(modes), func(i, j int) { modes[i], modes[j] = modes[j], modes[i] })
		for _, mode := range modes {
			l.set(b, &mode)
			l.ask(b, requests/10)
			spent, called := l.spent(b)
			took[mode.name] = l.ask(b, requests)
			spentSince, calledSince := l.spent(b)
			programs[mode.name] = append(programs[mode.name], float64((spentSince-spent).Nanoseconds())/1000/requests)
			calls[mode.name] = append(calls[mode.name], float64(calledSince-called)/requests)
		}
		for name, of := range took {
			ratios[name] = append(ratios[name], float64(of)/float64(took["none"]))
		}
	}
	for name := range ratios {
		slices.Sort(ratios[name])
		slices.Sort(programs[name])
		slices.Sort(calls[name])
		half := len(ratios[name]) / 2
		b.ReportMetric(ratios[name][half], name+"-ratio")
		b.ReportMetric(programs[name][half], name+"-programs-us")
		b.Logf("%s: %.3f (%.3f to %.3f) of the processor time without a policy, %.1f us (%.1f to %.1f) in %.1f calls of it Braid's program's", name,
			ratios[name][half], ratios[name][0], ratios[name][len(ratios[name])-1],
			programs[name][half], programs[name][0], programs[name][len(programs[name])-1], calls[name][half])
	}
}

// cost is two pods that have policies in turns, and a third one.
type cost struct {
	*pair
	third string
}

func newCost(b *testing.B) *cost {
	b.Helper()
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	require.NoError(b, err)
	b.Cleanup(func() { _ = stats.Close() })
	l := &cost{pair: newPairOf(b, 3, nil)}
	l.third = l.Nodes[0].Pods[2].Path()
	listener, err := l.server.Listen(context.Background(), "tcp", net.JoinHostPort(l.server.IPv4, port))
	require.NoError(b, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go answer(connection)
		}
	}()
	b.Cleanup(func() { _ = listener.Close(); <-done })
	return l
}

func answer(connection net.Conn) {
	defer connection.Close()
	if _, err := connection.Read(make([]byte, 128)); err == nil {
		_, _ = connection.Write(make([]byte, answered))
	}
}

func (l *cost) set(b *testing.B, mode *costMode) {
	b.Helper()
	pods := []nodetest.Pod{{UID: "client", Namespace: l.client.Path()}, {UID: "server", Namespace: l.server.Path()}, {UID: "third", Namespace: l.third}}
	model := nodetest.Model(pods...)
	model.Endpoints[0].Transport, model.Endpoints[1].Transport = mode.of, mode.of
	if mode.others {
		model.Endpoints[2].Transport = &v1alpha1.Transport{UserTimeout: after(time.Minute)}
	}
	require.NoError(b, nodetest.Failures(l.part.Apply(b.Context(), model)))
	l.part.look(false) // as a second after a change: at all sockets, also those in TIME_WAIT
}

// ask makes requests one after the other, and returns the processor time that took.
func (l *cost) ask(b *testing.B, requests int) time.Duration {
	b.Helper()
	began := used(b)
	require.NoError(b, l.client.Do(func() error {
		dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}
		dialer.SetMultipathTCP(true)
		for range requests {
			connection, err := dialer.Dial("tcp", net.JoinHostPort(l.server.IPv4, port))
			if err != nil {
				return err
			}
			_, err = connection.Write(make([]byte, 100))
			if err == nil {
				_, err = io.ReadAll(connection)
			}
			_ = connection.Close()
			if err != nil {
				return err
			}
		}
		return nil
	}))
	return used(b) - began
}

// used is the processor time of this process.
func used(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// spent is how long the program for sockets ran since it was loaded, and how often.
func (l *cost) spent(b *testing.B) (time.Duration, uint64) {
	b.Helper()
	if !l.part.loaded.Is() {
		return 0, 0
	}
	stats, err := l.part.loaded.Value.SetTransport.Stats()
	require.NoError(b, err)
	return stats.Runtime, stats.RunCount
}
