// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/transport/incasttest"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// crowd is a receiver behind a NIC of 100 Mbit/s with a buffer of 64 kB for each path, and
// eight senders on two other nodes, whose NICs are faster.
type crowd struct {
	*network.Network
	receiver *network.Pod
	senders  []*network.Pod
	part     *Part
	builder  *node.Builder
	heeded   *v1alpha1.Incast // by senders, in the place of credits
	slow     map[string]int64 // Mbit/s of paths with another capacity
}

const (
	crowdMbit   = 100
	crowdBuffer = 64 << 10
)

func newCrowd(t *testing.T) *crowd { return newCrowdOn(t, network.Spec{Paths: []string{"net1"}}) }

// newCrowdOn makes one with the paths of a network, and its overlay. Over several paths the
// connections of MPTCP have a subflow on each.
func newCrowdOn(t *testing.T, spec network.Spec) *crowd {
	t.Helper()
	spec.Nodes, spec.LinkMbit, spec.PodsPerNode = 3, 1000, 4
	c := &crowd{Network: network.ForTest(t, spec)}
	c.receiver = c.Nodes[0].Pods[0]
	c.senders = append(append(c.senders, c.Nodes[1].Pods...), c.Nodes[2].Pods...)
	for _, path := range spec.Paths {
		require.NoError(t, c.Fabric.ShapeQueue(path+".1", crowdMbit, crowdBuffer))
	}
	directory := testutil.BPFFS(t)
	if len(spec.Paths) > 1 {
		spread, err := incasttest.SpreadOver(t.Context(), c.Network, directory, t.TempDir())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, spread.Close()) })
	}
	c.builder = nodetest.NewBuilder(filepath.Join(directory, "registry"))
	c.part = Open(Options{PinPath: directory, NamespaceDirectories: []string{network.Directory}, Log: testr.New(t)})
	t.Cleanup(func() {
		require.NoError(t, c.Nodes[0].Do(func() error { return c.part.Remove(context.Background()) }))
	})
	return c
}

var credits = &v1alpha1.Incast{Mode: v1alpha1.IncastCredits, Peers: []v1alpha1.CIDR{"10.244.0.0/16", "fd00::/8"}}

// give has the receiver do something against incast, and so many of the senders heed
// credits. All use cubic, and stand for pods of the receiver's node, whose agent this is.
func (c *crowd) give(t *testing.T, receiver *v1alpha1.Incast, heeding int) {
	t.Helper()
	tunnels, err := incasttest.TunnelsOf(c.Nodes[0])
	require.NoError(t, err)
	state := nodetest.State{Tunnels: tunnels}
	for _, path := range c.Spec.Paths {
		index, err := c.Nodes[0].Index(path)
		require.NoError(t, err)
		state.Paths = append(state.Paths, nodetest.Path{Name: path, Interface: index, Up: true, Capacity: cmp.Or(c.slow[path], crowdMbit) * 1e6})
	}
	pods := []nodetest.Pod{{UID: "receiver", Namespace: c.receiver.Path()}}
	for _, sender := range c.senders {
		pods = append(pods, nodetest.Pod{UID: types.UID(sender.Name), Namespace: sender.Path()})
	}
	model, err := state.Model(c.builder)
	require.NoError(t, err)
	model.Endpoints = nodetest.Model(pods...).Endpoints
	model.Endpoints[0].Addresses = []netip.Addr{netip.MustParseAddr(c.receiver.IPv4), netip.MustParseAddr(c.receiver.IPv6)}
	model.Endpoints[0].Incast = receiver
	for i := range model.Endpoints[1:] {
		model.Endpoints[i+1].Transport = &v1alpha1.Transport{CongestionControl: "cubic"}
		if i < heeding {
			model.Endpoints[i+1].Incast = cmp.Or(c.heeded, credits)
		}
	}
	c.apply(t, model)
}

func (c *crowd) apply(t *testing.T, model *node.Model) {
	t.Helper()
	var report node.Report
	require.NoError(t, c.Nodes[0].Do(func() error { report = c.part.Apply(t.Context(), model); return nil }))
	require.NoError(t, nodetest.Failures(report))
}

