// SPDX-License-Identifier: Apache-2.0

package atnic

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/leftovers"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// lab is a network whose first node has rules for its pod, to which that of the second one
// speaks.
type lab struct {
	*network.Network
	t       testing.TB
	options Options
	chains  *chains.Chains
	part    *Part
	nics    []node.Path
}

const uid = "9c858901-8a57-4791-81fe-4c455b099b01"

func newLab(t testing.TB) *lab {
	t.Helper()
	pins := testutil.BPFFS(t)
	l := &lab{t: t, Network: network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, LinkMbit: 200, PodsPerNode: 1})}
	l.chains = chains.Open(chains.Options{PinPath: filepath.Join(pins, "endpoints"), SubflowEntries: 4096, Log: logr.Discard()})
	l.options = Options{PinPath: pins, Native: true, Chains: l.chains, Log: logr.Discard()}
	l.part = Open(l.options)
	l.nics = []node.Path{l.pathOf("blue")}
	t.Cleanup(func() {
		l.inNode(func() error {
			return errors.Join(l.chains.Remove(context.Background()), l.part.Remove(context.Background()))
		})
	})
	return l
}

func (l *lab) inNode(do func() error) {
	l.t.Helper()
	require.NoError(l.t, l.Nodes[0].Do(do))
}

// pathOf is the path whose NIC has this name.
func (l *lab) pathOf(name string) (path node.Path) {
	l.t.Helper()
	l.inNode(func() error {
		device, err := netlink.LinkByName(name)
		if err == nil {
			nic := paths.NIC{Name: name, Index: device.Attrs().Index, MAC: device.Attrs().HardwareAddr}
			path = node.Path{Name: name, Interface: nic.Index, Found: paths.Path{Name: name, NIC: nic}}
		}
		return err
	})
	return path
}

// apply gives the pod these rules, and the NICs their program.
func (l *lab) apply(rules ...v1alpha1.PlanRule) {
	l.t.Helper()
	pod := l.Nodes[0].Pods[0]
	index, err := l.Nodes[0].Index(pod.HostInterface)
	require.NoError(l.t, err)
	model := nodetest.Model(nodetest.Pod{UID: uid, Name: "team/server", Number: 1, Interface: index, Rules: rules})
	model.Endpoints[0].Addresses = []netip.Addr{netip.MustParseAddr(pod.IPv4), netip.MustParseAddr(pod.IPv6)}
	model.Paths = l.nics
	l.inNode(func() error {
		return errors.Join(nodetest.Failures(l.chains.Apply(l.t.Context(), model)), nodetest.Failures(l.part.Apply(l.t.Context(), model)))
	})
}

func drop(name string, match *v1alpha1.Match) v1alpha1.PlanRule {
	return v1alpha1.PlanRule{Policy: "MPTCPPolicy/team/web", Rule: v1alpha1.Rule{Name: name, Match: match, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionDrop}}}}
}

// toClosedPort is what the pod receives for the closed port.
func toClosedPort() *v1alpha1.Match {
	return &v1alpha1.Match{Selectors: v1alpha1.Selectors{
		Direction: v1alpha1.DirectionToEndpoint, Destination: &v1alpha1.Side{Ports: []v1alpha1.PortRange{{Port: closedPort}}},
	}}
}

// hits are the packets that the pod's first rule matched, at whichever hook.
func (l *lab) hits() uint64 {
	l.t.Helper()
	counted, err := l.chains.Counters(uid)
	require.NoError(l.t, err)
	require.NotEmpty(l.t, counted)
	return counted[0].Hits
}

func (l *lab) droppedAtNIC() uint64 {
	l.t.Helper()
	dropped, err := l.part.objects.dropped(l.nics[0].Interface)
	require.NoError(l.t, err)
	return dropped
}

func (l *lab) state(path string) v1alpha1.NodePathXDP {
	l.t.Helper()
	status := v1alpha1.NodePath{Name: v1alpha1.PathName(path), Interface: path}
	l.part.DescribePath(&status)
	require.NotNil(l.t, status.XDP, "of the path %s", path)
	return *status.XDP
}

// atHook is the name of the program that the node's NIC has at its XDP hook.
func (l *lab) atHook(nic string) (name string) {
	l.t.Helper()
	l.inNode(func() error {
		device, err := netlink.LinkByName(nic)
		if err != nil || device.Attrs().Xdp == nil || !device.Attrs().Xdp.Attached {
			return err
		}
		program, err := ebpf.NewProgramFromID(ebpf.ProgramID(device.Attrs().Xdp.ProgId))
		if err != nil {
			return err
		}
		defer program.Close()
		info, err := program.Info()
		name = info.Name
		return err
	})
	return name
}

const (
	closedPort = 5002
)

// serve echoes one connection after another at both ports.
func (l *lab) serve(address string) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l.t.Cleanup(cancel)
	for _, port := range []string{"5001", "5002"} {
		listener, err := l.Nodes[0].Pods[0].Listen(ctx, "tcp", net.JoinHostPort(address, port))
		require.NoError(l.t, err)
		l.t.Cleanup(func() { listener.Close() })
		go func() {
			for {
				connection, err := listener.Accept()
				if err != nil {
					return
				}
				go echo(connection)
			}
		}()
	}
}

