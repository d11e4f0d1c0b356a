// SPDX-License-Identifier: Apache-2.0

package asking

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/guests"
	"braid.dev/braid/agent/leftovers"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pace"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/internal/lab/ends"
	"braid.dev/braid/internal/testutil"
)

var asked = shown{congestion: "cubic", userTimeout: 7000, keepalive: 1, paced: true}

func TestAVMsPeerDoesWhatItIsAskedForAndGoesBackWhenThePolicyGoes(t *testing.T) {
	l := newLab(t)
	l.accept(t, "10.0.0.0/8", "fd00::/8")
	l.ask(t, everything())
	for _, address := range []string{l.server.IPv4, l.server.IPv6} {
		l.serve(t, address)
		client, server := l.connect(t, "TCP", address)
		require.Contains(t, l.subflows(t), "cwnd:40 ", "the third acknowledgement asks for the initial window")
		l.await(t, client, server, asked)
		if address != l.server.IPv4 {
			continue
		}
		l.ask(t, nil)
		l.await(t, client, server, own) // what is not asked for any more lapses
		_ = client.Close()
		l.ask(t, everything())
	}
}

// By what the server's kernel tells of its subflow, as the connection's own socket does not.
func TestTheSubflowsOfAVMsPeerDoWhatTheyAreAskedFor(t *testing.T) {
	l := newLab(t)
	l.accept(t, "0.0.0.0/0")
	l.ask(t, everything())
	l.serve(t, l.server.IPv4)
	client, server := l.connect(t, "MPTCP", l.server.IPv4)
	require.Contains(t, l.subflows(t), "cwnd:40 ")
	testutil.Retry(t, 25*time.Second, func() error {
		require.NoError(t, l.part.look())
		ends.Talk(t, client, server)
		if socket := l.subflows(t); !strings.Contains(socket, " cubic ") || !strings.Contains(socket, "/20000000bps") || !strings.Contains(socket, "timer:(keepalive,") {
			return fmt.Errorf("the server's subflow has %s", socket)
		}
		return nil
	})
}

func TestAPeerThatDoesNotAcceptFromTheVMStaysAsItIs(t *testing.T) {
	l := newLab(t)
	l.accept(t, "192.0.2.0/24", "::/0")
	l.ask(t, everything())
	l.serve(t, l.server.IPv4)
	client, server := l.connect(t, "TCP", l.server.IPv4)
	require.Contains(t, l.subflows(t), "cwnd:10 ")
	for range 40 {
		require.NoError(t, l.part.look())
		ends.Talk(t, client, server)
		time.Sleep(20 * time.Millisecond)
	}
	require.Equal(t, own, shownBy(t, server))
	require.NotZero(t, l.writtenSoFar(t), "it was asked")
}

func (l *lab) writtenSoFar(t *testing.T) (sum uint64) {
	t.Helper()
	l.part.mutex.Lock()
	defer l.part.mutex.Unlock()
	for index := range l.part.wants {
		sum += l.part.writtenOf(index)
	}
	return sum
}

func TestAConnectionThatExistsIsAskedTooAndWhileNoAgentRuns(t *testing.T) {
	l := newLab(t)
	l.accept(t, "10.0.0.0/8")
	l.serve(t, l.server.IPv4)
	client, server := l.connect(t, "TCP", l.server.IPv4)
	ends.Talk(t, client, server)
	l.ask(t, everything())
	l.await(t, client, server, asked)

	require.NoError(t, l.part.Close())
	for begun := time.Now(); time.Since(begun) < 12*time.Second; time.Sleep(100 * time.Millisecond) {
		ends.Talk(t, client, server) // what is not repeated lapses after 10 s
	}
	require.Equal(t, asked, shownBy(t, server))
	l.begin()
	other := everything()
	other.UserTimeout = after(9 * time.Second)
	l.ask(t, other)
	wanted := asked
	wanted.userTimeout = 9000
	l.await(t, client, server, wanted)
}

