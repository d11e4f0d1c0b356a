// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/hack/bench/rig"
)

const (
	// agentsSettle lies between when agents are stopped, or go on, and when requests are counted.
	agentsSettle = 700 * time.Millisecond
	// agentsTurn is for how long requests are counted.
	agentsTurn = 1200 * time.Millisecond
)

// webAgents is a client that asks without an end, and the processes of the agents meanwhile.
type webAgents struct {
	*web
	agents  []int
	counter procfs.Proc // of the server's pod, in whose network namespace connections are counted
}

func newWebAgents(ctx context.Context) (*webAgents, error) {
	w, err := newFastWeb(ctx)
	if err != nil {
		return nil, err
	}
	t := &webAgents{web: w}
	if err := t.find(ctx); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// find finds the processes, and has both pods selected.
func (t *webAgents) find(ctx context.Context) error {
	for i := range t.Network.Nodes {
		agent, err := agentOf(ctx, t.Cluster, i)
		if err != nil {
			return err
		}
		t.agents = append(t.agents, agent.container.PID)
	}
	var pod corev1.Pod
	if err := t.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: t.server}, &pod); err != nil {
		return fmt.Errorf("finding the server: %w", err)
	}
	containers, err := t.Containers(pod.Spec.NodeName, pod.UID)
	if err == nil && len(containers) == 0 {
		err = errors.New("it has no container")
	}
	if err != nil {
		return fmt.Errorf("finding the server's process: %w", err)
	}
	if t.counter, err = procfs.NewProc(containers[0].PID); err != nil {
		return fmt.Errorf("finding the server's process: %w", err)
	}
	return t.setPolicy(ctx, selectAll)
}

// agentTurns are compared: what agents do that run, and what the maps and programs do alone.
var agentTurns = []struct {
	name   string
	signal syscall.Signal
}{{"running", syscall.SIGCONT}, {"stopped", syscall.SIGSTOP}}

// measureHTTPAgents has agents stopped and go on by turns while a client asks for small files, and
// compares what is of one turn.
func measureHTTPAgents(ctx context.Context, m *rig.Measurement, t *webAgents) (failed error) {
	stop := t.askWithoutEnd(ctx)
	defer func() { failed = errors.Join(failed, t.signal(syscall.SIGCONT), stop()) }()
	time.Sleep(rig.PolicyAge)
	for range m.Trials * turnsOfTrial {
		rates := map[string]float64{}
		for turn := range rig.Shuffled(agentTurns) {
			if err := t.signal(turn.signal); err != nil {
				return err
			}
			time.Sleep(agentsSettle)
			rate, busiest, err := t.answered()
			if err != nil {
				return err
			}
			rates[turn.name] = rate
			m.Add("http_agents.1k."+turn.name+"_rps", rate)
			if turn.signal == syscall.SIGCONT {
				m.Add("http_agents.1k.busiest_agent_pct", busiest)
			}
		}
		m.Add("http_agents.1k.running_to_stopped", rates["running"]/rates["stopped"])
	}
	least, most := rig.MedianWithin(m.Values("http_agents.1k.running_to_stopped"))
	rig.Say("the median of running to stopped is within %.3f and %.3f, 95 times of 100", least, most)
	return nil
}

// askWithoutEnd asks for the small file until the function that it returns is called, which
// returns an error where the client had ended by itself.
func (t *webAgents) askWithoutEnd(ctx context.Context) (stop func() error) {
	asking, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	var failed error
	go func() {
		defer close(ended)
		_, failed = t.RunKubectl(asking, "exec", t.client, "--", "mptcpize", "run", "ab", "-q", "-r",
			"-c", strconv.Itoa(requestClients), "-t", "36000", "-n", "1000000000", "http://"+t.address+"/1k")
	}()
	return func() error {
		select {
		case <-ended:
			cancel()
			return errors.Join(errors.New("the client ended early"), failed)
		default:
		}
		cancel()
		<-ended
		return nil
	}
}

func (t *webAgents) signal(which syscall.Signal) (failed error) {
	for _, agent := range t.agents {
		if err := syscall.Kill(agent, which); err != nil {
			failed = errors.Join(failed, fmt.Errorf("sending %s to an agent: %w", which, err))
		}
	}
	return failed
}

// answered counts for a while the connections that the server took in a second, and tells how much
// of a processor the busiest agent had meanwhile, in percent.
func (t *webAgents) answered() (rate, busiest float64, _ error) {
	begun := time.Now()
	before, err := t.taken()
	used, failed := t.used()
	if err = errors.Join(err, failed); err != nil {
		return 0, 0, err
	}
	time.Sleep(agentsTurn)
	after, err := t.taken()
	now, failed := t.used()
	took := time.Since(begun).Seconds()
	switch {
	case err != nil || failed != nil:
		return 0, 0, errors.Join(err, failed)
	case after == before:
		return 0, 0, errors.New("the server took no connection")
	}
	for i := range now {
		busiest = max(busiest, (now[i]-used[i]).Seconds()/took*100)
	}
	return (after - before) / took, busiest, nil
}

// used is how long each agent had a processor so far.
func (t *webAgents) used() (used []time.Duration, _ error) {
	for _, agent := range t.agents {
		process, err := procfs.NewProc(agent)
		if err != nil {
			return nil, fmt.Errorf("reading an agent's times: %w", err)
		}
		stat, err := process.Stat()
		if err != nil {
			return nil, fmt.Errorf("reading an agent's times: %w", err)
		}
		used = append(used, time.Duration(stat.CPUTime()*float64(time.Second)))
	}
	return used, nil
}

func (t *webAgents) taken() (float64, error) {
	counters, err := t.counter.Snmp()
	if err == nil && counters.Tcp.PassiveOpens == nil {
		err = errors.New("the kernel does not count connections")
	}
	if err != nil {
		return 0, fmt.Errorf("reading the server's counters: %w", err)
	}
	return *counters.Tcp.PassiveOpens, nil
}
