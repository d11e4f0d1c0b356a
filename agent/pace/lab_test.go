// SPDX-License-Identifier: Apache-2.0

package pace_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	agent "braid.dev/braid/agent/pace"
	"braid.dev/braid/bpf/pace"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// lab is two pods of one node, the first of which is an endpoint.
type lab struct {
	*network.Network
	client, server *network.Pod
	directory      string
	pacer          *agent.Pacer
	subflows       *ebpf.Map
	revision       uint64
	strategies     *atomic.Int32 // that peers ask for and are accepted
}

// endpoint is the number of the client in the keys of subflows.
const endpoint = 7

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{directory: filepath.Join(testutil.BPFFS(t), "v1"), strategies: &atomic.Int32{}}
	l.Network = network.ForTest(t, network.Spec{Nodes: 1, Paths: []string{"net1"}, PodsPerNode: 2})
	l.client, l.server = l.Nodes[0].Pods[0], l.Nodes[0].Pods[1]
	l.pacer = agent.Open(l.options(t))
	t.Cleanup(func() {
		if err := l.pacer.Remove(); err != nil {
			t.Errorf("removing: %v", err)
		}
	})
	return l
}

func (l *lab) options(t *testing.T) agent.Options {
	return agent.Options{PinPath: l.directory, NamespaceDirectories: []string{network.Directory}, Log: testr.New(t)}
}

func (l *lab) endpoint() agent.Endpoint {
	return agent.Endpoint{Number: endpoint, Path: l.client.Path()}
}

// apply governs the client's sockets, as after a change of its chain.
func (l *lab) apply(t *testing.T, endpoints ...agent.Endpoint) {
	t.Helper()
	l.revision++
	for i := range endpoints {
		endpoints[i].Revision = l.revision
	}
	require.NoError(t, l.pacer.Apply(endpoints))
	if l.subflows != nil || len(endpoints) == 0 {
		return
	}
	var err error
	l.subflows, err = ebpf.LoadPinnedMap(filepath.Join(l.directory, "subflows"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.subflows.Close() })
}

// run shares rates until the test ends.
func (l *lab) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.pacer.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

// allow lets connections from client to server have so many subflows, each from
// an address of its own.
func (l *lab) allow(t *testing.T, version, count int) {
	t.Helper()
	for _, pod := range []*network.Pod{l.client, l.server} {
		_, err := pod.Run("ip", "mptcp", "limits", "set", "subflows", strconv.Itoa(count-1))
		require.NoError(t, err)
	}
	for i := range count - 1 {
		address, bits := fmt.Sprintf("10.244.9.%d", i+1), 32
		if version == 6 {
			address, bits = fmt.Sprintf("fd00:244:9::%d", i+1), 128
		}
		require.NoError(t, l.client.AddAddress("eth0", fmt.Sprintf("%s/%d", address, bits)))
		require.NoError(t, l.Nodes[0].AddRoute(network.Route{Destination: fmt.Sprintf("%s/%d", address, bits), Interface: l.client.HostInterface}))
		_, err := l.client.Run("ip", "mptcp", "endpoint", "add", address, "subflow")
		require.NoError(t, err)
	}
}

const port = "5001"

// serve takes in what comes to an address of the server until the test ends.
func (l *lab) serve(t *testing.T, address string) {
	t.Helper()
	listener, err := l.server.Listen(context.Background(), "tcp", net.JoinHostPort(address, port))
	require.NoError(t, err)
	var takers sync.WaitGroup
	takers.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			takers.Go(func() {
				_, _ = io.CopyBuffer(io.Discard, onlyRead{connection}, make([]byte, 1<<20))
				_ = connection.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		takers.Wait()
	})
}

// onlyRead hides what would let the copying be done in another way.
type onlyRead struct{ io.Reader }

// dial opens a connection from the client, and has its first bytes arrive, so that
// further subflows can join.
func (l *lab) dial(t *testing.T, address string) net.Conn {
	t.Helper()
	connection, err := l.client.Dial(t.Context(), "tcp", net.JoinHostPort(address, port))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	setWriteBuffer(t, connection, 4<<20) // what the slowest subflow holds up
	_, err = connection.Write([]byte("begin"))
	require.NoError(t, err)
	return connection
}

// setWriteBuffer sets it also beyond what the machine lets everybody have.
func setWriteBuffer(t *testing.T, connection net.Conn, bytes int) {
	t.Helper()
	raw, err := connection.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, bytes) }))
	require.NoError(t, err)
}

// send fills the connection until the test ends.
func send(t *testing.T, connection net.Conn) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		piece := make([]byte, 256<<10)
		for {
			if _, err := connection.Write(piece); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = connection.(*net.TCPConn).SetLinger(0)
		_ = connection.Close()
		<-done
	})
}

// socket is a TCP socket as `ss` shows it.
type socket struct {
	local, remote netip.AddrPort
	sent, acked   uint64
	pace          string // as printed, or "" for none
	congestion    string
}

var (
	sentPattern  = regexp.MustCompile(`bytes_sent:(\d+)`)
	ackedPattern = regexp.MustCompile(`bytes_acked:(\d+)`)
	pacePattern  = regexp.MustCompile(`pacing_rate \S+?bps/(\S+)bps`)
)

