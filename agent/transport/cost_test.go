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
// own, time and again. Each round has all modes in another order, and each mode's time is
// compared with that of the same round without any policy. programs-us is what the kernel
// counts for Braid's program at both ends of a request.
func BenchmarkWhatARequestCosts(b *testing.B) {
	const requests = 1500
	l := newCost(b)
	ratios, programs := map[string][]float64{}, map[string][]float64{}
	for b.Loop() {
		modes, took := costModes(), map[string]time.Duration{}
		rand.Shuffle(len(modes), func(i, j int) { modes[i], modes[j] = modes[j], modes[i] })
		for _, mode := range modes {
			l.set(b, &mode)
			l.ask(b, requests/10)
			before := l.spent(b)
			took[mode.name] = l.ask(b, requests)
			programs[mode.name] = append(programs[mode.name], float64((l.spent(b)-before).Nanoseconds())/1000/requests)
		}
		for name, of := range took {
			ratios[name] = append(ratios[name], float64(of)/float64(took["none"]))
		}
	}
	for name := range ratios {
		slices.Sort(ratios[name])
		slices.Sort(programs[name])
		half := len(ratios[name]) / 2
		b.ReportMetric(ratios[name][half], name+"-ratio")
		b.ReportMetric(programs[name][half], name+"-programs-us")
		b.Logf("%s: %.3f (%.3f to %.3f) of the time without a policy, %.1f us (%.1f to %.1f) of it Braid's program's", name,
			ratios[name][half], ratios[name][0], ratios[name][len(ratios[name])-1],
			programs[name][half], programs[name][0], programs[name][len(programs[name])-1])
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
}

// ask makes requests one after the other, and returns how long that took.
func (l *cost) ask(b *testing.B, requests int) time.Duration {
	b.Helper()
	began := time.Now()
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
	return time.Since(began)
}

// spent is how long the program for sockets ran since it was loaded.
func (l *cost) spent(b *testing.B) time.Duration {
	b.Helper()
	if !l.part.loaded.Is() {
		return 0
	}
	stats, err := l.part.loaded.Value.SetTransport.Stats()
	require.NoError(b, err)
	return stats.Runtime
}