func (c *crowd) run(t *testing.T, options incasttest.Options) *incasttest.Result {
	t.Helper()
	if options.Senders == nil {
		options.Senders = c.senders
	}
	options.Receiver = c.receiver
	result, err := incasttest.Run(t.Context(), options)
	require.NoError(t, err)
	t.Logf("%d flows of %d kB: %.2f %% retransmitted, slowest %v, %.1f Mbit/s, Jain %.3f",
		options.Flows, options.Bytes>>10, result.RetransmittedShare(), result.Slowest(), result.Mbit(), result.Jain())
	return result
}

// blast sends datagrams to another pod of the receiver's node until it is told to stop.
func (c *crowd) blast(t *testing.T, mbit int) (stop func()) {
	t.Helper()
	to := c.Nodes[0].Pods[1]
	var socket net.Conn
	require.NoError(t, c.senders[7].Do(func() (err error) {
		socket, err = net.Dial("udp", net.JoinHostPort(to.IPv4, "9"))
		return err
	}))
	done := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		began, sent := time.Now(), 0
		for {
			select {
			case <-done:
				return
			default:
			}
			for sent < int(time.Since(began).Seconds()*float64(mbit)*1e6/8) {
				_, _ = socket.Write(make([]byte, 1200))
				sent += 1242
			}
			time.Sleep(time.Millisecond)
		}
	})
	return func() { close(done); sending.Wait(); _ = socket.Close() }
}

// bulk are the short flows of an incast.
var bulk = []incasttest.Options{{Flows: 8, Bytes: 256 << 10}, {Flows: 32, Bytes: 64 << 10}}

// What is asserted is generous: hack/bench has the figures.
func TestSendersWithCreditsDoNotOverrunAReceiver(t *testing.T) {
	c := newCrowd(t)
	for name, of := range map[string]incasttest.Options{
		"TCP": {Protocol: network.TCP}, "TCP over IPv6": {Protocol: network.TCP, Version: 6}, "MPTCP": {},
	} {
		for _, o := range bulk {
			o.Protocol, o.Version = of.Protocol, of.Version
			c.give(t, credits, 0)
			without := c.run(t, o)
			c.give(t, credits, len(c.senders))
			with := c.run(t, o)
			if with.RetransmittedShare() > without.RetransmittedShare()/2 {
				t.Errorf("%s: with credits %.1f %% are sent again, and %.1f %% without", name, with.RetransmittedShare(), without.RetransmittedShare())
			}
		}
	}
}

func TestLongFlowsWithCreditsShareAReceiverEvenly(t *testing.T) {
	c := newCrowd(t)
	c.give(t, credits, len(c.senders))
	for _, flows := range []int{1, 8, 32} {
		got := c.run(t, incasttest.Options{Flows: flows, Duration: 2 * time.Second, Protocol: network.TCP})
		if got.RetransmittedShare() > 2 || got.Jain() < 0.95 || got.Mbit() < 0.7*crowdMbit {
			t.Errorf("%d flows: %.1f %% retransmitted, Jain %.3f, %.1f Mbit/s", flows, got.RetransmittedShare(), got.Jain(), got.Mbit())
		}
	}
}

// Where several segments come at once they are acknowledged before there is an answer.
func TestLargeFlowsWithDataBothWaysGetCreditsToo(t *testing.T) {
	c := newCrowd(t)
	for name, protocol := range map[string]network.Protocol{"TCP": network.TCP, "MPTCP": network.MPTCP} {
		o := incasttest.Options{Flows: 8, Duration: 2 * time.Second, Protocol: protocol, Echo: true}
		c.give(t, credits, 0)
		without := c.run(t, o)
		c.give(t, credits, len(c.senders))
		with := c.run(t, o)
		if with.RetransmittedShare() > without.RetransmittedShare()/2 {
			t.Errorf("%s: with credits %.1f %% are sent again, and %.1f %% without", name, with.RetransmittedShare(), without.RetransmittedShare())
		}
	}
}

var twoNICs = []string{"net1", "net2"}

