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
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/internal/testutil"
)

// The kernel puts what comes before a join is finished in the wrong place. It is finished
// when the reader, who waits for a page here, releases the connection.
func TestASubflowBringsNoDataBeforeItsJoinIsFinished(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t, pathmanager.OpenAfter{Bytes: 1 << 40, Time: 300 * time.Millisecond})
		listener, err := l.server.Listen(t.Context(), "tcp", netip.AddrPortFrom(l.server.Address(version), 0).String())
		require.NoError(t, err)
		defer listener.Close()
		l.settle(t)
		client, err := l.client.Dial(t.Context(), "tcp", listener.Addr().String())
		require.NoError(t, err)
		defer client.Close()
		server, err := listener.Accept()
		require.NoError(t, err)
		defer server.Close()

		sent := randomBytes(400_000)
		send(t, client, sent[:firstRead])
		page := newSlowPage(t)
		first := readInto(t, server, page.bytes[:firstRead])
		time.Sleep(500 * time.Millisecond) // it is old enough
		send(t, client, sent[firstRead:firstRead+1])
		testutil.Retry(t, 5*time.Second, func() error { return atLeast(subflows-1, counter(t, l.client, "MPTcpExtMPJoinSynAckRx")) })
		time.Sleep(100 * time.Millisecond)
		goesOn := l.lose(t, client.LocalAddr())
		send(t, client, sent[firstRead+1:alone]) // and so the first subflow keeps these
		time.Sleep(50 * time.Millisecond)
		failed := make(chan error, 1)
		go func() { _, err := client.Write(sent[alone:]); failed <- err }()
		time.Sleep(50 * time.Millisecond)
		page.answer(t)
		goesOn()
		received := make([]byte, len(sent))
		copy(received, <-first)
		_, err = io.ReadFull(server, received[firstRead:])
		require.NoError(t, err)
		require.NoError(t, <-failed)
		require.True(t, bytes.Equal(sent, received), "other bytes arrived than were sent")
		l.client.ExpectSubflows(client, subflows)
		send(t, client, sent)
		_, err = io.ReadFull(server, received)
		require.NoError(t, err)
		require.True(t, bytes.Equal(sent, received), "other bytes arrived than were sent")
	})
}

const (
	firstRead = 100  // is read into the slow page
	alone     = 2000 // is sent before the other subflows have something to do
)

// lose has all be lost that comes to the server from a port, until the returned function
// is called.
func (l *lab) lose(t *testing.T, from net.Addr) (goesOn func()) {
	t.Helper()
	port := strconv.Itoa(from.(*net.TCPAddr).Port)
	run := func(arguments ...string) {
		_, err := l.server.Run("nft", arguments...)
		require.NoError(t, err)
	}
	run("add", "table", "inet", "lose")
	run("add", "chain", "inet", "lose", "input", "{ type filter hook input priority 0; }")
	run("add", "rule", "inet", "lose", "input", "tcp", "sport", port, "drop")
	return func() { run("delete", "table", "inet", "lose") }
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
