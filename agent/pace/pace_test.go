// SPDX-License-Identifier: Apache-2.0

package pace_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	agent "braid.dev/braid/agent/pace"
	"braid.dev/braid/bpf/pace"
	"braid.dev/braid/internal/testutil"
)

func TestEachSubflowIsPacedAtItsRate(t *testing.T) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) {
			asked := []float64{5, 20, 50, 200}
			l := newLab(t)
			l.allow(t, version, len(asked))
			l.serve(t, l.server.Address(version))
			connection := l.dial(t, l.server.Address(version))
			subflows := l.awaitSubflows(t, len(asked))
			l.apply(t, l.endpoint())
			for i, s := range subflows {
				l.note(t, s.key(), limit{mbit: asked[i]})
			}
			l.apply(t, l.endpoint())
			send(t, connection)
			time.Sleep(300 * time.Millisecond)
			expectRates(t, "the subflows", l.client, 5*time.Second, func(rates map[ends]float64) bool {
				held := true
				for i, s := range subflows {
					t.Logf("asked %.0f, got %.2f", asked[i], rates[s.ends()])
					held = held && isNear(rates[s.ends()], asked[i])
				}
				return held
			})
			for i, s := range subflows {
				if paced := l.record(t, s.key()).Paced; paced != uint64(asked[i]*1e6/8) {
					t.Errorf("the record of %s says %d bytes a second", s.local, paced)
				}
			}
		})
	}
}

// oneSubflow is a connection under way, of an endpoint that is governed.
func oneSubflow(t *testing.T) (*lab, socket) {
	t.Helper()
	l := newLab(t)
	l.serve(t, l.server.IPv4)
	l.apply(t, l.endpoint())
	connection := l.dial(t, l.server.IPv4)
	s := l.awaitSubflows(t, 1)[0]
	send(t, connection)
	return l, s
}

func TestARateThatARuleNotesHoldsWithoutTheAgent(t *testing.T) {
	l, s := oneSubflow(t)
	for _, mbit := range []float64{20, 5, 50} {
		l.note(t, s.key(), limit{mbit: mbit, mechanism: 1})
		time.Sleep(500 * time.Millisecond)
		expectRates(t, "after the change", l.client, time.Second, each(mbit))
	}
	l.note(t, s.key(), limit{})
	testutil.Eventually(t, 5*time.Second, "the pace is lifted", func() bool { return all(paces(t, l.client), "") })
	if paced := l.record(t, s.key()).Paced; paced != 0 {
		t.Errorf("the record still says %d bytes a second", paced)
	}
	if rate := rates(t, l.client, time.Second)[s.ends()]; rate < 100 {
		t.Errorf("after the lifting: %.2f Mbit/s", rate)
	}
}

func TestOnlyLimitsThatMayBePacedArePaced(t *testing.T) {
	l, s := oneSubflow(t)
	for name, limit := range map[string]limit{"Window": {mbit: 5, mechanism: 2}, "Police": {mbit: 5, mechanism: 3}} {
		l.note(t, s.key(), limit)
		l.apply(t, l.endpoint())
		if got := paces(t, l.client); !all(got, "") {
			t.Errorf("with %s the socket is paced at %v", name, got)
		}
	}
}

func TestANewSubflowIsPacedFromItsFirstByte(t *testing.T) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) {
			l := newLab(t)
			l.serve(t, l.server.Address(version))
			l.apply(t, l.endpoint())
			expected := socket{
				local:  netip.AddrPortFrom(netip.MustParseAddr(l.client.Address(version)), 40000),
				remote: netip.MustParseAddrPort(net.JoinHostPort(l.server.Address(version), port)),
			}
			l.note(t, expected.key(), limit{mbit: 8})
			dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(expected.local)}
			dialer.SetMultipathTCP(true)
			var connection net.Conn
			require.NoError(t, l.client.Do(func() (err error) {
				connection, err = dialer.DialContext(t.Context(), "tcp", expected.remote.String())
				return err
			}))
			defer connection.Close()
			if got := paces(t, l.client); !all(got, "8000000") {
				t.Errorf("the new socket is paced at %q", got)
			}
		})
	}
}

