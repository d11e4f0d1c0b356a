// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/plugin/planes"
	"braid.dev/braid/plugin/trial"
)

// try tests one pair. What keeps it from going on is in the trial.
func (t *tester) try(ctx context.Context, between pair) trial.Trial {
	one := &attempt{tester: t, between: between, trial: trial.Trial{From: between.from, To: between.to}}
	if err := one.run(ctx); err != nil {
		one.trial.Fault = err.Error()
		one.trial.FaultRemedy = "kubectl braid status says what is not in order"
	}
	if t.options.allPairs {
		if err := t.stopPods(ctx); err != nil && one.trial.Fault == "" {
			one.trial.Fault = err.Error()
		}
	}
	return one.trial
}

// attempt is the test of one pair while it runs.
type attempt struct {
	*tester
	between        pair
	trial          trial.Trial
	client, server *corev1.Pod
	// pathOf names the path of a NIC of the sending node.
	pathOf map[string]string
}

func (a *attempt) run(ctx context.Context) (err error) {
	a.say("starting pods on %s and %s", a.between.from, a.between.to)
	if a.client, a.server, err = a.startPods(ctx, a.between); err != nil {
		return err
	}
	a.say("waiting until their nodes have programmed them")
	if err := a.programmed(ctx); err != nil {
		return err
	}
	if err := a.findPaths(ctx); err != nil || len(a.trial.Paths) < 2 {
		return err
	}
	a.say("looking what the NICs carry without it")
	if a.trial.Before, err = a.rates(ctx); err != nil {
		return err
	}
	a.say("sending by plain TCP")
	if a.trial.Plain, err = a.phase(ctx, false); err != nil || a.trial.Plain.Transfer.Error != "" {
		return err
	}
	a.say("sending by MPTCP")
	if a.trial.Spread, err = a.phase(ctx, true); err != nil {
		return err
	}
	findings := a.trial.Judge()
	if trial.Fine(findings) {
		if a.firstSpread == 0 {
			a.firstSpread = time.Since(a.begun)
		}
		return a.failover(ctx)
	}
	return a.findRemedy(ctx)
}

// findPaths looks which paths both nodes can use, once their agents have looked for the NICs.
func (a *attempt) findPaths(ctx context.Context) error {
	return a.until(ctx, a.options.wait, func() error {
		var from, to v1alpha1.MPTCPNode
		for name, member := range map[string]*v1alpha1.MPTCPNode{a.between.from: &from, a.between.to: &to} {
			if err := a.Get(ctx, client.ObjectKey{Name: name}, member); err != nil {
				return fmt.Errorf("reading what the agent on %s says: %w", name, err)
			}
		}
		a.trial.Paths, a.trial.Unusable, a.pathOf = nil, map[string]string{}, map[string]string{}
		for _, path := range a.paths {
			own, other := pathOf(&from, path), pathOf(&to, path)
			if own == nil || other == nil {
				return fmt.Errorf("the agents have not looked for the NICs of %s yet", path)
			}
			for member, on := range map[*v1alpha1.MPTCPNode]*v1alpha1.NodePath{&from: own, &to: other} {
				if reason := notNow(member, on); reason != "" {
					a.trial.Unusable[string(path)] = reason
				}
			}
			if a.trial.Unusable[string(path)] == "" {
				a.trial.Paths = append(a.trial.Paths, string(path))
				a.pathOf[own.Interface] = string(path)
			}
		}
		return nil
	})
}

// warmUp is how long a connection sends before the NICs are looked at: it gets further
// subflows after half a second, and they take a while to fill their NICs.
const warmUp = 2 * time.Second

