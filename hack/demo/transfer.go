// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// A transfer lasts long enough for a steady state after the beginning that is
// left out.
const (
	duration = 5 * time.Second
	warmup   = time.Second
	window   = 500 * time.Millisecond
	refresh  = 200 * time.Millisecond
)

// measured is what a transfer showed.
type measured struct {
	mbit     float64            // goodput: the median of all windows
	perPath  map[string]float64 // what the sender's NICs sent on the wire
	subflows int
}

func (m *measured) describe() string {
	return fmt.Sprintf("%.1f Mbit/s of goodput with %d subflow(s)", m.mbit, m.subflows)
}

// sender runs the traffic generator where the client is, and returns what it prints.
type sender func(ctx context.Context, arguments ...string) (string, error)

// fromPod is the client in a pod.
func (d *demo) fromPod(ctx context.Context, arguments ...string) (string, error) {
	from := d.Network.Pod("client")
	out, err := from.Command(ctx, d.Binary("traffic"), arguments...).Output()
	if err != nil {
		err = fmt.Errorf("%w%s", err, stderrOf(err))
	}
	return string(out), err
}

// transfer moves bytes from the client to the server and draws what the NICs of the client's
// node do meanwhile.
func (d *demo) transfer(ctx context.Context) (*measured, error) {
	from, to := d.Network.Pod("client"), d.Network.Pod("server")
	arguments := []string{"run", net.JoinHostPort(to.IPv4, strconv.Itoa(lab.TrafficPort)),
		"--duration", duration.String(), "--warmup", warmup.String()}
	d.screen.command(d.place + strings.Join(arguments, " "))
	samples := d.watch(ctx, from.Node)
	out, err := d.send(ctx, append(arguments, "--json")...)
	seen := samples()
	if err != nil {
		return nil, fmt.Errorf("moving bytes: %w", err)
	}
	var result traffic.Result
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		return nil, fmt.Errorf("reading the result of a transfer: %w", err)
	}
	if result.Failed > 0 || !result.Multipath {
		return nil, fmt.Errorf("the connection broke or was not MPTCP: %v", result.Errors)
	}
	return &measured{mbit: round(median(&result), 1), perPath: rates(seen, result.StartNs), subflows: result.Subflows}, nil
}

func stderrOf(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return ": " + string(exit.Stderr)
	}
	return ""
}

// median is that of the goodput in all windows after the warm-up.
func median(result *traffic.Result) float64 {
	var windows []float64
	for from := warmup; from+window <= duration; from += window {
		windows = append(windows, result.MbitBetween(from, from+window))
	}
	slices.Sort(windows)
	middle := len(windows) / 2
	if len(windows)%2 == 0 {
		return (windows[middle-1] + windows[middle]) / 2
	}
	return windows[middle]
}

// sample is what a node's NICs had sent at a time.
type sample struct {
	at       int64 // as traffic.Now
	counters map[string]network.Counters
}

// watch draws the rates of a node's NICs until the function that it returns is
// called, which returns all samples.
func (d *demo) watch(ctx context.Context, node *network.Node) func() []sample {
	stop, done := make(chan struct{}), make(chan struct{})
	var samples []sample
	picture := d.screen.picture(paths, float64(d.kind.linkMbit))
	go func() {
		defer close(done)
		ticker := time.NewTicker(refresh)
		defer ticker.Stop()
		for {
			if counters, err := d.Network.NICCounters(node); err == nil {
				samples = append(samples, sample{traffic.Now(), counters})
				picture.draw(lastRates(samples))
			}
			select {
			case <-ctx.Done():
				return
			case <-stop:
				return
			case <-ticker.C:
			}
		}
	}()
	return func() []sample {
		close(stop)
		<-done
		return samples
	}
}

func lastRates(samples []sample) map[string]float64 {
	if len(samples) < 2 {
		return nil
	}
	return between(samples[len(samples)-2], samples[len(samples)-1])
}

// between are the rates in Mbit/s at which each NIC sent.
func between(from, to sample) map[string]float64 {
	rates := map[string]float64{}
	for path := range to.counters {
		bytes := to.counters[path].TxBytes - from.counters[path].TxBytes
		rates[path] = float64(bytes) * 8 / 1e6 / time.Duration(to.at-from.at).Seconds()
	}
	return rates
}

// rates are those in the steady state of a transfer that began at a time.
func rates(samples []sample, start int64) map[string]float64 {
	var steady []sample
	for _, s := range samples {
		if s.at >= start+warmup.Nanoseconds() && s.at <= start+duration.Nanoseconds() {
			steady = append(steady, s)
		}
	}
	if len(steady) < 2 {
		return nil
	}
	rates := between(steady[0], steady[len(steady)-1])
	for path, rate := range rates {
		rates[path] = round(rate, 1)
	}
	return rates
}