// received is what came in by each NIC of the receiver's node.
func (c *crowd) received(t *testing.T) (bytes []float64) {
	t.Helper()
	for _, path := range c.Spec.Paths {
		counters, err := c.Nodes[0].Counters(path)
		require.NoError(t, err)
		bytes = append(bytes, float64(counters.RxBytes))
	}
	return bytes
}

// expectOnSecond has flows run, and wants the second NIC to have a part of all within bounds.
func (c *crowd) expectOnSecond(t *testing.T, options incasttest.Options, least, most float64) *incasttest.Result {
	t.Helper()
	before := c.received(t)
	result := c.run(t, options)
	after := c.received(t)
	second := (after[1] - before[1]) / (after[0] + after[1] - before[0] - before[1])
	if second < least || second > most {
		t.Errorf("by the second NIC come %.0f %% of the bytes", 100*second)
	}
	return result
}

func TestSubflowsWithCreditsFillBothNICsOfAReceiverAndDoNotOverrunThem(t *testing.T) {
	c := newCrowdOn(t, network.Spec{Paths: twoNICs})
	for _, o := range bulk {
		c.give(t, credits, 0)
		without := c.run(t, o)
		c.give(t, credits, len(c.senders))
		with := c.expectOnSecond(t, o, 0.25, 0.75)
		if with.RetransmittedShare() > without.RetransmittedShare()/2 {
			t.Errorf("with credits %.1f %% are sent again, and %.1f %% without", with.RetransmittedShare(), without.RetransmittedShare())
		}
	}
	for _, flows := range []int{1, 8, 32} {
		got := c.expectOnSecond(t, incasttest.Options{Flows: flows, Duration: 2 * time.Second}, 0.35, 0.65)
		if got.RetransmittedShare() > 2 || got.Jain() < 0.95 || got.Mbit() < 1.2*crowdMbit {
			t.Errorf("%d flows: %.1f %% retransmitted, Jain %.3f, %.1f Mbit/s", flows, got.RetransmittedShare(), got.Jain(), got.Mbit())
		}
	}
}

// With the first NIC's credits the second one, of a quarter of its rate, would lose most.
func TestEachSubflowGetsCreditsOfTheNICByWhichItComesIn(t *testing.T) {
	c := newCrowdOn(t, network.Spec{Paths: twoNICs})
	const slow = crowdMbit / 4
	c.slow = map[string]int64{"net2": slow}
	require.NoError(t, c.Fabric.ShapeQueue("net2.1", slow, crowdBuffer))
	c.give(t, credits, len(c.senders))
	got := c.expectOnSecond(t, incasttest.Options{Flows: 8, Duration: 2 * time.Second}, 0.1, 0.3)
	if got.RetransmittedShare() > 2 || got.Mbit() < 0.7*(crowdMbit+slow) {
		t.Errorf("%.1f %% retransmitted, %.1f Mbit/s", got.RetransmittedShare(), got.Mbit())
	}
}

func TestSendersWithCreditsDoNotOverrunAReceiverInAnOverlay(t *testing.T) {
	for name, overlay := range map[string]network.Overlay{"VXLAN over IPv4": {Outer: 4}, "external VXLAN over IPv6": {Outer: 6, External: true}} {
		t.Run(name, func(t *testing.T) {
			c := newCrowdOn(t, network.Spec{Paths: []string{"net1"}, Overlay: overlay})
			for _, o := range bulk {
				o.Protocol = network.TCP
				c.give(t, credits, 0)
				without := c.run(t, o)
				c.give(t, credits, len(c.senders))
				with := c.run(t, o)
				if with.RetransmittedShare() > without.RetransmittedShare()/2 {
					t.Errorf("with credits %.1f %% are sent again, and %.1f %% without", with.RetransmittedShare(), without.RetransmittedShare())
				}
			}
			got := c.run(t, incasttest.Options{Flows: 8, Duration: 2 * time.Second, Protocol: network.TCP})
			if got.RetransmittedShare() > 2 || got.Jain() < 0.95 || got.Mbit() < 0.65*crowdMbit {
				t.Errorf("%.1f %% retransmitted, Jain %.3f, %.1f Mbit/s", got.RetransmittedShare(), got.Jain(), got.Mbit())
			}
		})
	}
}

