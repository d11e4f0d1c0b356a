// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/agent/trace"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// lab is two nodes with two paths and a pod each; the first runs the programs.
type lab struct {
	*network.Network
	t        *testing.T
	options  trace.Options
	datapath *datapath.Datapath
	chains   *chains.Chains
	builder  *node.Builder
	// others are further interfaces that may have the pod's addresses.
	others []int
}

const (
	refusedPort = 81
	droppedPort = 82
)

var rules = []v1alpha1.PlanRule{
	{Policy: "ClusterMPTCPPolicy/watch", Rule: v1alpha1.Rule{Name: "report", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReportSubflow}}}},
	portRule("refuse", refusedPort, v1alpha1.ActionReset),
	portRule("ignore", droppedPort, v1alpha1.ActionDrop),
}

func portRule(name string, port int32, action v1alpha1.ActionType) v1alpha1.PlanRule {
	match := &v1alpha1.Match{Selectors: v1alpha1.Selectors{Destination: &v1alpha1.Side{Ports: []v1alpha1.PortRange{{Port: port}}}}}
	return v1alpha1.PlanRule{Policy: "MPTCPPolicy/team/web", Rule: v1alpha1.Rule{Name: name, Match: match, Actions: []v1alpha1.Action{{Type: action}}}}
}

func newLab(t *testing.T) *lab { return newLabOn(t, network.Overlay{}) }

func newLabOn(t *testing.T, overlay network.Overlay) *lab {
	t.Helper()
	l := &lab{t: t, Network: network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}, LinkMbit: 100, PodsPerNode: 1, Overlay: overlay})}
	pins := testutil.BPFFS(t)
	l.options = trace.Options{PinPath: pins, StatePath: t.TempDir(), Pod: "team/web-0"}
	l.datapath = datapath.Open(datapath.Options{PinPath: pins, FlowEntries: 4096})
	l.builder = nodetest.NewBuilder(pins)
	t.Cleanup(func() { require.NoError(t, l.builder.Close()) })
	l.chains = chains.Open(chains.Options{PinPath: filepath.Join(pins, "endpoints"), Log: logr.Discard()})
	t.Cleanup(func() {
		require.NoError(t, l.Nodes[0].Do(func() error {
			return errors.Join(l.datapath.Remove(context.Background()), l.chains.Remove(context.Background()))
		}))
	})
	l.apply()
	return l
}

func (l *lab) pod() *network.Pod { return l.Nodes[0].Pods[0] }

func (l *lab) device() int {
	index, err := l.Nodes[0].Index(l.pod().HostInterface)
	require.NoError(l.t, err)
	return index
}

func (l *lab) apply() {
	state := nodetest.State{Endpoints: []nodetest.Endpoint{{
		UID: "uid", Namespace: "team", Name: "web-0", Chain: "chain",
		Addresses: []netip.Addr{netip.MustParseAddr(l.pod().IPv4), netip.MustParseAddr(l.pod().IPv6)}, Interface: l.device(), Others: l.others,
		Paths: []v1alpha1.PathWeight{{Path: "blue", Weight: 1}, {Path: "green", Weight: 1}},
	}}, Chains: []v1alpha1.PlanChain{{Name: "chain", Rules: rules}}}
	peer := nodetest.Peer{Name: l.Nodes[1].NodeName(), Paths: map[string]nodetest.PeerPath{}}
	for i, path := range l.Spec.Paths {
		index, err := l.Nodes[0].Index(path)
		require.NoError(l.t, err)
		state.Paths = append(state.Paths, nodetest.Path{Name: path, Interface: index, Up: true})
		addresses := []netip.Addr{netip.MustParseAddr(l.Nodes[1].Address(i, 4)), netip.MustParseAddr(l.Nodes[1].Address(i, 6))}
		peer.Addresses = append(peer.Addresses, addresses...)
		peer.Paths[path] = nodetest.PeerPath{Addresses: addresses, Up: true}
	}
	state.Peers, state.Tunnels = []nodetest.Peer{peer}, l.tunnels()
	require.NoError(l.t, l.Nodes[0].Do(func() error {
		return errors.Join(state.Apply(l.t.Context(), l.datapath, l.builder), state.Apply(l.t.Context(), l.chains, l.builder))
	}))
	names, err := inspect.OpenDirectory(filepath.Join(l.options.StatePath, inspect.DirectoryName))
	require.NoError(l.t, err)
	known := map[uint32]inspect.Endpoint{}
	for _, attached := range l.chains.Endpoints() {
		known[attached.Number] = inspect.Endpoint{Name: attached.Name, Rules: inspect.RuleNames(attached.Rules)}
	}
	require.NoError(l.t, names.Set(known))
}

