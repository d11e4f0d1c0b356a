// SPDX-License-Identifier: Apache-2.0

package actiontest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf/endpoint/actiontest"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// node is one whose endpoint, a guest, has the whole chain before it: one rule, all
// packets of a direction.
type node struct {
	actiontest.AttachedObjects
	*network.Network
	guest, other *network.Pod
	index        int
	epoch        uint64
}

const (
	matched          = 0xffff
	notMatched       = 0xfffe
	record           = 7
	selectRemotePort = 7
	theSlot          = 1
	theRow           = 1
	epochBit         = 32
)

// newNode puts the guest and its peer this far apart, there and back.
func newNode(t *testing.T, rtt time.Duration) *node {
	t.Helper()
	return newNodeOf(t, rtt, 300)
}

func newNodeOf(t *testing.T, rtt time.Duration, linkMbit int) *node {
	t.Helper()
	return newNodeIn(t, network.Spec{
		LinkMbit: linkMbit, IPv4: true, PathDelays: map[string]time.Duration{"blue": rtt / 2, "green": rtt / 2},
	})
}

func newNodeIn(t *testing.T, spec network.Spec) *node {
	t.Helper()
	spec.Nodes, spec.Paths, spec.PodsPerNode, spec.GuestsPerNode = 2, []string{"blue", "green"}, 1, 1
	n := &node{Network: network.ForTest(t, spec)}
	n.guest, n.other = n.Pod("guest-1-1"), n.Pod("pod-2-1")
	err := actiontest.LoadAttachedObjects(&n.AttachedObjects, nil)
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		t.Fatalf("%+v", verifier)
	}
	require.NoError(t, err)
	t.Cleanup(func() { n.Close() })
	n.index, err = n.guest.Node.Index(n.guest.HostInterface)
	require.NoError(t, err)
	n.attach(t, ebpf.AttachTCXIngress, n.FromAttached)
	n.attach(t, ebpf.AttachTCXEgress, n.ToAttached)
	return n
}

func (n *node) attach(t *testing.T, hook ebpf.AttachType, program *ebpf.Program) {
	t.Helper()
	expectAttached(t, n.guest.Node.Do(func() error {
		attached, err := link.AttachTCX(link.TCXOptions{Interface: n.index, Program: program, Attach: hook})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	}))
}

// expectAttached ends a test on a kernel that attaches in another way; the programs do the
// same there.
func expectAttached(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip("this kernel does not know TCX (Linux 6.6)")
	}
	require.NoError(t, err)
}

// rule selects packets: those of the directions, and of one port of the peer's if it
// is set.
type rule struct {
	directions uint8
	remotePort uint16
}

// rule makes the chain this one rule, and one that records all subflows.
func (n *node) rule(t *testing.T, selected rule, asked ...action) {
	t.Helper()
	spec, err := actiontest.LoadAttached()
	require.NoError(t, err)
	slot, err := ebpf.NewMap(spec.Maps["chains"].InnerMap)
	require.NoError(t, err)
	t.Cleanup(func() { slot.Close() })
	var chain actiontest.AttachedChain
	chain.Rules = 2
	chain.Rule[1].FirstSelector, chain.Rule[1].Directions, chain.Rule[1].Actions = matched, 3, 1
	chain.Rule[1].FirstAction = uint16(len(asked))
	chain.Action[len(asked)].Kind = record
	chain.Rule[0].FirstSelector, chain.Rule[0].Directions, chain.Rule[0].Actions = matched, selected.directions, uint8(len(asked))
	if selected.remotePort != 0 {
		chain.Rule[0].FirstSelector = 0
		condition := &chain.Selector[0]
		condition.Kind, condition.IfTrue, condition.IfFalse = selectRemotePort, matched, notMatched
		condition.From, condition.To = uint64(selected.remotePort), uint64(selected.remotePort)
	}
	for i, a := range asked {
		to := &chain.Action[i]
		to.Kind, to.Mechanism, to.Scope, to.Flag, to.Limit, to.Rate = a.kind, a.mechanism, a.scope, a.flag, a.limit, a.rate
	}
	require.NoError(t, slot.Update(uint32(0), &chain, ebpf.UpdateAny))
	n.epoch++
	place := theSlot + uint32(n.epoch)
	require.NoError(t, n.Chains.Update(place, slot, ebpf.UpdateAny))
	attachment := actiontest.AttachedAttachment{Interface: uint32(n.index), Endpoint: theEndpoint}
	attachment.Chain = uint64(place) | theRow<<16 | n.epoch<<epochBit
	require.NoError(t, n.Attachments.Update(uint32(n.index)&0xffff, &attachment, ebpf.UpdateAny))
}

