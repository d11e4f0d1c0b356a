// SPDX-License-Identifier: Apache-2.0

package socketimport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/socketimport"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/mptcpnl"
	"braid.dev/braid/internal/testutil"
)

const wait = 20 * time.Second

// lab is a pod, and the host that its interface ends in.
type lab struct {
	t         *testing.T
	pod, host *network.Namespace
	chains    *chains.Chains
	pins      string
}

var addresses = map[int]struct{ pod, host netip.Addr }{
	4: {netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")},
	6: {netip.MustParseAddr("fd09::1"), netip.MustParseAddr("fd09::2")},
}

func build(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, pod: network.NamespaceForTest(t), host: network.NamespaceForTest(t)}
	require.NoError(t, network.Connect(l.pod, "eth0", l.host, "pod0", network.Options{
		AddressesA: []string{"10.9.0.1/24", "fd09::1/64"}, AddressesB: []string{"10.9.0.2/24", "fd09::2/64"},
	}))
	for _, namespace := range []*network.Namespace{l.pod, l.host} {
		require.NoError(t, namespace.Sysctl("net.mptcp.pm_type", "1"))
		listen(t, namespace)
	}
	mount := testutil.BPFFS(t)
	l.pins = filepath.Join(mount, "endpoints")
	l.chains = chains.Open(chains.Options{PinPath: l.pins, Log: logr.Discard()})
	t.Cleanup(func() { require.NoError(t, l.host.Do(func() error { return l.chains.Remove(context.Background()) })) })
	return l
}

// listen stands for the agent: a user-space path manager takes joins only while
// somebody hears of them.
func listen(t *testing.T, namespace *network.Namespace) {
	t.Helper()
	file, err := os.Open(namespace.Path())
	require.NoError(t, err)
	defer file.Close()
	events, err := mptcpnl.Subscribe(int(file.Fd()))
	require.NoError(t, err)
	t.Cleanup(func() { events.Close() })
}

// apply gives the pod one rule, and returns how the programs call it.
func (l *lab) apply(rule v1alpha1.Rule) socketimport.Pod {
	l.t.Helper()
	index, err := l.host.Index("pod0")
	require.NoError(l.t, err)
	require.NoError(l.t, l.host.Do(func() error {
		return nodetest.Failures(l.chains.Apply(l.t.Context(), nodetest.Model(nodetest.Pod{
			UID: "uid", Name: "team/web", Interface: index,
			Rules: []v1alpha1.PlanRule{{Rule: rule, Policy: "MPTCPPolicy/team/web"}},
		})))
	}))
	return socketimport.Pod{Namespace: l.pod.Path(), Number: l.chains.Endpoints()[0].Number, Interface: index}
}

func (l *lab) importSockets(pod socketimport.Pod) socketimport.Result {
	l.t.Helper()
	maps, err := socketimport.Open(chains.Directory(l.pins))
	require.NoError(l.t, err)
	defer maps.Close()
	result, err := maps.Import(pod)
	require.NoError(l.t, err)
	return result
}

// talk is a connection that says a little all the time.
type talk struct {
	net.Conn
	subflows int
}

// connect connects from one namespace to the other and opens one more subflow.
func (l *lab) connect(from, to *network.Namespace, server netip.Addr, local netip.Addr, join bool) talk {
	l.t.Helper()
	listener, err := to.Listen(context.Background(), "tcp", netip.AddrPortFrom(server, 0).String())
	require.NoError(l.t, err)
	defer listener.Close()
	connection, err := from.Dial(context.Background(), "tcp", listener.Addr().String())
	require.NoError(l.t, err)
	served, err := listener.Accept()
	require.NoError(l.t, err)
	l.t.Cleanup(func() { connection.Close(); served.Close() })
	go func() { _, _ = io.Copy(served, served) }()
	t := talk{connection, 1}
	t.say(l.t, 5)
	if join {
		l.join(from, t, local, listener.Addr())
		t.subflows++
	}
	return t
}

// say sends some words and waits for each to come back.
func (c talk) say(t *testing.T, times int) {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(wait)))
	word := []byte("12345678")
	for range times {
		_, err := c.Write(word)
		require.NoError(t, err)
		_, err = io.ReadFull(c, word)
		require.NoError(t, err)
	}
}

func diagnose(t *testing.T, namespace *network.Namespace) *mptcpnl.Diagnostics {
	t.Helper()
	file, err := os.Open(namespace.Path())
	require.NoError(t, err)
	defer file.Close()
	diagnostics, err := mptcpnl.DialDiagnostics(int(file.Fd()))
	require.NoError(t, err)
	t.Cleanup(func() { diagnostics.Close() })
	return diagnostics
}