// tunnels are the node's, as its agent finds them.
func (l *lab) tunnels() []paths.Tunnel {
	namespace, err := netns.GetFromPath(l.Nodes[0].Path())
	require.NoError(l.t, err)
	defer namespace.Close()
	found, err := paths.Open(namespace)
	require.NoError(l.t, err)
	defer found.Close()
	resolution, err := found.Resolve(paths.Query{})
	require.NoError(l.t, err)
	return resolution.Tunnels
}

// ends are the pod's and the other pod's.
func (l *lab) ends(version int, local, remote uint16) (pod, other netip.AddrPort) {
	there := l.Nodes[1].Pods[0]
	if version == 6 {
		return netip.AddrPortFrom(netip.MustParseAddr(l.pod().IPv6), local), netip.AddrPortFrom(netip.MustParseAddr(there.IPv6), remote)
	}
	return netip.AddrPortFrom(netip.MustParseAddr(l.pod().IPv4), local), netip.AddrPortFrom(netip.MustParseAddr(there.IPv4), remote)
}

// replay replays frames of the pod with this address.
func (l *lab) replay(address netip.Addr, path string, frames ...trace.Frame) *trace.Report {
	l.t.Helper()
	options := l.options
	options.Address, options.Path = address, path
	var report *trace.Report
	require.NoError(l.t, l.Nodes[0].Do(func() error {
		tracer, err := trace.Open(options)
		if err != nil {
			return err
		}
		report, err = tracer.Replay(frames)
		return errors.Join(err, tracer.Close())
	}))
	var table bytes.Buffer
	require.NoError(l.t, trace.Print(&table, "", report))
	l.t.Logf("\n%s", table.String())
	for line := range strings.Lines(table.String()) {
		if len([]rune(line)) > 121 {
			l.t.Errorf("a line of %d columns: %s", len([]rune(line)), line)
		}
	}
	return report
}

func frame(t *testing.T, packet trace.Packet) trace.Frame {
	t.Helper()
	data, err := packet.Frame()
	require.NoError(t, err)
	return trace.Frame{Number: 1, Data: data}
}

// contents are all entries of all maps that the agent pins.
func (l *lab) contents() map[string]map[string]string {
	l.t.Helper()
	all := map[string]map[string]string{}
	require.NoError(l.t, filepath.WalkDir(l.options.PinPath, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.Contains(path, "/links/") || strings.HasSuffix(path, ".debug") {
			return err
		}
		pinned, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		defer pinned.Close()
		all[path] = map[string]string{}
		switch pinned.Type() {
		case ebpf.Hash, ebpf.LRUHash, ebpf.Array:
		default:
			return nil // what programs do not write, or only for a moment
		}
		var key, value []byte
		entries := pinned.Iterate()
		for entries.Next(&key, &value) {
			all[path][hex.EncodeToString(key)] = hex.EncodeToString(value)
		}
		if err := entries.Err(); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}))
	return all
}