// transfer is one connection that is sending.
type transfer struct {
	arrived *atomic.Int64
	begun   time.Time
	sender  *net.TCPConn
	stop    func()
}

// begin makes a connection and sends as fast as it can until the test ends or it is
// stopped.
func begin(t *testing.T, dials, listens *network.Pod, towardsListener bool) *transfer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	listener, err := listens.Listen(ctx, "tcp", net.JoinHostPort(listens.IPv4, "0"))
	require.NoError(t, err)
	defer listener.Close()
	sender, err := dials.Dial(ctx, "tcp", listener.Addr().String())
	require.NoError(t, err)
	receiver, err := listener.Accept()
	require.NoError(t, err)
	if multipath, err := sender.(*net.TCPConn).MultipathTCP(); err != nil || !multipath {
		t.Fatalf("the connection is not MPTCP: %v", err)
	}
	if !towardsListener {
		sender, receiver = receiver, sender
	}
	transfer := &transfer{arrived: &atomic.Int64{}, begun: time.Now(), sender: sender.(*net.TCPConn)}
	done := make(chan struct{}, 2)
	go func() { receiveAll(receiver, transfer.arrived); done <- struct{}{} }()
	go func() { sendAll(sender); done <- struct{}{} }()
	transfer.stop = sync.OnceFunc(func() {
		// What is still in flight is of no interest.
		require.NoError(t, sender.(*net.TCPConn).SetLinger(0))
		sender.Close()
		receiver.Close()
		<-done
		<-done
	})
	t.Cleanup(transfer.stop)
	return transfer
}

// rate is what arrived each second, on the average of a while.
func (f *transfer) rate(lasts time.Duration) float64 {
	before, begun := f.arrived.Load(), time.Now()
	time.Sleep(lasts)
	return float64(f.arrived.Load()-before) / time.Since(begun).Seconds()
}

func receiveAll(connection net.Conn, arrived *atomic.Int64) {
	buffer := make([]byte, 1<<16)
	for {
		read, err := connection.Read(buffer)
		arrived.Add(int64(read))
		if err != nil {
			return
		}
	}
}

func sendAll(connection net.Conn) {
	data := make([]byte, 1<<16)
	for {
		if _, err := connection.Write(data); err != nil {
			return
		}
	}
}

// records are the subflows that the node knows.
func (n *node) records(t *testing.T) (all []actiontest.AttachedSubflow) {
	t.Helper()
	var key actiontest.AttachedSubflowKey
	var subflow actiontest.AttachedSubflow
	for iterator := n.Subflows.Iterate(); iterator.Next(&key, &subflow); {
		all = append(all, subflow)
	}
	return all
}

const (
	windowTolerance = 0.15
	// everyMachine carries this many bytes a second.
	everyMachine = 50 * 125_000
)

func TestAGuestsRateIsKeptByWindows(t *testing.T) {
	for _, rtt := range []time.Duration{5 * time.Millisecond, 40 * time.Millisecond} {
		n := newNodeOf(t, rtt, 1000)
		for _, mbit := range []uint64{5, 20, 50, 200} {
			for direction, name := range []string{"from the guest", "to the guest"} {
				t.Run(fmt.Sprintf("%d Mbit/s %s at %s", mbit, name, rtt), func(t *testing.T) {
					rate := n.within(t, direction, mbit*125_000)
					n.rule(t, rule{directions: 1 << direction}, action{kind: rateLimit, mechanism: auto, rate: rate})
					transfer := begin(t, n.guest, n.other, direction == fromEndpoint)
					n.expectRate(t, transfer, rate)
					transfer.stop()
					n.expectWindow(t, direction, rate)
				})
			}
		}
	}
}