func TestSubflowsInAnOverlayGetCreditsOfBothNICs(t *testing.T) {
	c := newCrowdOn(t, network.Spec{Paths: twoNICs, Overlay: network.Overlay{Outer: 4}})
	c.give(t, credits, len(c.senders))
	got := c.expectOnSecond(t, incasttest.Options{Flows: 8, Duration: 2 * time.Second}, 0.35, 0.65)
	if got.RetransmittedShare() > 2 || got.Jain() < 0.95 || got.Mbit() < 1.1*crowdMbit {
		t.Errorf("%.1f %% retransmitted, Jain %.3f, %.1f Mbit/s", got.RetransmittedShare(), got.Jain(), got.Mbit())
	}
}

// An equal share of the path would be 19 Mbit/s for each of the five.
func TestWhatModestFlowsLeaveGoesToTheOthers(t *testing.T) {
	c := newCrowd(t)
	c.give(t, credits, len(c.senders))
	done := make(chan struct{})
	var trickling sync.WaitGroup
	for _, sender := range c.senders[1:5] {
		trickling.Go(func() { c.trickle(t, sender, done) })
	}
	got := c.run(t, incasttest.Options{Senders: c.senders[:1], Flows: 1, Duration: 3 * time.Second, Protocol: network.TCP})
	close(done)
	trickling.Wait()
	if got.Mbit() < 0.28*crowdMbit {
		t.Errorf("beside four flows that want little one gets %.1f of %d Mbit/s", got.Mbit(), crowdMbit)
	}
}

// trickle sends a little all the time: about 1 Mbit/s.
func (c *crowd) trickle(t *testing.T, from *network.Pod, done <-chan struct{}) {
	listener, err := c.receiver.Listen(context.Background(), "tcp", net.JoinHostPort(c.receiver.IPv4, "0"))
	if err != nil {
		t.Error(err)
		return
	}
	defer listener.Close()
	connection, err := from.DialBy(context.Background(), network.TCP, "tcp", listener.Addr().String())
	if err != nil {
		t.Error(err)
		return
	}
	defer connection.Close()
	accepted, err := listener.Accept()
	if err != nil {
		t.Error(err)
		return
	}
	defer accepted.Close()
	for block := make([]byte, 1250); ; time.Sleep(10 * time.Millisecond) {
		select {
		case <-done:
			return
		default:
		}
		if _, err := connection.Write(block); err != nil {
			t.Error(err)
			return
		}
		if _, err := io.ReadFull(accepted, block); err != nil {
			t.Error(err)
			return
		}
	}
}

func TestWhatOthersSendIsTakenOffCredits(t *testing.T) {
	c := newCrowd(t)
	c.give(t, credits, len(c.senders))
	stop := c.blast(t, crowdMbit/3)
	defer stop()
	got := c.run(t, incasttest.Options{Flows: 8, Duration: 2 * time.Second, Protocol: network.TCP})
	if got.RetransmittedShare() > 4 || got.Mbit() > 0.75*crowdMbit || got.Mbit() < 0.35*crowdMbit {
		t.Errorf("beside a third of others: %.1f %% retransmitted, %.1f Mbit/s", got.RetransmittedShare(), got.Mbit())
	}
}

// Four of them have credits of nearly 50 Mbit/s together.
func TestLongFlowsWithCreditsDoNotOverrunANarrowerLinkOnTheirWay(t *testing.T) {
	c := newCrowd(t)
	require.NoError(t, c.Nodes[1].ShapeQueue("net1", 30, crowdBuffer))
	o := incasttest.Options{Flows: 8, Duration: 2 * time.Second, Protocol: network.TCP}
	c.give(t, credits, 0)
	without := c.run(t, o)
	c.give(t, credits, len(c.senders))
	with := c.run(t, o)
	if with.RetransmittedShare() > without.RetransmittedShare()/2 || with.Mbit() < 0.7*crowdMbit {
		t.Errorf("with credits %.1f %% are sent again and %.1f Mbit/s go, and %.1f %% and %.1f without", with.RetransmittedShare(), with.Mbit(), without.RetransmittedShare(), without.Mbit())
	}
}