// segments is how many TCP segments a namespace received.
func segments(t *testing.T, namespace *network.Namespace) string {
	t.Helper()
	text, err := namespace.Run("cat", "/proc/net/snmp")
	require.NoError(t, err)
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 10 && fields[0] == "Tcp:" && fields[10] != "InSegs" {
			return fields[10]
		}
	}
	t.Fatalf("no count of segments:\n%s", text)
	return ""
}

func step(t *testing.T, packet trace.PacketReport, program string) trace.Step {
	t.Helper()
	for _, step := range packet.Steps {
		if step.Program == program {
			return step
		}
	}
	t.Fatalf("%s did not run: %+v", program, packet)
	return trace.Step{}
}

// dial connects from one port, as a packet before was said to.
func (l *lab) dial(pod, other netip.AddrPort) net.Conn {
	l.t.Helper()
	listener, err := l.Nodes[1].Pods[0].Listen(l.t.Context(), "tcp", other.String())
	require.NoError(l.t, err)
	l.t.Cleanup(func() { listener.Close() })
	var connection net.Conn
	require.NoError(l.t, l.pod().Do(func() (err error) {
		dialer := &net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(pod)}
		dialer.SetMultipathTCP(true)
		connection, err = dialer.DialContext(context.WithoutCancel(l.t.Context()), "tcp", other.String())
		return err
	}))
	l.t.Cleanup(func() { connection.Close() })
	return connection
}

// flow is what the real maps say of the subflow.
func (l *lab) flow(pod, other netip.AddrPort) (found datapath.Flow) {
	l.t.Helper()
	flows, err := l.datapath.Flows()
	require.NoError(l.t, err)
	for _, flow := range flows {
		if flow.Local == pod && flow.Remote == other {
			return flow
		}
	}
	l.t.Fatalf("no flow from %s to %s: %+v", pod, other, flows)
	return found
}

func TestAReplayedSYNTakesThePathThatARealOneTakes(t *testing.T) {
	l := newLab(t)
	for _, version := range []int{4, 6} {
		pod, other := l.ends(version, 40001, 8001)
		before := l.contents()
		report := l.replay(pod.Addr(), "", frame(t, trace.Packet{From: pod, To: other, Type: v1alpha1.PacketMPCapable, Sequence: 7}))
		if difference := cmp.Diff(before, l.contents()); difference != "" {
			t.Errorf("the replay changed maps of the node:\n%s", difference)
		}
		packet := report.Packets[0]
		if flow := step(t, packet, "to_uplink").Flow; flow == nil || !flow.New || !flow.Initiator {
			t.Errorf("the flow is %+v", flow)
		}
		if hits := step(t, packet, "from_endpoint").Rules; len(hits) != 1 || hits[0].Name != "report" || hits[0].Policy != "ClusterMPTCPPolicy/watch" {
			t.Errorf("the rules that matched are %+v", hits)
		}
		l.dial(pod, other)
		if path := l.flow(pod, other).Path; path != packet.Path {
			t.Errorf("IPv%d: the replay took path %q, a real SYN %q", version, packet.Path, path)
		}
	}
}

func TestAReplayedJoinTakesAPathThatItsConnectionDoesNotUse(t *testing.T) {
	l := newLab(t)
	pod, other := l.ends(4, 40002, 8002)
	l.dial(pod, other)
	first := l.flow(pod, other)
	if first.Token == 0 {
		t.Fatal("the token is not known")
	}
	joining := netip.AddrPortFrom(pod.Addr(), 40003)
	packet := l.replay(pod.Addr(), "", frame(t, trace.Packet{From: joining, To: other, Type: v1alpha1.PacketMPJoin, Token: agentapi.Token(first.Token)})).Packets[0]
	wanted := map[string]string{"blue": "green", "green": "blue"}[first.Path]
	if packet.Path != wanted || !strings.Contains(packet.Outcome, "leaves by path "+wanted) {
		t.Errorf("the first subflow uses %s, and the join: %+v", first.Path, packet)
	}
	if flow := step(t, packet, "to_uplink").Flow; flow == nil || flow.Token != agentapi.Token(first.Token) {
		t.Errorf("the flow is %+v", flow)
	}
}