// By effect: the rate is what the guest gets of it.
func TestAVMsPeerSendsNoFasterThanItIsAskedTo(t *testing.T) {
	l := newLab(t)
	l.accept(t, "10.0.0.0/8")
	l.ask(t, &v1alpha1.TransportRequest{Rates: []v1alpha1.PathRate{{Path: "net1", Rate: resource.MustParse("20M")}}})
	l.serve(t, l.server.IPv4)
	client, server := l.connect(t, "TCP", l.server.IPv4)
	l.await(t, client, server, shown{congestion: "reno", paced: true})
	go func() { _, _ = io.Copy(server, zeros{}) }()
	buffer := make([]byte, 1<<16)
	read := func(d time.Duration) (bytes int) {
		for begun := time.Now(); time.Since(begun) < d; {
			n, err := client.Read(buffer)
			require.NoError(t, err)
			bytes += n
		}
		return bytes
	}
	read(time.Second)
	mbit := float64(read(4*time.Second)) * 8 / 4e6
	t.Logf("%.1f Mbit/s", mbit)
	require.InDelta(t, 20, mbit, 2)
}

type zeros struct{}

func (zeros) Read(to []byte) (int, error) { return len(to), nil }

// By effect: a server that hears nothing gives up when it was asked to, and a quiet one stays.
func TestAVMsPeerGivesUpWhenItWasAskedTo(t *testing.T) {
	l := newLab(t)
	l.accept(t, "10.0.0.0/8")
	l.ask(t, &v1alpha1.TransportRequest{UserTimeout: after(3 * time.Second)})
	l.serve(t, l.server.IPv4)
	client, server := l.connect(t, "TCP", l.server.IPv4)
	l.await(t, client, server, shown{congestion: "reno", userTimeout: 3000})
	for _, command := range []string{"add table inet cut", "add chain inet cut through { type filter hook forward priority 0 ; }", "add rule inet cut through drop"} {
		_, err := l.Nodes[0].Run("nft", strings.Fields(command)...)
		require.NoError(t, err)
	}
	again := retransmissionTimeout(t, server)
	begun := time.Now()
	_, err := server.Write([]byte("lost"))
	require.NoError(t, err)
	require.NoError(t, server.SetReadDeadline(begun.Add(20*time.Second)))
	_, err = server.Read(make([]byte, 1))
	require.ErrorIs(t, err, unix.ETIMEDOUT)
	took := time.Since(begun)
	t.Logf("it gave up after %s, and sends again after %s", took, again)
	// Linux counts from the first retransmission, which a probe for a lost tail may put off once.
	require.GreaterOrEqual(t, took, 3*time.Second)
	require.LessOrEqual(t, took, 4*time.Second+2*again)
}