// tokenAt is the token of the connection whose first subflow ends at this address,
// as the namespace knows it.
func tokenAt(t *testing.T, namespace *network.Namespace, local, remote net.Addr) (token uint32) {
	t.Helper()
	diagnostics := diagnose(t, namespace)
	testutil.Eventually(t, wait, "established", func() bool {
		connections, err := diagnostics.Connections(0)
		require.NoError(t, err)
		for _, connection := range connections {
			if connection.Local.String() == local.String() && connection.Remote.String() == remote.String() {
				token = connection.Token
			}
		}
		return token != 0
	})
	return token
}

func (l *lab) join(from *network.Namespace, c talk, local netip.Addr, server net.Addr) {
	l.t.Helper()
	file, err := os.Open(from.Path())
	require.NoError(l.t, err)
	defer file.Close()
	client, err := mptcpnl.Dial(int(file.Fd()))
	require.NoError(l.t, err)
	defer client.Close()
	token := tokenAt(l.t, from, c.LocalAddr(), c.RemoteAddr())
	diagnostics := diagnose(l.t, from)
	// The peer's stack may not be ready for a further subflow yet.
	next := time.Now().Add(250 * time.Millisecond)
	testutil.Eventually(l.t, wait, "joined", func() bool {
		subflows, err := diagnostics.Subflows(0)
		require.NoError(l.t, err)
		established, all := 0, 0
		for _, subflow := range subflows {
			if subflow.Token != token {
				continue
			}
			all++
			if subflow.Established && (subflow.First || subflow.RemoteToken != 0) {
				established++
			}
		}
		if all == 1 && time.Now().After(next) {
			next = time.Now().Add(time.Second)
			require.NoError(l.t, client.CreateSubflow(token, mptcpnl.Endpoint{Address: local}, netip.MustParseAddrPort(server.String())))
		}
		return established == 2
	})
}

// byToken is a rule that selects a connection.
func byToken(token uint32) v1alpha1.Rule {
	return v1alpha1.Rule{
		Name: "old", Match: &v1alpha1.Match{Selectors: v1alpha1.Selectors{Token: fmt.Sprintf("0x%08x", token)}},
		Actions: []v1alpha1.Action{{Type: v1alpha1.ActionSetBackup, SetBackup: &v1alpha1.SetBackup{Backup: ptr.To(false)}}},
	}
}

func (l *lab) hits() uint64 {
	l.t.Helper()
	uses, err := l.chains.Counters("uid")
	require.NoError(l.t, err)
	return uses[0].Hits
}

// TestRulesFindConnectionsThatAreOlderThanTheAgent selects each of two connections
// by each of its tokens.
func TestRulesFindConnectionsThatAreOlderThanTheAgent(t *testing.T) {
	for _, version := range []int{4, 6} {
		for _, podBegins := range []bool{true, false} {
			for _, join := range []bool{true, false} {
				t.Run(fmt.Sprintf("IPv%d, the pod begins %t, two subflows %t", version, podBegins, join), func(t *testing.T) {
					findOld(t, version, podBegins, join)
				})
			}
		}
	}
}

func findOld(t *testing.T, version int, podBegins, join bool) {
	l := build(t)
	from, to, local, server := l.pod, l.host, addresses[version].pod, addresses[version].host
	if !podBegins {
		from, to, local, server = to, from, server, local
	}
	wanted := l.connect(from, to, server, local, join)
	other := l.connect(from, to, server, local, false)
	initiator := tokenAt(t, from, wanted.LocalAddr(), wanted.RemoteAddr())
	responder := tokenAt(t, to, wanted.RemoteAddr(), wanted.LocalAddr())

	pod := l.apply(byToken(responder))
	wanted.say(t, 5)
	if hits := l.hits(); hits != 0 {
		t.Fatalf("before the import %d packets were found", hits)
	}
	result := l.importSockets(pod)
	if result.Made+result.Completed != wanted.subflows+other.subflows {
		t.Errorf("the import told %+v of %d subflows", result, wanted.subflows+other.subflows)
	}
	wanted.say(t, 5)
	testutil.Eventually(t, wait, "found by its token", func() bool { return l.hits() > 0 })
	before := l.hits()
	other.say(t, 5)
	if hits := l.hits(); hits != before {
		t.Errorf("%d packets of another connection were taken for it", hits-before)
	}
	if again := l.importSockets(pod); again != (socketimport.Result{}) {
		t.Errorf("importing once more told %+v", again)
	}
	l.expectRecords(initiator, responder, join)
}