// within lowers a rate to what says something about the limit on this machine, where
// sender, receiver and the delaying switch share the processors: half of what they
// carry just now without one.
func (n *node) within(t *testing.T, direction int, rate uint64) uint64 {
	t.Helper()
	if rate <= everyMachine {
		return rate
	}
	n.rule(t, rule{})
	transfer := begin(t, n.guest, n.other, direction == fromEndpoint)
	transfer.rate(500 * time.Millisecond) // until its window has opened
	carried := transfer.rate(1500 * time.Millisecond)
	transfer.stop()
	t.Logf("this machine carries %.0f Mbit/s without a limit", carried*8/1e6)
	return max(everyMachine, min(rate, uint64(carried/2)))
}

// expectRate wants a limit never to be exceeded, and to be reached while nothing but it
// holds the sender back.
func (n *node) expectRate(t *testing.T, transfer *transfer, wanted uint64) {
	t.Helper()
	transfer.rate(time.Second) // until its window has opened
	missing := 0.0             // of what the limit allows, in looks that were disturbed: it may arrive in the next one
	for range 8 {
		before := transfer.info(t)
		rate := transfer.rate(3 * time.Second)
		t.Logf("%.2f of %.2f Mbit/s", rate*8/1e6, float64(wanted)*8/1e6)
		off := rate/float64(wanted) - 1
		reason := before.disturbed(transfer.info(t), wanted)
		switch {
		case off >= -windowTolerance && off <= windowTolerance:
			return
		case off > 0 && off-missing <= windowTolerance:
			reason = fmt.Sprintf("%.0f%% had waited for what was lost", missing*100)
		case off > 0 || reason == "":
			t.Fatalf("it is off by %.0f%%", off*100)
		}
		missing = max(0, missing-off)
		t.Logf("it is off by %.0f%%, but %s: looking again", off*100, reason)
	}
	t.Error("this machine disturbs the sender all the time, so that its limit cannot be measured")
}

// senderInfo is what the sender's TCP knows of its first subflow.
type senderInfo struct{ *unix.TCPInfo }

func (f *transfer) info(t *testing.T) (info senderInfo) {
	t.Helper()
	raw, err := f.sender.SyscallConn()
	require.NoError(t, err)
	var failed error
	require.NoError(t, raw.Control(func(fd uintptr) {
		info.TCPInfo, failed = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
	}))
	require.NoError(t, failed)
	return info
}

// disturbed says what else held the sender back until later from a rate in bytes a
// second, empty for nothing: the wire here loses and delays nothing unless the
// processors come too late to it, and a sender takes long to recover from a loss.
func (i senderInfo) disturbed(later senderInfo, wanted uint64) string {
	window := uint64(min(i.Snd_cwnd, later.Snd_cwnd)) * uint64(later.Snd_mss)
	switch least := max(later.Min_rtt, 1); {
	case later.Total_retrans > i.Total_retrans:
		return fmt.Sprintf("%d segments were lost", later.Total_retrans-i.Total_retrans)
	case later.Total_retrans > 0 && window < wanted*uint64(later.Rtt)/1e6:
		return "the congestion window recovers from a loss"
	case later.Rtt > least+least/2:
		return fmt.Sprintf("a round trip takes %d us instead of %d", later.Rtt, least)
	}
	return ""
}

// expectWindow wants the subflows with this limit to have it kept by windows.
func (n *node) expectWindow(t *testing.T, direction int, rate uint64) {
	t.Helper()
	found := false
	for _, s := range n.records(t) {
		if s.Limit[direction].Rate != rate {
			continue
		}
		found = true
		if s.Limit[direction].InUse != window {
			t.Errorf("mechanism %d because of %d", s.Limit[direction].InUse, s.Limit[direction].Why)
		}
	}
	if !found {
		t.Error("no subflow has the limit")
	}
}

// join lets the guest's connections have two more subflows, to these ports.
func (n *node) join(t *testing.T, ports ...int) {
	t.Helper()
	run := func(pod *network.Pod, args ...string) {
		t.Helper()
		if out, err := pod.Run("ip", append([]string{"mptcp"}, args...)...); err != nil {
			t.Fatalf("ip mptcp %v: %v: %s", args, err, out)
		}
	}
	for _, pod := range []*network.Pod{n.guest, n.other} {
		run(pod, "limits", "set", "subflows", "4", "add_addr_accepted", "4")
	}
	for _, port := range ports {
		run(n.other, "endpoint", "add", n.other.IPv4, "port", strconv.Itoa(port), "signal")
	}
}

