// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/btf"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/testutil"
)

// The kernel puts what comes before a join is finished in the wrong place. It is finished
// when the reader, who waits for a page here, releases the connection.
func TestASubflowBringsNoDataBeforeItsJoinIsFinished(t *testing.T) {
	for name, c := range map[string]struct {
		manager v1alpha1.SubflowManager
		after   pathmanager.OpenAfter
	}{
		"announced when the connection lasts": {v1alpha1.SubflowManagerKernel, pathmanager.OpenAfter{Bytes: 1 << 40, Time: 300 * time.Millisecond}},
		"announced at once":                   {v1alpha1.SubflowManagerKernel, pathmanager.OpenAfter{}},
		"opened by the agent":                 {v1alpha1.SubflowManagerAgent, pathmanager.OpenAfter{}},
	} {
		t.Run(name, func(t *testing.T) {
			forBoth(t, func(t *testing.T, version int) {
				l := newLabOf(t, c.manager, c.after)
				sent := randomBytes(400_000)
				client, server, joins := l.connectWithoutJoins(t, version)
				goesOn := l.joinWhileItReads(t, client, server, joins, sent)
				received := goesOn()
				require.True(t, bytes.Equal(sent, received), "other bytes arrived than were sent")
				l.client.ExpectSubflows(client, subflows)
				failed := writes(client, sent)
				_, err := io.ReadFull(server, received)
				require.NoError(t, errors.Join(err, <-failed))
				require.True(t, bytes.Equal(sent, received), "other bytes arrived than were sent")
				require.Equal(t, numbersSubflows(t), keptBackOf(t, l.holder) > 0)
			})
		})
	}
}

const (
	firstRead = 100  // is read into the slow page
	alone     = 2000 // is sent before the other subflows have something to do
)

// connectWithoutJoins has joins be lost until they are let through.
func (l *lab) connectWithoutJoins(t *testing.T, version int) (client, server net.Conn, letThrough func()) {
	t.Helper()
	listener, err := l.server.Listen(t.Context(), "tcp", netip.AddrPortFrom(l.server.Address(version), 0).String())
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	l.settle(t)
	letThrough = l.lose(t, "option", "mptcp", "subtype", "1")
	client, err = l.client.Dial(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	server, err = listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	for _, end := range []net.Conn{client, server} {
		require.NoError(t, end.SetDeadline(time.Now().Add(2*time.Minute)))
	}
	return client, server, letThrough
}

// writes sends more than the ends may have room for while nobody reads.
func writes(to net.Conn, what []byte) (failed chan error) {
	failed = make(chan error, 1)
	go func() { _, err := to.Write(what); failed <- err }()
	return failed
}

// joinWhileItReads has the client's subflows join while the server holds the connection's
// lock, and the client send on them. The returned function ends that, and gives what the
// server received.
func (l *lab) joinWhileItReads(t *testing.T, client, server net.Conn, letThrough func(), sent []byte) (goesOn func() []byte) {
	t.Helper()
	send(t, client, sent[:firstRead])
	page := newSlowPage(t)
	first := readInto(t, server, page.bytes[:firstRead])
	time.Sleep(500 * time.Millisecond) // it is old enough
	letThrough()
	send(t, client, sent[firstRead:firstRead+1])
	testutil.Retry(t, 20*time.Second, func() error { return atLeast(subflows-1, counter(t, l.client, "MPTcpExtMPJoinSynAckRx")) })
	time.Sleep(100 * time.Millisecond)
	arrives := l.lose(t, "sport", strconv.Itoa(client.LocalAddr().(*net.TCPAddr).Port))
	send(t, client, sent[firstRead+1:alone]) // and so the first subflow keeps these
	time.Sleep(50 * time.Millisecond)
	failed := writes(client, sent[alone:])
	time.Sleep(50 * time.Millisecond)
	return func() []byte {
		page.answer(t)
		arrives()
		received := make([]byte, len(sent))
		copy(received, <-first)
		_, err := io.ReadFull(server, received[firstRead:])
		require.NoError(t, err)
		require.NoError(t, <-failed)
		return received
	}
}

// lose has all be lost that comes to the server and matches this of TCP, until the
// returned function is called.
func (l *lab) lose(t *testing.T, match ...string) (goesOn func()) {
	t.Helper()
	stop, err := l.server.Lose(match...)
	require.NoError(t, err)
	return func() { require.NoError(t, stop()) }
}

// numbersSubflows is whether the kernel tells that a join is not finished.
func numbersSubflows(t *testing.T) bool {
	t.Helper()
	kernel, err := btf.LoadKernelSpec()
	require.NoError(t, err)
	var subflow *btf.Struct
	require.NoError(t, kernel.TypeByName("mptcp_subflow_context", &subflow))
	return hasMember(subflow, "subflow_id")
}

// hasMember looks into what has no name, too.
func hasMember(in btf.Type, name string) bool {
	var members []btf.Member
	switch in := in.(type) {
	case *btf.Struct:
		members = in.Members
	case *btf.Union:
		members = in.Members
	}
	return slices.ContainsFunc(members, func(m btf.Member) bool {
		return m.Name == name || m.Name == "" && hasMember(m.Type, name)
	})
}

// keptBackOf is the count that the agent offers to Prometheus.
func keptBackOf(t *testing.T, holder *Holder) float64 {
	t.Helper()
	counts := metricsOf(t, holder, "braid_join_answers_kept_back_total")
	require.Len(t, counts, 1)
	return counts[0].GetCounter().GetValue()
}

// metricsOf are those of a name that the agent offers to Prometheus.
func metricsOf(t *testing.T, holder *Holder, name string) []*dto.Metric {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(holder))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()
		}
	}
	return nil
}