// expectRecords compares the records with what the other end knows.
func (l *lab) expectRecords(initiator, responder uint32, join bool) {
	l.t.Helper()
	there := map[string]mptcpnl.Subflow{}
	subflows, err := diagnose(l.t, l.host).Subflows(0)
	require.NoError(l.t, err)
	for _, subflow := range subflows {
		there[subflow.Remote.String()+subflow.Local.String()] = subflow
	}
	records, err := l.chains.Subflows()
	require.NoError(l.t, err)
	found := 0
	for i := range records {
		r := &records[i].Record
		if r.Token != responder && r.InitiatorToken != initiator {
			continue
		}
		found++
		if r.Token != responder || r.InitiatorToken != initiator {
			l.t.Errorf("the tokens are %08x and %08x, those of the ends %08x and %08x", r.Token, r.InitiatorToken, responder, initiator)
		}
		if r.SeededRtt == 0 || r.SeededRtt > 1e6 {
			l.t.Errorf("an RTT of %d us on a link without delay", r.SeededRtt)
		}
		peer := there[ends(&records[i].Key)]
		if r.Traffic[0].WindowScale != 1+peer.TCP.SendScale || r.Traffic[1].WindowScale != 1+peer.TCP.ReceiveScale {
			l.t.Errorf("the scales of windows are %d and %d, to the peer they are %+v", r.Traffic[0].WindowScale, r.Traffic[1].WindowScale, peer.TCP)
		}
	}
	if want := map[bool]int{true: 2, false: 1}[join]; found != want {
		l.t.Errorf("%d records belong to the connection, want %d", found, want)
	}
}

func TestAConnectionFromAfterTheChainIsNotTouched(t *testing.T) {
	l := build(t)
	pod := l.apply(byToken(1))
	c := l.connect(l.pod, l.host, addresses[4].host, addresses[4].pod, true)
	c.say(t, 5)
	if result := l.importSockets(pod); result != (socketimport.Result{}) {
		t.Errorf("the import told %+v of connections that the programs saw begin", result)
	}
}

func TestANamespaceThatIsGoneGivesAnError(t *testing.T) {
	l := build(t)
	pod := l.apply(byToken(1))
	pod.Namespace = filepath.Join(t.TempDir(), "gone")
	maps, err := socketimport.Open(chains.Directory(l.pins))
	require.NoError(t, err)
	defer maps.Close()
	if _, err := maps.Import(pod); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the error is %v", err)
	}
}

func TestWithoutPinsThereIsNothingToImport(t *testing.T) {
	if _, err := socketimport.Open(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the error is %v", err)
	}
}

// ends are those of a key, the endpoint's first.
func ends(key *chains.SubflowKey) string {
	return bpf.AddrPort(key.Local.Word, key.LocalPort).String() + bpf.AddrPort(key.Remote.Word, key.RemotePort).String()
}

// TestAWindowIsLoweredOnAConnectionThatIsOlderThanTheAgent asks for what needs the
// window scale, which only the SYN tells.
func TestAWindowIsLoweredOnAConnectionThatIsOlderThanTheAgent(t *testing.T) {
	l := build(t)
	c := l.connect(l.pod, l.host, addresses[4].host, addresses[4].pod, false)
	pod := l.apply(v1alpha1.Rule{Name: "slow", Actions: []v1alpha1.Action{{
		Type: v1alpha1.ActionRateLimit,
		RateLimit: &v1alpha1.RateLimit{
			Rate: resource.MustParse("20M"), Mechanism: v1alpha1.RateLimitWindow,
		},
	}}})
	names, err := inspect.OpenDirectory("")
	require.NoError(t, err)
	pins := inspect.NewPins(chains.Directory(l.pins), filepath.Dir(l.pins), names)
	expect := func(mechanism v1alpha1.RateLimitMechanism, why agentapi.Why) {
		t.Helper()
		c.say(t, 5)
		subflows, err := pins.Subflows()
		require.NoError(t, err)
		for _, subflow := range subflows {
			for _, limit := range subflow.Limits {
				if limit.InUse != mechanism || limit.Why != why {
					t.Errorf("it is limited as %+v, want %q because of %s", limit, mechanism, why)
				}
			}
			if len(subflow.Limits) != 2 {
				t.Errorf("its limits are %+v, want one for each direction", subflow.Limits)
			}
		}
		if len(subflows) != 1 {
			t.Errorf("the subflows are %+v", subflows)
		}
	}
	expect("", agentapi.WhyNoSYN)
	l.importSockets(pod)
	expect(v1alpha1.RateLimitWindow, agentapi.WhyAsked)
}
