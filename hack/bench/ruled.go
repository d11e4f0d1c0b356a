// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/pace"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// ruled is a rig whose client's pod can be given rules, without any control plane.
type ruled struct {
	*rig
	chains *chains.Chains
	pacer  *pace.Pacer
}

// newRuled builds a rig with Braid steering, one subflow for each path.
func newRuled(ctx context.Context, spec network.Spec) (*ruled, error) {
	built, err := newRigOf(ctx, spec)
	if err != nil {
		return nil, err
	}
	pins := filepath.Join(rigState, "endpoints")
	r := &ruled{
		rig:    built,
		chains: chains.Open(chains.Options{PinPath: pins, Log: logr.Discard()}),
		pacer: pace.Open(pace.Options{
			PinPath: chains.Directory(pins), NamespaceDirectories: []string{network.Directory}, Log: logr.Discard(),
		}),
	}
	if err := r.set(ctx, braid); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *ruled) close() error {
	return errors.Join(r.pacer.Remove(), r.pacer.Close(), r.client().Node.Do(func() error { return r.chains.Remove(context.Background()) }), r.rig.close())
}

// give gives the client's pod its rules.
func (r *ruled) give(rules []v1alpha1.PlanRule) error {
	pod := r.client()
	model, err := r.modelOf(pod, rules)
	if err != nil {
		return err
	}
	err = pod.Node.Do(func() error { return nodetest.Failures(r.chains.Apply(context.Background(), model)) })
	if err != nil {
		return fmt.Errorf("giving %s its rules: %w", pod.PodName, err)
	}
	return r.pace(pod, len(rules) > 0)
}

func (r *ruled) modelOf(pod *network.Pod, rules []v1alpha1.PlanRule) (*node.Model, error) {
	index, err := pod.Node.Index(pod.HostInterface)
	if err != nil {
		return nil, err
	}
	model := nodetest.Model(nodetest.Pod{UID: types.UID(pod.PodName), Name: pod.PodName, Interface: index, Rules: rules})
	for i, name := range r.Spec.Paths {
		index, err := pod.Node.Index(name)
		if err != nil {
			return nil, err
		}
		model.Paths = append(model.Paths, node.Path{Name: name, Number: uint8(i), Interface: index})
	}
	return model, nil
}

// transferring is a transfer that goes on.
type transferring struct {
	connection *net.TCPConn
	done       chan error
	result     *traffic.Result
	cancel     context.CancelFunc
}

// begin starts a transfer, and waits until it has all its subflows.
func (r *ruled) begin(ctx context.Context, options traffic.Options) (*transferring, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &transferring{done: make(chan error, 1), cancel: cancel}
	opened := make(chan *net.TCPConn, 1)
	address := net.JoinHostPort(r.server().Address(4), port)
	dial := func(ctx context.Context) (net.Conn, error) {
		connection, err := r.client().Dial(ctx, "tcp", address)
		if err == nil {
			opened <- connection.(*net.TCPConn)
		}
		return connection, err
	}
	go func() {
		var err error
		t.result, err = traffic.Run(ctx, dial, options)
		t.done <- err
	}()
	select {
	case t.connection = <-opened:
	case err := <-t.done:
		cancel()
		return nil, fmt.Errorf("beginning a transfer: %w", err)
	}
	return t, r.waitForSubflows(t)
}

func (r *ruled) waitForSubflows(t *transferring) error {
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		subflows, err := traffic.Subflows(t.connection)
		if err != nil {
			return err
		}
		if len(subflows) == r.links {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("the connection never had %d subflows", r.links)
}

// stop ends the transfer with what is still under way, however long it would take.
func (t *transferring) stop() error {
	t.cancel()
	if err := <-t.done; err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// end waits for the transfer's end.
func (t *transferring) end() (*traffic.Result, error) {
	defer t.cancel()
	if err := <-t.done; err != nil {
		return nil, fmt.Errorf("a transfer: %w", err)
	}
	return t.result, intact(t.result)
}

// why tells what ended the transfer, if it has ended.
func (t *transferring) why(err error) error {
	select {
	case ended := <-t.done:
		if ended == nil {
			ended = intact(t.result)
		}
		return errors.Join(err, ended)
	default:
		return err
	}
}

// sent is the payload of each subflow so far, by its local end.
func (t *transferring) sent() (map[netip.AddrPort]float64, time.Time, error) {
	subflows, err := traffic.Subflows(t.connection)
	if err != nil {
		return nil, time.Time{}, t.why(err)
	}
	sent := make(map[netip.AddrPort]float64, len(subflows))
	for _, subflow := range subflows {
		sent[subflow.Local] = float64(max(subflow.Sent, subflow.Received))
	}
	return sent, time.Now(), nil
}

// rates are the goodputs of the subflows over a time, in Mbit/s.
func (t *transferring) rates(over time.Duration) (map[netip.AddrPort]float64, error) {
	before, begun, err := t.sent()
	if err != nil {
		return nil, err
	}
	time.Sleep(over)
	after, ended, err := t.sent()
	if err != nil {
		return nil, err
	}
	rates := make(map[netip.AddrPort]float64, len(after))
	for end, sent := range after {
		rates[end] = (sent - before[end]) * 8 / 1e6 / ended.Sub(begun).Seconds()
	}
	return rates, nil
}

// paths are the indexes of the paths of a transfer's subflows, by their local ends,
// as the uplink half of the sender's node knows them.
func (r *ruled) paths(t *transferring) (map[netip.AddrPort]int, error) {
	subflows, err := traffic.Subflows(t.connection)
	if err != nil {
		return nil, t.why(err)
	}
	flows, err := r.datapaths[0].Flows()
	if err != nil {
		return nil, err
	}
	paths := map[netip.AddrPort]int{}
	for _, subflow := range subflows {
		for _, flow := range flows {
			if flow.Local == subflow.Local && flow.Remote == subflow.Remote {
				paths[subflow.Local] = slices.Index(r.Spec.Paths, flow.Path)
			}
		}
	}
	return paths, nil
}

// pace lets the pod's own sockets be paced, or no longer. A guest's are not ours.
func (r *ruled) pace(pod *network.Pod, on bool) error {
	var wanted []pace.Endpoint
	for _, attached := range r.chains.Endpoints() {
		if on && pod.Forwarder == nil {
			wanted = append(wanted, pace.Endpoint{Number: attached.Number, Path: pod.Path()})
		}
	}
	if err := r.pacer.Apply(wanted); err != nil {
		return fmt.Errorf("pacing %s: %w", pod.PodName, err)
	}
	return nil
}