// TestIPv4OnSocketsOfIPv6 has an IPv6 socket talk IPv4: its subflow is found as
// the packet programs know it, at both ends.
func TestIPv4OnSocketsOfIPv6(t *testing.T) {
	l := newLab(t)
	l.serve(t, "::")
	l.apply(t, l.endpoint(), agent.Endpoint{Number: endpoint + 1, Path: l.server.Path()})
	connection := dialMapped(t, l)
	defer connection.Close()
	subflow := l.awaitSubflows(t, 1)[0]
	subflow.local = netip.AddrPortFrom(subflow.local.Addr().Unmap(), subflow.local.Port())
	subflow.remote = netip.AddrPortFrom(subflow.remote.Addr().Unmap(), subflow.remote.Port())
	l.note(t, subflow.key(), limit{mbit: 8})
	other := socket{local: subflow.remote, remote: subflow.local}
	key := other.key()
	key.Endpoint = endpoint + 1
	l.note(t, key, limit{mbit: 16})
	l.apply(t, l.endpoint(), agent.Endpoint{Number: endpoint + 1, Path: l.server.Path()})
	if got := paces(t, l.client); !all(got, "8000000") {
		t.Errorf("the client's socket is paced at %q", got)
	}
	if got := paces(t, l.server); !all(got, "16000000") {
		t.Errorf("the server's socket is paced at %q", got)
	}
	l.note(t, subflow.key(), limit{mbit: 24})
	_, err := connection.Write(make([]byte, 1<<20))
	require.NoError(t, err)
	testutil.Eventually(t, 5*time.Second, "the client's socket is called each round trip", func() bool { return all(paces(t, l.client), "24000000") })
}

func dialMapped(t *testing.T, l *lab) net.Conn {
	t.Helper()
	address := &unix.SockaddrInet6{Port: 5001, Addr: netip.MustParseAddr("::ffff:" + l.server.IPv4).As16()}
	var connection net.Conn
	require.NoError(t, l.client.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
		if err != nil {
			return err
		}
		file := os.NewFile(uintptr(fd), "mapped")
		defer file.Close()
		if err := unix.Connect(fd, address); err != nil {
			return err
		}
		connection, err = net.FileConn(file)
		return err
	}))
	return connection
}

func TestSocketsOfOthersAreLeftAlone(t *testing.T) {
	l, s := oneSubflow(t)
	l.note(t, s.key(), limit{mbit: 20})
	other := socket{local: s.remote, remote: s.local}
	l.note(t, other.key(), limit{mbit: 1})
	l.apply(t, l.endpoint())
	testutil.Eventually(t, 5*time.Second, "the endpoint's socket is paced", func() bool { return all(paces(t, l.client), "20000000") })
	if got := paces(t, l.server); !all(got, "") {
		t.Errorf("the sockets of a pod that is no endpoint are paced at %v", got)
	}
}

func TestTwoAgentsOfOneMachineGovernTheirOwnSockets(t *testing.T) {
	first, s := oneSubflow(t)
	second, other := oneSubflow(t)
	first.note(t, s.key(), limit{mbit: 20})
	second.note(t, other.key(), limit{mbit: 30})
	testutil.Eventually(t, 5*time.Second, "both are paced", func() bool {
		return all(paces(t, first.client), "20000000") && all(paces(t, second.client), "30000000")
	})
	require.NoError(t, second.pacer.Remove())
	if got := paces(t, second.client); !all(got, "") {
		t.Errorf("after the removal the socket is paced at %v", got)
	}
	first.note(t, s.key(), limit{mbit: 40})
	testutil.Eventually(t, 5*time.Second, "the other one goes on", func() bool { return all(paces(t, first.client), "40000000") })
}

func TestAnEndpointThatIsNoLongerOneIsPutBack(t *testing.T) {
	l, s := oneSubflow(t)
	l.note(t, s.key(), limit{mbit: 20})
	l.apply(t, l.endpoint())
	if got := paces(t, l.client); !all(got, "20000000") {
		t.Fatalf("the socket is paced at %v", got)
	}
	l.apply(t, agent.Endpoint{Number: endpoint + 1, Path: l.server.Path()})
	if got := paces(t, l.client); !all(got, "") {
		t.Errorf("the socket of a pod that was an endpoint is paced at %v", got)
	}
}

func TestWhatTheApplicationSetIsNotRaisedAndComesBack(t *testing.T) {
	l := newLab(t)
	l.serve(t, l.server.IPv4)
	l.apply(t, l.endpoint())
	var connection net.Conn
	require.NoError(t, l.client.Do(func() (err error) {
		var plain net.Dialer
		plain.SetMultipathTCP(false) // MPTCP sockets take no pace
		connection, err = plain.DialContext(t.Context(), "tcp", net.JoinHostPort(l.server.IPv4, port))
		return err
	}))
	defer connection.Close()
	setPace(t, connection, 2_000_000)
	s := l.awaitSubflows(t, 1)[0]
	for _, step := range []struct {
		mbit float64
		pace string
	}{{8, "8000000"}, {32, "16000000"}, {0, "16000000"}} {
		l.note(t, s.key(), limit{mbit: step.mbit})
		l.apply(t, l.endpoint())
		if got := paces(t, l.client); !all(got, step.pace) {
			t.Errorf("with a limit of %.0f Mbit/s the socket is paced at %v instead of %s", step.mbit, got, step.pace)
		}
	}
}

func setPace(t *testing.T, connection net.Conn, bytes int) {
	t.Helper()
	raw, err := connection.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, bytes) }))
	require.NoError(t, err)
}