func TestAReplayedResetIsToldAndNotSent(t *testing.T) {
	l := newLab(t)
	pod, other := l.ends(4, 40004, refusedPort)
	before := segments(t, l.pod().Namespace)
	packet := l.replay(pod.Addr(), "", frame(t, trace.Packet{From: pod, To: other, Type: v1alpha1.PacketMPCapable})).Packets[0]
	if !strings.Contains(packet.Outcome, "dropped by from_endpoint, rule refuse; answered with a reset") {
		t.Errorf("the outcome is %q", packet.Outcome)
	}
	if after := segments(t, l.pod().Namespace); after != before {
		t.Errorf("the pod had received %s segments, and then %s", before, after)
	}
	pod, other = l.ends(4, 40004, droppedPort)
	packet = l.replay(pod.Addr(), "", frame(t, trace.Packet{From: pod, To: other, Type: v1alpha1.PacketDSS, Bytes: 100})).Packets[0]
	if packet.Outcome != "dropped by from_endpoint, rule ignore" || len(packet.Steps) != 2 {
		t.Errorf("the packet: %+v", packet)
	}
}

func TestAReplayEndsWhereAnOverlayBegins(t *testing.T) {
	l := newLabOn(t, network.Overlay{Outer: 4})
	pod, other := l.ends(4, 40005, 8005)
	packet := l.replay(pod.Addr(), "", frame(t, trace.Packet{From: pod, To: other, Type: v1alpha1.PacketMPCapable})).Packets[0]
	if !strings.Contains(packet.Outcome, "enters the overlay by "+network.TunnelDevice) || len(packet.Steps) != 2 {
		t.Errorf("what the pod sends: %+v", packet)
	}
	packet = l.replay(pod.Addr(), "", frame(t, trace.Packet{From: other, To: pod, Type: v1alpha1.PacketMPCapable})).Packets[0]
	if packet.Outcome != "reaches the pod" || len(packet.Steps) != 1 {
		t.Errorf("what the pod receives: %+v", packet)
	}
}

// What is routed to a bridge, or to one of several interfaces, is not known by where it came in.
func TestAPodIsTracedFromItsOwnInterfaceWhereverItsRouteLeads(t *testing.T) {
	l := newLab(t)
	pod, other := l.ends(4, 40006, 8006)
	for _, line := range []string{"link add bridge0 type bridge", "link set bridge0 up", "route replace " + pod.Addr().String() + " dev bridge0"} {
		out, err := l.Nodes[0].Run("ip", strings.Fields(line)...)
		require.NoError(t, err, out)
	}
	l.others = []int{1}
	l.apply()
	report := l.replay(pod.Addr(), "", frame(t, trace.Packet{From: pod, To: other, Type: v1alpha1.PacketMPCapable}))
	if report.Interface != l.pod().HostInterface {
		t.Errorf("the pod's interface is said to be %s instead of %s", report.Interface, l.pod().HostInterface)
	}
}

func TestPacketsForThePodPassTheOtherPrograms(t *testing.T) {
	l := newLab(t)
	pod, other := l.ends(6, 8005, 40005)
	packet := l.replay(pod.Addr(), "green", frame(t, trace.Packet{From: other, To: pod, Type: v1alpha1.PacketMPCapable})).Packets[0]
	if flow := step(t, packet, "from_uplink").Flow; flow == nil || flow.Initiator || flow.Path != "green" {
		t.Errorf("the flow is %+v", flow)
	}
	if packet.Outcome != "reaches the pod" || step(t, packet, "to_endpoint").Verdict != trace.Pass {
		t.Errorf("the packet: %+v", packet)
	}
}