// phase has a connection send, and looks at the NICs meanwhile.
func (a *attempt) phase(ctx context.Context, multipath bool) (*trial.Phase, error) {
	sending := a.send(ctx, multipath)
	defer sending.stop()
	pause(ctx, warmUp)
	rates, err := a.rates(ctx)
	if err == nil && multipath {
		err = a.findSubflows(ctx)
	}
	transfer, sendErr := sending.end()
	if err := errors.Join(err, sendErr); err != nil {
		return nil, err
	}
	found := &trial.Phase{Transfer: transfer, Paths: rates}
	if transfer.Milliseconds > 0 {
		found.BitsPerSecond = transfer.SentBytes * 8 * 1000 / uint64(transfer.Milliseconds)
	}
	return found, nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// rates are what the sending node's NICs send, by path.
func (a *attempt) rates(ctx context.Context) (map[string]uint64, error) {
	before, err := a.survey(ctx, a.between.from, planes.Question{})
	if err != nil {
		return nil, err
	}
	pause(ctx, a.options.duration)
	after, err := a.survey(ctx, a.between.from, planes.Question{})
	if err != nil {
		return nil, err
	}
	rates := map[string]uint64{}
	for nic, rate := range trial.Rate(before, after) {
		if path := a.pathOf[nic]; path != "" {
			rates[path] = rate
		}
	}
	return rates, nil
}

// findSubflows asks the sender's agent on which paths the connection's subflows are.
func (a *attempt) findSubflows(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err := a.system.ask(ctx, a.agents[a.between.from], &jsonLines[agentapi.Reading]{visit: func(found *agentapi.Reading) {
		a.trial.Subflows = nil
		for i := range found.Busy {
			a.trial.Subflows = append(a.trial.Subflows, found.Busy[i].Path)
		}
	}}, "rates", "--attached", "--every=500ms", "--count=1", a.client.Namespace+"/"+a.client.Name)
	slices.Sort(a.trial.Subflows)
	return err
}

// failover takes a path away while a connection sends, and gives it back.
func (a *attempt) failover(ctx context.Context) error {
	a.trial.Taken = a.trial.Paths[len(a.trial.Paths)-1]
	var others []v1alpha1.PathName
	for _, path := range a.trial.Paths {
		if path != a.trial.Taken {
			others = append(others, v1alpha1.PathName(path))
		}
	}
	sending := a.send(ctx, true)
	defer sending.stop()
	pause(ctx, warmUp)
	a.say("taking %s away from the two pods", a.trial.Taken)
	without, err := a.ratesWith(ctx, others)
	if err != nil {
		return err
	}
	a.say("giving it back")
	again, err := a.ratesWith(ctx, nil)
	if err != nil {
		return err
	}
	transfer, err := sending.end()
	a.trial.Without, a.trial.Again, a.trial.Failover = without, again, &transfer
	return err
}

// ratesWith are those with these paths alone, once the nodes have it.
func (a *attempt) ratesWith(ctx context.Context, allowed []v1alpha1.PathName) (map[string]uint64, error) {
	if err := a.allow(ctx, allowed); err != nil {
		return nil, err
	}
	pause(ctx, warmUp/2)
	return a.rates(ctx)
}

// findRemedy asks the agent why the connection is not spread.
func (a *attempt) findRemedy(ctx context.Context) error {
	is, err := a.trafficOf(ctx, a.client)
	if is != nil {
		a.trial.SpreadRemedy = strings.TrimSpace(is.Message + ": " + remedies[is.Reason])
	}
	return err
}

// sending is a connection from the client to the server.
type sending struct {
	input *io.PipeWriter
	over  chan error

	mutex sync.Mutex
	last  agentapi.Transfer
}

// longest is how long a connection sends if nobody ends it.
const longest = 2 * time.Minute

// send begins a connection.
func (a *attempt) send(ctx context.Context, multipath bool) *sending {
	input, end := io.Pipe()
	s := &sending{input: end, over: make(chan error, 1)}
	command := []string{
		agentProgram, "transfer", "--to=" + net.JoinHostPort(a.server.Status.PodIP, strconv.Itoa(testPort)),
		"--for=" + longest.String(), fmt.Sprintf("--mptcp=%t", multipath),
	}
	lines := &jsonLines[agentapi.Transfer]{visit: func(is *agentapi.Transfer) {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		s.last = *is
	}}
	go func() { s.over <- a.system.run(ctx, a.client, input, lines, command) }()
	return s
}

// stop has it send no more.
func (s *sending) stop() { _ = s.input.Close() } // closing a pipe never fails

// end has it send no more, and returns its last words.
func (s *sending) end() (agentapi.Transfer, error) {
	s.stop()
	err := <-s.over
	s.mutex.Lock()
	defer s.mutex.Unlock()
	switch {
	case err != nil:
		return s.last, fmt.Errorf("sending: %w", err)
	case !s.last.Ended && s.last.Error == "":
		return s.last, errors.New("sending: the pod did not say how it ended")
	}
	return s.last, nil
}