func retransmissionTimeout(t *testing.T, of net.Conn) time.Duration {
	t.Helper()
	raw, err := of.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var info *unix.TCPInfo
	require.NoError(t, raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	require.NoError(t, err)
	return time.Duration(info.Rto) * time.Microsecond
}

func TestWhatRulesAskOfASubflowsPeerIsAskedOfThatOneAlone(t *testing.T) {
	l := newLab(t)
	l.accept(t, "10.0.0.0/8")
	var matched netip.AddrPort
	l.options.Rules = func(of types.UID) Rules {
		require.EqualValues(t, guestUID, of)
		return func(local, remote netip.AddrPort) (pace.Request, error) {
			if local == matched && remote.Port() == 5001 {
				return pace.Asked([]v1alpha1.PlanRule{rule("cubic")}, 1), nil
			}
			return pace.Request{}, nil
		}
	}
	l.begin()
	model := l.model(t, nil)
	model.Plan = &v1alpha1.MPTCPNodePlan{Spec: v1alpha1.MPTCPNodePlanSpec{Chains: []v1alpha1.PlanChain{{Name: "chain", Rules: []v1alpha1.PlanRule{rule("cubic")}}}}}
	model.Endpoints[0].Chain = "chain"
	apply := func() {
		require.NoError(t, l.Nodes[0].Do(func() error { return l.part.Apply(t.Context(), model).Err }))
	}
	apply()
	l.serve(t, l.server.IPv4)
	other, otherServer := l.connect(t, "TCP", l.server.IPv4)
	client, server := l.connect(t, "TCP", l.server.IPv4)
	matched = netip.MustParseAddrPort(client.LocalAddr().String())
	l.await(t, client, server, shown{congestion: "cubic"})
	ends.Talk(t, other, otherServer)
	require.Equal(t, own, shownBy(t, otherServer))
	matched = netip.AddrPort{}
	l.await(t, client, server, own)
}

// rule asks the peers of all subflows for a congestion control.
func rule(algorithm string) v1alpha1.PlanRule {
	return v1alpha1.PlanRule{Policy: "MPTCPPolicy/shop/vm", Rule: v1alpha1.Rule{Name: "ask", Actions: []v1alpha1.Action{
		{Type: v1alpha1.ActionCongestion, At: v1alpha1.ActionAtPeer, Congestion: &v1alpha1.Congestion{Algorithm: algorithm}},
	}}}
}

func TestTheEndpointSaysWhatIsAskedForItsGuest(t *testing.T) {
	l := newLab(t)
	report := l.ask(t, everything())
	status := v1alpha1.EndpointStatus{}
	report.Endpoints[guestUID].Describe(&status)
	require.Equal(t, "the guest's acknowledgements ask its peers for userTimeout, initialWindow, congestionControl, delayedAck, inactivityTimeout, rates", status.Message)
}

// at lists the programs of the VM's interface that see what it sends.
func (l *lab) at(t *testing.T) (names []string) {
	t.Helper()
	index, err := l.Nodes[0].Index(l.vm.HostInterface)
	require.NoError(t, err)
	require.NoError(t, l.Nodes[0].Do(func() error {
		for _, id := range attach.ProgramsAt(index, ebpf.AttachTCXIngress) {
			names = append(names, attach.NameOf(id))
		}
		return nil
	}))
	return names
}

func TestItComesBehindTheRealPortsAndBeforeAllOthers(t *testing.T) {
	l := newLab(t)
	l.ask(t, everything())
	if mode := l.part.interfaces.Mode(); mode != "tcx" {
		t.Skipf("this kernel attaches by %s, where priorities say who is first", mode)
	}
	index, err := l.Nodes[0].Index(l.vm.HostInterface)
	require.NoError(t, err)
	comeBefore := func() {
		empty, err := packettest.NewEmpty()
		require.NoError(t, err)
		defer empty.Close()
		require.NoError(t, l.Nodes[0].Do(func() error {
			other, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: empty, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
			if err == nil {
				t.Cleanup(func() { other.Close() })
			}
			return err
		}))
	}
	comeBefore()
	l.ask(t, everything())
	require.Equal(t, "ask_peers", l.at(t)[0])
	model := l.model(t, nil)
	model.Endpoints[0].Subflows = v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerHost, Count: 3}
	announcing := guests.Open(guests.Options{PinPath: filepath.Join(l.pins, "guests"), Log: logr.Discard()})
	apply := func() {
		require.NoError(t, l.Nodes[0].Do(func() error { return announcing.Apply(t.Context(), model).Err }))
		l.ask(t, everything())
	}
	apply()
	t.Cleanup(func() {
		require.NoError(t, l.Nodes[0].Do(func() error { return announcing.Remove(t.Context()) }))
	})
	require.Equal(t, []string{"from_guest", "ask_peers"}, l.at(t)[:2])
	comeBefore()
	apply()
	require.Equal(t, []string{"from_guest", "ask_peers"}, l.at(t)[:2])
}

func TestPeersAreAskedWhereTheKernelHasNoTCX(t *testing.T) {
	l := newLab(t)
	l.options.Clsact = true
	l.begin()
	l.accept(t, "10.0.0.0/8")
	l.ask(t, everything())
	l.serve(t, l.server.IPv4)
	client, server := l.connect(t, "TCP", l.server.IPv4)
	l.await(t, client, server, asked)
}