// capture is a file of these frames, as tcpdump -i any writes it.
func capture(t *testing.T, frames ...[]byte) *bytes.Buffer {
	t.Helper()
	var file bytes.Buffer
	writer := pcapgo.NewWriter(&file)
	require.NoError(t, writer.WriteFileHeader(65535, layers.LinkTypeEthernet))
	for _, frame := range frames {
		require.NoError(t, writer.WritePacket(gopacket.CaptureInfo{CaptureLength: len(frame), Length: len(frame)}, frame))
	}
	return &file
}

func TestPacketsOfACaptureSeeWhatThoseBeforeThemLeft(t *testing.T) {
	l := newLab(t)
	pod, other := l.ends(4, 40006, 8006)
	syn := frame(t, trace.Packet{From: pod, To: other, Type: v1alpha1.PacketMPCapable, Sequence: 7}).Data
	data := frame(t, trace.Packet{From: pod, To: other, Type: v1alpha1.PacketDSS, Sequence: 8, Acknowledgement: 9, Bytes: 1000}).Data
	stranger := frame(t, trace.Packet{From: netip.MustParseAddrPort("192.0.2.1:1"), To: netip.MustParseAddrPort("192.0.2.2:2"), Type: v1alpha1.PacketPureACK}).Data
	frames, err := trace.ReadCapture(capture(t, syn, data, stranger, []byte("no packet at all")), 10)
	require.NoError(t, err)
	before := l.contents()
	packets := l.replay(pod.Addr(), "", frames...).Packets
	if difference := cmp.Diff(before, l.contents()); difference != "" {
		t.Errorf("the replay changed maps of the node:\n%s", difference)
	}
	if len(packets) != 4 {
		t.Fatalf("%d packets", len(packets))
	}
	first, second := step(t, packets[0], "to_uplink"), step(t, packets[1], "to_uplink")
	if !first.Flow.New || second.Flow == nil || second.Flow.New || packets[0].Path != packets[1].Path || packets[0].Path == "" {
		t.Errorf("the first: %+v\nthe second: %+v", packets[0], packets[1])
	}
	for _, packet := range packets[2:] {
		if !strings.HasPrefix(packet.Outcome, "not replayed") {
			t.Errorf("the packet: %+v", packet)
		}
	}
}

func TestWithoutProgramsTheRouteIsTold(t *testing.T) {
	l := newLab(t)
	require.NoError(t, l.Nodes[0].Do(func() error {
		return errors.Join(l.datapath.Remove(context.Background()), l.chains.Remove(context.Background()))
	}))
	pod, other := l.ends(4, 40007, 8007)
	packet := l.replay(pod.Addr(), "", frame(t, trace.Packet{From: pod, To: other, Type: v1alpha1.PacketMPCapable})).Packets[0]
	for _, step := range packet.Steps {
		if step.Verdict != trace.NotAttached {
			t.Errorf("%+v", step)
		}
	}
	if packet.Outcome != "leaves by blue, as the cluster network's route says" {
		t.Errorf("the outcome is %q", packet.Outcome)
	}
}

func TestWhatCannotBeReplayedIsToldApart(t *testing.T) {
	for name, test := range map[string]struct {
		content []byte
		says    string
	}{
		"no capture":  {[]byte("hello, this is no capture at all"), "reading the capture"},
		"nothing":     {nil, "reading the capture"},
		"half a file": {capture(t, make([]byte, 100)).Bytes()[:60], "reading packet 1"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := trace.ReadCapture(bytes.NewReader(test.content), 1); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error is %v", err)
			}
		})
	}
	if _, err := (&trace.Packet{Type: "Odd", From: netip.MustParseAddrPort("192.0.2.1:1"), To: netip.MustParseAddrPort("192.0.2.2:2")}).Frame(); err == nil {
		t.Error("a type that does not exist is made")
	}
	if _, err := os.Stat("/run/netns/replay"); err == nil {
		t.Error("a namespace was left behind")
	}
}