// joins counts the subflows that the guest's kernel joined so far.
func (n *node) joins(t *testing.T) (count int) {
	t.Helper()
	var content []byte
	require.NoError(t, n.guest.Do(func() (err error) {
		content, err = os.ReadFile("/proc/thread-self/net/netstat")
		return err
	}))
	lines := strings.Split(string(content), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if at := slices.Index(names, "MPJoinSynAckRx"); at > 0 {
			count, err := strconv.Atoi(values[at])
			require.NoError(t, err)
			return count
		}
	}
	t.Fatal("the kernel does not count joins")
	return 0
}

func (n *node) waitForJoins(t *testing.T, count int, patience time.Duration) {
	t.Helper()
	testutil.Retry(t, patience, func() error {
		if joins := n.joins(t); joins < count {
			return fmt.Errorf("%d joins instead of %d", joins, count)
		}
		return nil
	})
}

func TestALimitOnAllSubflowsAtOnceHolds(t *testing.T) {
	const rate = 20 * 125_000
	for scope, c := range map[string]struct {
		scope uint8
		sum   uint64
	}{"each subflow's": {0, 3 * rate}, "the connection's": {1, rate}, "the endpoint's": {2, rate}} {
		t.Run(scope, func(t *testing.T) {
			n := newNode(t, 10*time.Millisecond)
			n.join(t, 6001, 6002)
			n.rule(t, rule{directions: 1 << fromEndpoint}, action{kind: rateLimit, mechanism: auto, scope: c.scope, rate: rate})
			transfer := begin(t, n.guest, n.other, true)
			n.waitForJoins(t, 2, 5*time.Second)
			n.expectRate(t, transfer, c.sum)
			n.expectWindow(t, fromEndpoint, rate)
		})
	}
}

// sent is what each subflow sent in a direction, by the peer's port.
func (n *node) sent(t *testing.T, direction int) map[uint16]uint64 {
	t.Helper()
	var key actiontest.AttachedSubflowKey
	var subflow actiontest.AttachedSubflow
	sent := map[uint16]uint64{}
	for iterator := n.Subflows.Iterate(); iterator.Next(&key, &subflow); {
		sent[bigEndian(key.RemotePort)] = subflow.Traffic[direction].Bytes
	}
	return sent
}

func TestABackupCarriesNothingWhileOthersDo(t *testing.T) {
	for direction, name := range []string{"from the guest", "to the guest"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 10*time.Millisecond)
			n.join(t, 6001)
			n.rule(t, rule{})
			transfer := begin(t, n.guest, n.other, direction == fromEndpoint)
			n.waitForJoins(t, 1, 5*time.Second)
			share := func() float64 {
				before := n.sent(t, direction)
				transfer.rate(2 * time.Second)
				var all, its uint64
				for port, bytes := range n.sent(t, direction) {
					all += bytes - before[port]
					if port == 6001 {
						its = bytes - before[port]
					}
				}
				return float64(its) / float64(all)
			}
			if share := share(); share < 0.05 {
				t.Fatalf("before the rule its share is %.1f%%", share*100)
			}
			n.rule(t, rule{directions: 3, remotePort: 6001}, action{kind: setBackup, flag: 1})
			time.Sleep(200 * time.Millisecond)
			if share := share(); share > 0.01 {
				t.Errorf("as a backup its share is %.1f%%", share*100)
			}
		})
	}
}

func TestAHiddenAddressIsJoinedOnlyAfterItIsGivenBack(t *testing.T) {
	for name, flag := range map[string]uint8{"left without an answer": 0, "answered with an echo": 1} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 2*time.Millisecond)
			n.join(t, 6001)
			n.rule(t, rule{directions: 1 << toEndpoint}, action{kind: suppressAddAddr, flag: flag})
			transfer := begin(t, n.guest, n.other, true)
			if transfer.rate(3*time.Second) < 1_000_000 {
				t.Error("the connection carries next to nothing")
			}
			if joins := n.joins(t); joins != 0 {
				t.Fatalf("%d joins although the address is hidden", joins)
			}
			n.rule(t, rule{})
			n.waitForJoins(t, 1, 2*time.Second)
		})
	}
}