func randomBytes(size int) []byte {
	sent := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(sent) // never fails
	return sent
}

func send(t *testing.T, connection net.Conn, data []byte) {
	t.Helper()
	_, err := connection.Write(data)
	require.NoError(t, err)
}

// readInto reads once, and holds the connection's lock as long as that takes.
func readInto(t *testing.T, connection net.Conn, buffer []byte) <-chan []byte {
	raw, err := connection.(syscall.Conn).SyscallConn()
	require.NoError(t, err)
	done := make(chan []byte, 1)
	go func() {
		n := 0
		_ = raw.Read(func(fd uintptr) bool { // what it did not read is missed
			read, err := unix.Read(int(fd), buffer)
			n = max(read, 0)
			return !errors.Is(err, unix.EAGAIN)
		})
		done <- buffer[:n]
	}()
	return done
}

// slowPage is memory whose first use waits for an answer.
type slowPage struct {
	bytes []byte
	fd    int
}

// What linux/userfaultfd.h has.
const (
	uffdAPI         = 0xaa
	uffdioAPI       = 0xc018aa3f
	uffdioRegister  = 0xc020aa00
	uffdioZeropage  = 0xc020aa04
	registerMissing = 1
)

func newSlowPage(t *testing.T) *slowPage {
	t.Helper()
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	require.Zero(t, errno)
	memory, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	page := &slowPage{bytes: memory, fd: int(fd)}
	t.Cleanup(func() {
		require.NoError(t, unix.Close(page.fd)) // whoever still waits goes on
		require.NoError(t, unix.Munmap(memory))
	})
	page.control(t, uffdioAPI, uffdAPI, 0, 0)
	page.control(t, uffdioRegister, page.address(), uint64(len(memory)), registerMissing, 0)
	return page
}

func (p *slowPage) address() uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p.bytes))))
}

// answer gives the memory to whoever waits for it.
func (p *slowPage) answer(t *testing.T) {
	t.Helper()
	p.control(t, uffdioZeropage, p.address(), uint64(len(p.bytes)), 0, 0)
}

func (p *slowPage) control(t *testing.T, request uintptr, words ...uint64) {
	t.Helper()
	argument := make([]byte, 0, 64)
	for _, word := range words {
		argument = binary.NativeEndian.AppendUint64(argument, word)
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(p.fd), request, uintptr(unsafe.Pointer(unsafe.SliceData(argument))))
	require.Zero(t, errno)
}

func atLeast(want, count int) error {
	if count < want {
		return fmt.Errorf("%d, not yet %d", count, want)
	}
	return nil
}