func TestAnAgentOfAnotherVersionGoesOn(t *testing.T) {
	l := newLab(t)
	l.accept(t, "10.0.0.0/8")
	l.ask(t, everything())
	l.serve(t, l.server.IPv4)
	client, server := l.connect(t, "TCP", l.server.IPv4)
	l.await(t, client, server, asked)
	before := l.writtenSoFar(t)
	for _, version := range []string{"v2", schema} { // and back
		require.NoError(t, l.part.Close())
		l.part = open(l.options, version)
		l.ask(t, everything())
		require.Len(t, l.at(t), 1)
		require.GreaterOrEqual(t, l.writtenSoFar(t), before, "the count goes on")
		for range 20 {
			require.NoError(t, l.part.look())
			ends.Talk(t, client, server)
			require.Equal(t, asked, shownBy(t, server))
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// A guest may open connections as fast as it likes: what that costs the agent is bounded.
func TestOfAGuestWithVeryManyConnectionsSomeAreLookedAt(t *testing.T) {
	l := newLab(t)
	l.ask(t, everything())
	now := bpf.Now()
	index, err := l.Nodes[0].Index(l.vm.HostInterface)
	require.NoError(t, err)
	connections, err := l.part.connectionsOf(uint32(index))
	require.NoError(t, err)
	defer connections.Close()
	for port := range uint16(2 * mostSubflows) {
		key := connectionKey{GuestPort: port}
		require.NoError(t, connections.Put(key, connection{RoundBegan: uint64(now)}))
	}
	require.NoError(t, l.part.look())
	rated := 0
	require.NoError(t, entries.Each(connections, func(_ *connectionKey, value *connection) {
		if value.Rate != 0 {
			rated++
		}
	}))
	require.Positive(t, rated)
	require.LessOrEqual(t, rated, mostSubflows)
	require.True(t, l.part.next.until.After(time.Now().Add(-lookInterval)))
}

func TestNothingIsLeftOfIt(t *testing.T) {
	l := newLab(t)
	l.ask(t, everything())
	find := func() (left []leftovers.Left) {
		require.NoError(t, l.Nodes[0].Do(func() (err error) {
			left, err = leftovers.Find(leftovers.Options{PinPath: l.options.PinPath, StatePath: t.TempDir()})
			return err
		}))
		return left
	}
	require.True(t, slices.ContainsFunc(find(), func(left leftovers.Left) bool { return left.Name == "ask_peers" }))
	require.NoError(t, l.Nodes[0].Do(func() error { return l.part.Remove(t.Context()) }))
	require.Empty(t, find())
	l.ask(t, everything())
	l.ask(t, nil)
	require.Empty(t, find())
}

func TestAPodAndAVMWithoutRequestsLoadNothing(t *testing.T) {
	p := Open(Options{PinPath: testutil.BPFFS(t), Log: logr.Discard()})
	model := &node.Model{Endpoints: []node.Endpoint{
		{HostInterface: 1, PlanEndpoint: &v1alpha1.PlanEndpoint{UID: "pod", Transport: &v1alpha1.Transport{Request: everything()}}},
		{HostInterface: 1, PlanEndpoint: &v1alpha1.PlanEndpoint{UID: "vm", Guest: &v1alpha1.PlanGuest{}}},
	}}
	require.NoError(t, p.Apply(t.Context(), model).Err)
	require.False(t, p.loaded.Exists())
}

func TestAVMIsNotProgrammedWhereTheKernelRefusesTheProgram(t *testing.T) {
	p := Open(Options{PinPath: t.TempDir(), Log: logr.Discard()})
	p.loaded = pins.NewLoaded(pins.New(filepath.Join(t.TempDir(), "asking"), schema, logr.Discard()), func() (*objects, error) {
		return nil, &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"combined stack size of 4 calls is 576"}}
	})
	model := &node.Model{Endpoints: []node.Endpoint{{HostInterface: 1, PlanEndpoint: &v1alpha1.PlanEndpoint{
		UID: "vm", Guest: &v1alpha1.PlanGuest{}, Transport: &v1alpha1.Transport{Request: everything()},
	}}}}
	for range 2 {
		report := p.Apply(t.Context(), model)
		require.NoError(t, report.Err, "it is told of the VM, and not tried again")
		require.ErrorContains(t, report.Endpoints["vm"].Failed, "combined stack size")
	}
}
