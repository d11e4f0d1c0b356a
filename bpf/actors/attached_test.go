// SPDX-License-Identifier: Apache-2.0

package actors_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"braid.dev/braid/bpf/actors"
	"braid.dev/braid/hack/lab/network"
)

// node is one whose endpoint, a guest, has the whole chain before it: one rule, all
// packets of a direction.
type node struct {
	actors.AttachedObjects
	*network.Network
	guest, other *network.Pod
	index        int
	epoch        uint64
}

const (
	matched  = 0xffff
	theSlot  = 1
	theRow   = 1
	epochBit = 32
)

// newNode puts the guest and its peer this far apart, there and back.
func newNode(t *testing.T, rtt time.Duration) *node {
	t.Helper()
	n := &node{Network: network.ForTest(t, network.Spec{
		Nodes: 2, Paths: []string{"blue", "green"}, LinkMbit: 300, IPv4: true, PodsPerNode: 1, GuestsPerNode: 1,
		PathDelays: map[string]time.Duration{"blue": rtt / 2, "green": rtt / 2},
	})}
	n.guest, n.other = n.Pod("guest-1-1"), n.Pod("pod-2-1")
	err := actors.LoadAttachedObjects(&n.AttachedObjects, nil)
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		t.Fatalf("%+v", verifier)
	}
	check(t, err)
	t.Cleanup(func() { n.Close() })
	n.index, err = n.guest.Node.Index(n.guest.HostInterface)
	check(t, err)
	n.attach(t, ebpf.AttachTCXIngress, n.FromAttached)
	n.attach(t, ebpf.AttachTCXEgress, n.ToAttached)
	return n
}

func (n *node) attach(t *testing.T, hook ebpf.AttachType, program *ebpf.Program) {
	t.Helper()
	check(t, n.guest.Node.Do(func() error {
		attached, err := link.AttachTCX(link.TCXOptions{Interface: n.index, Program: program, Attach: hook})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	}))
}

// rule makes the chain one rule that asks for an action on all packets of the
// directions; no actions: a chain that matches nothing.
func (n *node) rule(t *testing.T, directions uint8, asked ...action) {
	t.Helper()
	spec, err := actors.LoadAttached()
	check(t, err)
	slot, err := ebpf.NewMap(spec.Maps["chains"].InnerMap)
	check(t, err)
	t.Cleanup(func() { slot.Close() })
	var chain actors.AttachedChain
	chain.Rules = 1
	chain.Rule[0].FirstSelector, chain.Rule[0].Directions, chain.Rule[0].Actions = matched, directions, uint8(len(asked))
	for i, a := range asked {
		to := &chain.Action[i]
		to.Kind, to.Mechanism, to.Scope, to.Flag, to.Limit, to.Rate = a.kind, a.mechanism, a.scope, a.flag, a.limit, a.rate
	}
	check(t, slot.Update(uint32(0), &chain, ebpf.UpdateAny))
	n.epoch++
	place := theSlot + uint32(n.epoch)
	check(t, n.Chains.Update(place, slot, ebpf.UpdateAny))
	attachment := actors.AttachedAttachment{Interface: uint32(n.index), Endpoint: theEndpoint}
	attachment.Chain = uint64(place) | theRow<<16 | n.epoch<<epochBit
	check(t, n.Attachments.Update(uint32(n.index)&0xffff, &attachment, ebpf.UpdateAny))
}

// stream sends from one end to the other for a while and returns the bytes that
// arrived each second.
func stream(t *testing.T, from, to *network.Pod, lasts time.Duration) (rate float64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lasts+20*time.Second)
	defer cancel()
	listener, err := to.Listen(ctx, "tcp", net.JoinHostPort(to.IPv4, "0"))
	check(t, err)
	defer listener.Close()
	var arrived atomic.Int64
	received := make(chan error, 1)
	go func() { received <- receiveAll(listener, &arrived) }()
	connection, err := from.Dial(ctx, "tcp", listener.Addr().String())
	check(t, err)
	defer connection.Close()
	if multipath, err := connection.(*net.TCPConn).MultipathTCP(); err != nil || !multipath {
		t.Fatalf("the connection is not MPTCP: %v", err)
	}
	begun := time.Now()
	go sendUntil(connection, begun.Add(lasts))
	time.Sleep(lasts)
	rate = float64(arrived.Load()) / time.Since(begun).Seconds()
	connection.Close()
	<-received
	return rate
}

func receiveAll(listener net.Listener, arrived *atomic.Int64) error {
	connection, err := listener.Accept()
	if err != nil {
		return err
	}
	defer connection.Close()
	buffer := make([]byte, 1<<16)
	for {
		read, err := connection.Read(buffer)
		arrived.Add(int64(read))
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func sendUntil(connection net.Conn, end time.Time) {
	data := make([]byte, 1<<16)
	for time.Now().Before(end) {
		if _, err := connection.Write(data); err != nil {
			return
		}
	}
}

// records are the subflows that the node knows.
func (n *node) records(t *testing.T) (all []actors.AttachedSubflow) {
	t.Helper()
	var key actors.AttachedSubflowKey
	var subflow actors.AttachedSubflow
	for iterator := n.Subflows.Iterate(); iterator.Next(&key, &subflow); {
		all = append(all, subflow)
	}
	return all
}

func TestAGuestsRateIsKeptByWindows(t *testing.T) {
	for _, rtt := range []time.Duration{5 * time.Millisecond, 40 * time.Millisecond} {
		n := newNode(t, rtt)
		for _, mbit := range []uint64{5, 20, 50, 200} {
			for direction, ends := range [][2]*network.Pod{{n.guest, n.other}, {n.other, n.guest}} {
				t.Run(fmt.Sprintf("%d Mbit/s at %s in direction %d", mbit, rtt, direction), func(t *testing.T) {
					n.rule(t, 1<<direction, action{kind: rateLimit, mechanism: auto, rate: mbit * 125_000})
					rate := stream(t, ends[0], ends[1], 5*time.Second)
					limit := n.records(t)
					t.Logf("%.2f Mbit/s", rate*8/1e6)
					for _, s := range limit {
						if s.Limit[direction].Rate == mbit*125_000 {
							t.Logf("mechanism %d because of %d, RTTs %d and %d us, window %d, factor %.2f", s.Limit[direction].InUse, s.Limit[direction].Why,
								s.Traffic[0].SmoothedRtt, s.Traffic[1].SmoothedRtt, s.Window[direction].Window, float64(s.Window[direction].Loop.Factor)/65536)
						}
					}
					if error := rate/float64(mbit*125_000) - 1; error < -0.15 || error > 0.15 {
						t.Errorf("it is off by %.0f%%", error*100)
					}
				})
			}
		}
	}
}
