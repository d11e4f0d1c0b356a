// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/plugin"
	"braid.dev/braid/plugin/trial"
)

// What the self-test's connections last, and for how long the NICs are looked at.
const (
	plainLasts    = 3 * time.Second
	failoverLasts = 13 * time.Second
	settles       = 1500 * time.Millisecond
	looks         = 2 * time.Second
)

// selfTest measures what `kubectl braid test` does, which needs kubelets for pods of its own,
// between the lab's pods, and has the same judge judge and say it.
func (d *demo) selfTest(ctx context.Context) error {
	if d.kind.suite != "" { // the ends are no pods
		return nil
	}
	taken := paths[len(paths)-1]
	d.screen.title("6. A self-test, as kubectl braid test makes it: TCP, MPTCP, then " + taken + " is taken from the pods and given back")
	from, to := d.Network.Pod("client").Node, d.Network.Pod("server").Node
	pair := plugin.Pair{Trial: trial.Trial{From: from.NodeName(), To: to.NodeName(), Paths: paths, Taken: taken}}
	if err := d.measure(ctx, &pair.Trial); err != nil {
		return err
	}
	pair.Verdict = pair.Judge()
	result := plugin.TestResult{Fine: trial.Fine(pair.Verdict), Pairs: []plugin.Pair{pair}}
	d.screen.output(result.Text())
	if !result.Fine {
		return errors.New("the self-test failed: is the machine busy with something else?")
	}
	return nil
}

// measure has one connection after the other send, the last one while a path is taken away.
func (d *demo) measure(ctx context.Context, into *trial.Trial) (err error) {
	for _, phase := range []**trial.Phase{&into.Plain, &into.Spread} {
		sending := d.begin(ctx, plainLasts+settles, phase == &into.Spread)
		pause(ctx, settles)
		rates, lookErr := d.nicRates(ctx)
		sent, sendErr := sending()
		if err := errors.Join(lookErr, sendErr); err != nil {
			return err
		}
		*phase = &trial.Phase{Transfer: sent, BitsPerSecond: sent.SentBytes * 8 * 1000 / uint64(sent.Milliseconds), Paths: rates}
	}
	sending := d.begin(ctx, failoverLasts, true)
	pause(ctx, settles)
	if into.Without, err = d.ratesWith(ctx, paths[:len(paths)-1]); err == nil {
		into.Again, err = d.ratesWith(ctx, nil)
	}
	sent, sendErr := sending()
	into.Failover = &sent
	return errors.Join(err, sendErr)
}

// begin has the client send; the function that it returns waits for the end.
func (d *demo) begin(ctx context.Context, lasts time.Duration, multipath bool) func() (agentapi.Transfer, error) {
	type outcome struct {
		said string
		err  error
	}
	ended := make(chan outcome, 1)
	go func() {
		address := net.JoinHostPort(d.Network.Pod("server").IPv4, strconv.Itoa(lab.TrafficPort))
		said, err := d.send(ctx, "run", address, "--duration", lasts.String(), "--warmup", "0s", fmt.Sprintf("--plain=%t", !multipath), "--json")
		ended <- outcome{said, err}
	}()
	return func() (agentapi.Transfer, error) {
		is := <-ended
		if is.err != nil {
			return agentapi.Transfer{}, fmt.Errorf("moving bytes: %w", is.err)
		}
		var result traffic.Result
		if err := json.Unmarshal([]byte(is.said), &result); err != nil {
			return agentapi.Transfer{}, fmt.Errorf("reading the result of a transfer: %w", err)
		}
		return account(&result, lasts), nil
	}
}

// account is a transfer in the words of the self-test.
func account(result *traffic.Result, lasts time.Duration) agentapi.Transfer {
	is := agentapi.Transfer{
		Milliseconds: lasts.Milliseconds() + int64(result.LatestMs), SentBytes: uint64(result.Bytes), ReceivedBytes: uint64(result.Bytes), Ended: true,
		LongestStandstillMilliseconds: int64(result.LongestGapMs), Multipath: result.Multipath,
	}
	if result.Failed > 0 {
		is.Error = fmt.Sprint(result.Errors)
	}
	return is
}

// ratesWith are those of the NICs while the policy allows these paths alone; all where there
// are none.
func (d *demo) ratesWith(ctx context.Context, allowed []string) (map[string]uint64, error) {
	var changed v1alpha1.MPTCPPolicy
	if err := d.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: policy}, &changed); err != nil {
		return nil, fmt.Errorf("reading the policy: %w", err)
	}
	before := changed.DeepCopy()
	changed.Spec.Paths.Allowed = nil
	for _, path := range allowed {
		changed.Spec.Paths.Allowed = append(changed.Spec.Paths.Allowed, v1alpha1.PathName(path))
	}
	if err := d.Client.Patch(ctx, &changed, client.MergeFrom(before)); err != nil {
		return nil, fmt.Errorf("changing the policy: %w", err)
	}
	if err := d.waitFor(ctx, d.programmed); err != nil {
		return nil, err
	}
	pause(ctx, settles)
	return d.nicRates(ctx)
}

// nicRates are what the NICs of the client's node send, in bits a second by path.
func (d *demo) nicRates(ctx context.Context) (map[string]uint64, error) {
	var samples [2]sample
	for i := range samples {
		if i > 0 {
			pause(ctx, looks)
		}
		counters, err := d.Network.NICCounters(d.Network.Pod("client").Node)
		if err != nil {
			return nil, err
		}
		samples[i] = sample{traffic.Now(), counters}
	}
	rates := map[string]uint64{}
	for path, mbit := range between(samples[0], samples[1]) {
		rates[path] = uint64(mbit * 1e6)
	}
	return rates, nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