// sockets lists the established TCP sockets inside of a pod, subflows too.
func sockets(t *testing.T, pod *network.Pod) (found []socket) {
	t.Helper()
	out, err := pod.Run("ss", "-tinHO", "state", "established")
	require.NoError(t, err)
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 {
			continue
		}
		s := socket{sent: number(sentPattern, lines.Text()), acked: number(ackedPattern, lines.Text())}
		s.local, s.remote = addressPort(t, fields[2]), addressPort(t, fields[3])
		if match := pacePattern.FindStringSubmatch(lines.Text()); match != nil {
			s.pace = match[1]
		}
		for _, name := range []string{"cubic", "reno", "bbr"} {
			if strings.Contains(lines.Text(), " "+name+" ") {
				s.congestion = name
			}
		}
		found = append(found, s)
	}
	return found
}

func number(pattern *regexp.Regexp, text string) (n uint64) {
	if match := pattern.FindStringSubmatch(text); match != nil {
		n, _ = strconv.ParseUint(match[1], 10, 64)
	}
	return n
}

func addressPort(t *testing.T, text string) netip.AddrPort {
	t.Helper()
	host, port, err := net.SplitHostPort(text)
	require.NoError(t, err)
	if host, _, _ = strings.Cut(host, "%"); host == "*" {
		host = "::"
	}
	return netip.MustParseAddrPort(net.JoinHostPort(host, port))
}

// awaitSubflows waits until the client's connection has so many.
func (l *lab) awaitSubflows(t *testing.T, count int) (found []socket) {
	t.Helper()
	testutil.Retry(t, 10*time.Second, func() error {
		if found = sockets(t, l.client); len(found) != count {
			return fmt.Errorf("the client has %d subflows instead of %d: %+v", len(found), count, found)
		}
		return nil
	})
	return found
}

func words(address netip.Addr) (to [4]uint32) {
	bytes := address.As16()
	for i := range to {
		to[i] = native.Uint32(bytes[4*i:])
	}
	return to
}

func (s *socket) key() (key pace.PaceSubflowKey) {
	key.Local.Word, key.Remote.Word = words(s.local.Addr()), words(s.remote.Addr())
	key.LocalPort, key.RemotePort = bigEndian(s.local.Port()), bigEndian(s.remote.Port())
	key.Endpoint = endpoint
	return key
}

// limit is one as the packet programs note it.
type limit struct {
	mbit             float64
	id               uint32
	mechanism, scope uint8
}

// note puts the record of a subflow, as the packet programs do.
func (l *lab) note(t *testing.T, key pace.PaceSubflowKey, of limit, change ...func(*pace.PaceSubflow)) {
	t.Helper()
	var record pace.PaceSubflow
	_ = l.subflows.Lookup(key, &record)
	record.Limit[0].Rate = uint64(of.mbit * 1e6 / 8)
	record.Limit[0].Id, record.Limit[0].Mechanism, record.Limit[0].Scope = of.id, of.mechanism, of.scope
	record.Token = 0x1234
	for _, f := range change {
		f(&record)
	}
	require.NoError(t, l.subflows.Put(key, record))
}

func (l *lab) record(t *testing.T, key pace.PaceSubflowKey) (record pace.PaceSubflow) {
	t.Helper()
	require.NoError(t, l.subflows.Lookup(key, &record))
	return record
}

// ends of a subflow, the endpoint's first.
type ends struct{ local, remote netip.AddrPort }

func (s *socket) ends() ends { return ends{s.local, s.remote} }

// rates are what the subflows of a pod carry in this time, in Mbit/s.
func rates(t *testing.T, pod *network.Pod, in time.Duration) map[ends]float64 {
	t.Helper()
	began, before := time.Now(), map[ends]uint64{}
	for _, s := range sockets(t, pod) {
		before[s.ends()] = s.acked
	}
	time.Sleep(in)
	rates := map[ends]float64{}
	seconds := time.Since(began).Seconds()
	for _, s := range sockets(t, pod) {
		rates[s.ends()] = float64(s.acked-before[s.ends()]) * 8 / 1e6 / seconds
	}
	return rates
}

func sum(rates map[ends]float64) (total float64) {
	for _, rate := range rates {
		total += rate
	}
	return total
}

// isNear allows a tenth of what is wanted; benchmarks tell it more exactly.
func isNear(got, wanted float64) bool { return got > 0.9*wanted && got < 1.1*wanted }

// expectRates measures again where a busy machine could not send in time.
func expectRates(t *testing.T, what string, pod *network.Pod, in time.Duration, hold func(map[ends]float64) bool) {
	t.Helper()
	var got map[ends]float64
	for range 4 {
		if got = rates(t, pod, in); hold(got) {
			return
		}
	}
	t.Errorf("%s: %v Mbit/s", what, got)
}

// each holds when all subflows carry this much, in Mbit/s.
func each(mbit float64) func(map[ends]float64) bool {
	return func(rates map[ends]float64) bool {
		for _, rate := range rates {
			if !isNear(rate, mbit) {
				return false
			}
		}
		return len(rates) > 0
	}
}

// together holds when they carry this much in sum.
func together(mbit float64) func(map[ends]float64) bool {
	return func(rates map[ends]float64) bool { return isNear(sum(rates), mbit) }
}

// await waits until a condition holds.
// paces are those of the pod's sockets, as printed.
func paces(t *testing.T, pod *network.Pod) (paces []string) {
	t.Helper()
	for _, s := range sockets(t, pod) {
		paces = append(paces, s.pace)
	}
	return paces
}

func all(values []string, wanted string) bool {
	return len(values) > 0 && !slices.ContainsFunc(values, func(value string) bool { return value != wanted })
}