// When the four others end, the credits of these are more than twice what their NIC carries.
func TestShortFlowsWithCreditsDoNotOverrunANarrowerLinkOnTheirWay(t *testing.T) {
	c := newCrowd(t)
	require.NoError(t, c.Nodes[1].ShapeQueue("net1", 30, crowdBuffer))
	c.give(t, credits, len(c.senders))
	var shares []float64
	for range 5 {
		shares = append(shares, c.run(t, incasttest.Options{Flows: 8, Bytes: 256 << 10, Protocol: network.TCP}).RetransmittedShare())
	}
	slices.Sort(shares)
	if shares[len(shares)/2] > 1 {
		t.Errorf("%.2f %% are sent again", shares)
	}
}

// stream has a sender send to the receiver until the test ends.
func (c *crowd) stream(t *testing.T, protocol network.Protocol) net.Conn {
	t.Helper()
	listener, err := c.receiver.Listen(context.Background(), "tcp", net.JoinHostPort(c.receiver.IPv4, "0"))
	require.NoError(t, err)
	connection, err := c.senders[0].DialBy(t.Context(), protocol, "tcp", listener.Addr().String())
	require.NoError(t, err)
	accepted, err := listener.Accept()
	require.NoError(t, err)
	var flowing sync.WaitGroup
	flowing.Go(func() { _, _ = io.Copy(io.Discard, accepted) })
	flowing.Go(func() {
		for block := make([]byte, 16<<10); ; {
			if _, err := connection.Write(block); err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		require.NoError(t, errors.Join(connection.Close(), accepted.Close(), listener.Close()))
		flowing.Wait()
	})
	return connection
}

// paced is the pace of a sender's TCP sockets, as ss tells of them, and how many segments may
// be under way.
type paced struct {
	limited  bool // below what any socket has of itself
	window   int
	infinite bool // no threshold of slow start is known
}

func (c *crowd) paced(t *testing.T, connection net.Conn) (p paced) {
	t.Helper()
	raw, err := connection.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		pace, failed := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE)
		p.limited, err = pace != -1 && pace != 0xffffffff, failed
		info, failed := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err = errors.Join(err, failed); err == nil {
			p.window, p.infinite = int(info.Snd_cwnd), info.Snd_ssthresh == 0x7fffffff
		}
	}))
	require.NoError(t, err)
	return p
}

func TestSocketsGoBackToTheirOwnWhenThePolicyGoes(t *testing.T) {
	c := newCrowd(t)
	c.give(t, credits, len(c.senders))
	connection := c.stream(t, network.TCP)
	testutil.Retry(t, 10*time.Second, func() error {
		if got := c.paced(t, connection); !got.limited || got.window > 40 {
			return fmt.Errorf("with credits the sender has %+v", got)
		}
		return nil
	})
	c.apply(t, nodetest.Model())
	if c.paced(t, connection).limited {
		t.Error("when the policy is gone the sender's pace is still limited")
	}
	testutil.Retry(t, 10*time.Second, func() error {
		if got := c.paced(t, connection); got.window <= 40 {
			return fmt.Errorf("when the policy is gone the sender has %+v", got)
		}
		return nil
	})
	if _, err := os.Stat(c.part.loaded.Directory()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the policy something is pinned, or on NICs: %v", err)
	}
}

var notSent = regexp.MustCompile(`notsent:(\d+)`)

// longestBacklog is what waits to be sent in a subflow of the first sender, as ss tells of it.
func (c *crowd) longestBacklog(t *testing.T) (longest int) {
	t.Helper()
	out, err := c.senders[0].Run("ss", "-tinO", "state", "established")
	require.NoError(t, err, out)
	for _, found := range notSent.FindAllStringSubmatch(out, -1) {
		bytes, err := strconv.Atoi(found[1])
		require.NoError(t, err)
		longest = max(longest, bytes)
	}
	return longest
}

