// SPDX-License-Identifier: Apache-2.0

package sockets_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/sockets"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// hook tries, without the package under test, if the kernel lets a program
// change what update_socket_protocol returns.
func hook(t *testing.T) error {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Tracing, AttachType: ebpf.AttachModifyReturn, AttachTo: "update_socket_protocol",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}, License: "GPL",
	})
	if err != nil {
		return err
	}
	defer program.Close()
	attached, err := link.AttachTracing(link.TracingOptions{Program: program})
	if err != nil {
		return err
	}
	return attached.Close()
}

// TestUpgrade tests one of two things, as the kernel decides: that sockets are
// upgraded, or that the package says why they are not.
func TestUpgrade(t *testing.T) {
	reason := hook(t)
	if reason != nil {
		t.Logf("this kernel cannot: %v", reason)
		t.Run("what cannot be is said, and leaves nothing behind", expectUnsupported)
		return
	}
	t.Run("sockets of an enabled namespace are upgraded, and no others", upgradeOne)
	t.Run("the upgrade goes on without the agent and is taken over", takeOver)
	t.Run("listed are the namespaces that are enabled", listEnabled)
}

func expectUnsupported(t *testing.T) {
	directory := filepath.Join(testutil.BPFFS(t), "sockets")
	_, err := sockets.Open(directory)
	if !errors.Is(err, sockets.ErrUnsupported) {
		t.Fatalf("Open returned %v, want ErrUnsupported", err)
	}
	feature := "fmod_ret"
	if errors.Is(hook(t), ebpf.ErrNotSupported) {
		feature = "update_socket_protocol"
	}
	if !strings.Contains(err.Error(), feature) {
		t.Errorf("the reason %q does not name %s", err, feature)
	}
	expectNoPins(t, directory)
	require.NoError(t, sockets.Remove(directory))
}

func expectNoPins(t *testing.T, directory string) {
	t.Helper()
	entries, err := os.ReadDir(directory)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if len(entries) > 0 {
		t.Errorf("%v is left behind", entries)
	}
}

func inode(t *testing.T, namespace *network.Namespace) uint64 {
	t.Helper()
	info, err := os.Stat(namespace.Path())
	require.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

// protocol is that of a socket which a task opens inside the namespace.
func protocol(t *testing.T, namespace *network.Namespace, family, kind, protocol int) (got int) {
	t.Helper()
	require.NoError(t, namespace.Do(func() error {
		fd, err := unix.Socket(family, kind, protocol)
		if err != nil {
			return fmt.Errorf("opening a socket: %w", err)
		}
		defer unix.Close(fd)
		got, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
		return err
	}))
	return got
}

func expectUpgraded(t *testing.T, namespace *network.Namespace, want bool) {
	t.Helper()
	tcp := unix.IPPROTO_TCP
	if want {
		tcp = unix.IPPROTO_MPTCP
	}
	tests := []struct{ family, kind, protocol, want int }{
		{unix.AF_INET, unix.SOCK_STREAM, 0, tcp},
		{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC, unix.IPPROTO_TCP, tcp},
		{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP, tcp},
		{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, unix.IPPROTO_MPTCP},
		{unix.AF_INET, unix.SOCK_DGRAM, 0, unix.IPPROTO_UDP},
		{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP, unix.IPPROTO_SCTP},
		{unix.AF_UNIX, unix.SOCK_STREAM, 0, 0},
	}
	for _, test := range tests {
		if test.protocol == unix.IPPROTO_SCTP && !hasSCTP() {
			continue
		}
		got := protocol(t, namespace, test.family, test.kind, test.protocol)
		if got != test.want {
			t.Errorf("a socket of family %d, type %d and protocol %d has protocol %d, want %d",
				test.family, test.kind, test.protocol, got, test.want)
		}
	}
}

func hasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err != nil {
		return false
	}
	return unix.Close(fd) == nil
}

func upgradeOne(t *testing.T) {
	enabled, other := network.NamespaceForTest(t), network.NamespaceForTest(t)
	directory := filepath.Join(testutil.BPFFS(t), "sockets")
	upgrade, err := sockets.Open(directory)
	require.NoError(t, err)
	defer upgrade.Close()
	expectUpgraded(t, enabled, false)

	require.NoError(t, upgrade.Enable(inode(t, enabled)))
	expectUpgraded(t, enabled, true)
	expectUpgraded(t, other, false)
	expectConnectionOfAnyProgram(t, enabled)

	require.NoError(t, upgrade.Disable(inode(t, enabled)))
	expectUpgraded(t, enabled, false)
	require.NoError(t, upgrade.Disable(inode(t, enabled)))

	require.NoError(t, upgrade.Enable(inode(t, enabled)))
	require.NoError(t, sockets.Remove(directory))
	require.NoError(t, upgrade.Close())
	expectUpgraded(t, enabled, false)
	expectNoPins(t, directory)
}

// expectConnectionOfAnyProgram has a program that knows nothing of MPTCP talk to
// an MPTCP listener, and expects an MPTCP connection.
func expectConnectionOfAnyProgram(t *testing.T, namespace *network.Namespace) {
	t.Helper()
	listener, err := namespace.Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	port := netip.MustParseAddrPort(listener.Addr().String()).Port()
	program := namespace.Command(context.Background(), "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d; read <&3", port))
	require.NoError(t, program.Start())
	connection, err := listener.Accept()
	require.NoError(t, err)
	list, err := namespace.Run("ss", "-HnM", "state", "established", "sport", "=", fmt.Sprintf(":%d", port))
	require.NoError(t, err)
	if !strings.Contains(list, "127.0.0.1") {
		t.Errorf("there is no MPTCP connection to port %d: %q", port, list)
	}
	require.NoError(t, connection.Close())
	_ = program.Wait() // read fails at the end of the connection
}

func takeOver(t *testing.T) {
	namespace := network.NamespaceForTest(t)
	directory := filepath.Join(testutil.BPFFS(t), "sockets")
	first, err := sockets.Open(directory)
	require.NoError(t, err)
	require.NoError(t, first.Enable(inode(t, namespace)))
	require.NoError(t, first.Close())
	expectUpgraded(t, namespace, true)

	second, err := sockets.Open(directory)
	require.NoError(t, err)
	expectUpgraded(t, namespace, true)
	require.NoError(t, second.Disable(inode(t, namespace)))
	expectUpgraded(t, namespace, false)
	require.NoError(t, second.Close())
	require.NoError(t, sockets.Remove(directory))
}

func listEnabled(t *testing.T) {
	directory := filepath.Join(testutil.BPFFS(t), "sockets")
	upgrade, err := sockets.Open(directory)
	require.NoError(t, err)
	defer upgrade.Close()
	require.NoError(t, upgrade.Enable(4026531999))
	inodes, err := upgrade.Enabled()
	if err != nil || len(inodes) != 1 || inodes[0] != 4026531999 {
		t.Errorf("enabled are %v (%v), want 4026531999", inodes, err)
	}
	require.NoError(t, sockets.Remove(directory))
}

func TestADirectoryThatCannotHoldPinsIsAnError(t *testing.T) {
	_, err := sockets.Open(t.TempDir())
	if err == nil {
		t.Fatal("a directory that is not on a BPF file system was accepted")
	}
	if hook(t) == nil && errors.Is(err, sockets.ErrUnsupported) {
		t.Errorf("Open blamed the kernel: %v", err)
	}
}