func echo(connection net.Conn) {
	defer connection.Close()
	buffer := make([]byte, 1<<16)
	for {
		n, err := connection.Read(buffer)
		if err != nil {
			return
		}
		if _, err := connection.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// talk exchanges a few packets with the pod, and says whether that worked within a second.
func (l *lab) talk(address, port string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	connection, err := l.Nodes[1].Pods[0].Dial(ctx, "tcp", net.JoinHostPort(address, port))
	if err != nil {
		return err
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(5 * time.Second))
	sent, got := make([]byte, 100_000), 0
	go func() { _, _ = connection.Write(sent) }()
	for got < len(sent) {
		n, err := connection.Read(sent)
		if err != nil {
			return err
		}
		got += n
	}
	return nil
}

func (l *lab) addresses() []string {
	pod := l.Nodes[0].Pods[0]
	return []string{pod.IPv4, pod.IPv6}
}

func TestWhatRulesDropEndsAtTheNIC(t *testing.T) {
	l := newLab(t)
	l.apply(drop("closed", toClosedPort()))
	require.Equal(t, v1alpha1.NodePathXDP{State: v1alpha1.XDPNative}, l.state("blue"))
	for _, address := range l.addresses() {
		l.serve(address)
		require.NoError(t, l.talk(address, "5001"), "what no rule drops, to %s", address)
		before := l.droppedAtNIC()
		require.Error(t, l.talk(address, "5002"))
		require.Greater(t, l.droppedAtNIC(), before, "SYNs to %s that the NIC dropped", address)
	}
	require.Equal(t, l.droppedAtNIC(), l.hits(), "each was counted once, by its rule")
	l.apply()
	require.Equal(t, "at_nic", l.atHook("blue"), "a program stays, so that no driver sets up its queues for a rule that comes or goes")
	for _, address := range l.addresses() {
		require.NoError(t, l.talk(address, "5002"), "without the rule")
	}
}

// A node whose pods have no rules has none of the maps of chains, and its NICs a program
// that does nothing; a rule that comes or goes changes no more than the program.
func TestAProgramStaysWhileRulesComeAndGo(t *testing.T) {
	l := newLab(t)
	address := l.addresses()[0]
	l.serve(address)
	for range 2 {
		l.apply()
		require.Equal(t, v1alpha1.XDPNative, l.state("blue").State)
		require.Nil(t, l.part.objects.atNIC, "nothing holds the maps of chains")
		require.NoError(t, l.talk(address, "5002"))
		l.apply(drop("closed", toClosedPort()))
		require.Equal(t, v1alpha1.NodePathXDP{State: v1alpha1.XDPNative}, l.state("blue"))
		before := l.droppedAtNIC()
		require.Error(t, l.talk(address, "5002"))
		require.Greater(t, l.droppedAtNIC(), before)
		l.inNode(func() error { return l.chains.Remove(t.Context()) }) // without waiting for subflows
	}
}

func TestNICsDropOnWithoutAnAgentAndTheNextOneTakesOver(t *testing.T) {
	l := newLab(t)
	address := l.addresses()[0]
	l.serve(address)
	l.apply(drop("closed", toClosedPort()))
	require.NoError(t, l.part.Close())
	before := l.hits()
	require.Error(t, l.talk(address, "5002"))
	require.Greater(t, l.hits(), before)
	l.part = Open(l.options)
	l.apply(drop("closed", toClosedPort()))
	require.Error(t, l.talk(address, "5002"))
	require.NotZero(t, l.droppedAtNIC(), "by the next agent's program")
}

func TestSwitchedOffItLeavesNothing(t *testing.T) {
	l := newLab(t)
	address := l.addresses()[0]
	l.serve(address)
	l.apply(drop("closed", toClosedPort()))
	l.inNode(func() error {
		left, err := leftovers.Find(leftovers.Options{PinPath: filepath.Join(l.options.PinPath, "at_nic")})
		require.Contains(t, left, leftovers.Left{Kind: leftovers.Program, Name: "at_nic", Detail: "blue xdp"})
		return err
	})
	require.NoError(t, l.part.Close())
	l.options.Native = false
	l.part = Open(l.options)
	l.apply(drop("closed", toClosedPort()))
	require.Empty(t, l.atHook("blue"))
	require.NoDirExists(t, filepath.Join(l.options.PinPath, "at_nic"))
	status := v1alpha1.NodePath{Name: "blue", Interface: "blue"}
	l.part.DescribePath(&status)
	require.Nil(t, status.XDP)
	before := l.hits()
	require.Error(t, l.talk(address, "5002"))
	require.Greater(t, l.hits(), before, "packets that the rule drops where it did before")
}

func TestRulesDropBesideAnothersProgramAtTheHook(t *testing.T) {
	l := newLab(t)
	address := l.addresses()[0]
	l.serve(address)
	var attached link.Link
	l.inNode(func() error {
		another, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "another", Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
		})
		if err != nil {
			return err
		}
		defer another.Close()
		attached, err = link.AttachXDP(link.XDPOptions{Program: another, Interface: l.nics[0].Interface, Flags: link.XDPDriverMode})
		return err
	})
	defer attached.Close()
	l.apply(drop("closed", toClosedPort()))
	is := l.state("blue")
	require.Equal(t, v1alpha1.XDPOccupied, is.State)
	require.Contains(t, is.Message, "another (id ")
	require.Equal(t, "another", l.atHook("blue"))
	require.Error(t, l.talk(address, "5002"))
	require.NotZero(t, l.hits())
	require.Zero(t, l.droppedAtNIC())
	require.NoError(t, l.talk(address, "5001"))
}

func TestRulesDropWhereADriverHasNoNativeMode(t *testing.T) {
	l := newLab(t)
	l.inNode(func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}) })
	l.nics = append(l.nics, l.pathOf("bridge"))
	l.apply(drop("closed", toClosedPort()))
	require.Equal(t, v1alpha1.XDPNative, l.state("blue").State)
	is := l.state("bridge")
	require.Equal(t, v1alpha1.XDPUnsupported, is.State)
	require.Contains(t, is.Message, "no native XDP: the driver refuses it")
	require.Empty(t, l.atHook("bridge"))
}