// A connection that sends without end fills its subflows' buffers, of hundreds of kB. At 10
// Mbit/s 10 kB may wait, and what the kernel deals out at once is at most 64 kB.
func TestASubflowWithCreditsHasAShortBacklogAndItsOwnWhenThePolicyGoes(t *testing.T) {
	c := newCrowdOn(t, network.Spec{Paths: twoNICs})
	c.slow = map[string]int64{"net1": 10, "net2": 10}
	c.give(t, credits, len(c.senders))
	c.stream(t, network.MPTCP)
	short, long := 10_000+64_000, 150_000
	testutil.Retry(t, 10*time.Second, func() error {
		if got := c.longestBacklog(t); got == 0 || got > short {
			return fmt.Errorf("with credits %d bytes wait", got)
		}
		return nil
	})
	for range 10 {
		if got := c.longestBacklog(t); got > short {
			t.Errorf("with credits %d bytes wait", got)
		}
		time.Sleep(20 * time.Millisecond)
	}
	c.apply(t, nodetest.Model())
	testutil.Retry(t, 10*time.Second, func() error {
		if got := c.longestBacklog(t); got < long {
			return fmt.Errorf("when the policy is gone %d bytes wait", got)
		}
		return nil
	})
}

func TestCreditsLapseWhenNoneComeAnyMore(t *testing.T) {
	c := newCrowd(t)
	c.give(t, credits, len(c.senders))
	connection := c.stream(t, network.TCP)
	testutil.Retry(t, 10*time.Second, func() error {
		if !c.paced(t, connection).limited {
			return errors.New("the sender is not paced")
		}
		return nil
	})
	c.give(t, nil, len(c.senders))
	testutil.Retry(t, 10*time.Second, func() error {
		if got := c.paced(t, connection); got.limited || got.window <= 40 {
			return fmt.Errorf("without further credits the sender has %+v", got)
		}
		return nil
	})
}

func TestCreditsOfStrangersAreNotHeeded(t *testing.T) {
	c := newCrowd(t)
	c.heeded = &v1alpha1.Incast{Mode: v1alpha1.IncastCredits, Peers: []v1alpha1.CIDR{"192.0.2.0/24"}}
	c.give(t, credits, len(c.senders))
	connection := c.stream(t, network.TCP)
	c.expectNotPaced(t, connection)
}

// A path without end or without any capacity stands for a receiver that writes whatever it
// likes.
func TestCreditsThatMakeNoSenseAreNotHeeded(t *testing.T) {
	for name, capacity := range map[string]uint64{"nothing": 1, "more than there can be": 1 << 62} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t)
			c.give(t, credits, len(c.senders))
			require.NoError(t, c.part.loaded.Value.CreditCapacities.Put(uint32(0), capacity))
			connection := c.stream(t, network.TCP)
			before := c.moved(t, connection)
			time.Sleep(time.Second)
			if got := c.moved(t, connection) - before; got < 1e6 {
				t.Errorf("in a second %d bytes went", got)
			}
		})
	}
}

// moved are the bytes that were acknowledged.
func (*crowd) moved(t *testing.T, connection net.Conn) (bytes uint64) {
	t.Helper()
	raw, err := connection.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var info *unix.TCPInfo
	require.NoError(t, raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	require.NoError(t, err)
	return info.Bytes_acked
}

// expectNotPaced looks for a while.
func (c *crowd) expectNotPaced(t *testing.T, connection net.Conn) {
	t.Helper()
	for range 20 {
		if c.paced(t, connection).limited {
			t.Fatal("the sender is paced")
		}
		time.Sleep(25 * time.Millisecond)
	}
}

func TestAReceiverOnPathsWithoutCapacityGivesNoCreditsAndSaysSo(t *testing.T) {
	c := newCrowd(t)
	model := nodetest.Model(nodetest.Pod{UID: "receiver", Namespace: c.receiver.Path()})
	model.Endpoints[0].Incast = credits
	var report node.Report
	require.NoError(t, c.Nodes[0].Do(func() error { report = c.part.Apply(t.Context(), model); return nil }))
	require.NoError(t, nodetest.Failures(report))
	status := v1alpha1.EndpointStatus{}
	report.Endpoints["receiver"].Describe(&status)
	require.Contains(t, status.Message, "no path of this node has a capacity")
}