func TestCongestionControlIsChosenAndGivenBack(t *testing.T) {
	l, s := oneSubflow(t)
	before := s.congestion
	l.note(t, s.key(), limit{}, func(record *pace.PaceSubflow) { record.Sure[0] = 1<<3 | 1<<5 })
	chosen := l.endpoint()
	chosen.Congestions = map[int]string{3: "reno", 5: "bbr", 9: "cubic"}
	is := func(name string) func() bool {
		return func() bool { return sockets(t, l.client)[0].congestion == name }
	}
	l.apply(t, chosen)
	if !is("bbr")() {
		t.Errorf("after the last rule that matches: %s", sockets(t, l.client)[0].congestion)
	}
	l.note(t, s.key(), limit{}, func(record *pace.PaceSubflow) { record.Sure = [2]uint64{0, 1 << 9} })
	testutil.Eventually(t, 5*time.Second, "another rule decides, with no help of the agent", is("cubic"))
	l.note(t, s.key(), limit{}, func(record *pace.PaceSubflow) { record.Sure, record.Stack = [2]uint64{1 << 3}, 1<<5 })
	testutil.Eventually(t, 5*time.Second, "so does one that matched a packet", is("bbr"))
	l.apply(t, l.endpoint())
	if !is(before)() {
		t.Errorf("without a rule: %s instead of %s", sockets(t, l.client)[0].congestion, before)
	}
}

func TestNamesAndRulesThatCannotBeAreRefused(t *testing.T) {
	pacer := agent.Open(agent.Options{PinPath: t.TempDir()})
	for what, congestions := range map[string]map[int]string{
		"an empty name":         {1: ""},
		"a name of 16 bytes":    {1: "sixteen_bytes_xx"},
		"a rule beyond the end": {64: "reno"},
		"a negative rule":       {-1: "reno"},
	} {
		if err := pacer.Apply([]agent.Endpoint{{Number: 1, Path: "/proc/self/ns/net", Congestions: congestions}}); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
}

func TestTheNextAgentTakesOverAndRemovesEverything(t *testing.T) {
	l, s := oneSubflow(t)
	l.note(t, s.key(), limit{mbit: 20})
	testutil.Eventually(t, 5*time.Second, "the socket is paced", func() bool { return all(paces(t, l.client), "20000000") })
	require.NoError(t, l.pacer.Close())
	l.note(t, s.key(), limit{mbit: 30})
	testutil.Eventually(t, 5*time.Second, "the program goes on without the agent", func() bool { return all(paces(t, l.client), "30000000") })

	l.pacer = agent.Open(l.options(t))
	l.apply(t, l.endpoint())
	if got := paces(t, l.client); !all(got, "30000000") {
		t.Errorf("after the take-over the socket is paced at %v", got)
	}
	for _, feature := range l.pacer.Features() {
		if !feature.Supported {
			t.Errorf("feature %s: %s", feature.Name, feature.Message)
		}
	}
	require.NoError(t, l.pacer.Close())

	require.NoError(t, agent.Open(l.options(t)).Remove())
	if got := paces(t, l.client); !all(got, "") {
		t.Errorf("after the removal the socket is paced at %v", got)
	}
	entries, err := os.ReadDir(l.directory)
	require.NoError(t, err)
	for _, entry := range entries {
		if entry.Name() != pace.PaceMapSubflows {
			t.Errorf("%s is left behind", entry.Name())
		}
	}
}

func TestPinsThatSomebodyRemovedAreMadeAnew(t *testing.T) {
	l, s := oneSubflow(t)
	l.note(t, s.key(), limit{mbit: 20})
	testutil.Eventually(t, 5*time.Second, "the socket is paced", func() bool { return all(paces(t, l.client), "20000000") })
	require.NoError(t, os.RemoveAll(l.directory))
	require.NoError(t, l.subflows.Close())
	l.subflows = nil
	l.apply(t, l.endpoint())
	if got := paces(t, l.client); !all(got, "") {
		t.Errorf("without a record the socket is paced at %v", got)
	}
	l.note(t, s.key(), limit{mbit: 30})
	testutil.Eventually(t, 5*time.Second, "it is paced again", func() bool { return all(paces(t, l.client), "30000000") })
	l.note(t, s.key(), limit{})
	testutil.Eventually(t, 5*time.Second, "what it had first comes back", func() bool { return all(paces(t, l.client), "") })
}

func TestAPodThatIsGoneIsLeftOut(t *testing.T) {
	l, s := oneSubflow(t)
	l.apply(t, agent.Endpoint{Number: 1, Path: "/run/netns/there-is-none"}, l.endpoint())
	l.note(t, s.key(), limit{mbit: 20})
	testutil.Eventually(t, 5*time.Second, "the other one is paced", func() bool { return all(paces(t, l.client), "20000000") })
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, agent.Open(agent.Options{}).Run(ctx))
}
