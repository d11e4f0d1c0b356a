// SPDX-License-Identifier: Apache-2.0

package pathmanager_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/pair"
	"braid.dev/braid/internal/mptcpnl"
)

const (
	kernel = v1alpha1.SubflowManagerKernel
	agent  = v1alpha1.SubflowManagerAgent
)

func settings(host *pair.Host, manager v1alpha1.SubflowManager, count int) pathmanager.Settings {
	return pathmanager.Settings{
		Manager: manager, Count: count, FirstAnnouncedPort: 61001,
		Addresses: []netip.Addr{host.IPv4, host.IPv6},
	}
}

func open(t *testing.T, host *pair.Host, statePath string) *pathmanager.Namespace {
	t.Helper()
	namespace, err := pathmanager.Open(host.Path(), pathmanager.Options{StatePath: statePath, Log: testr.New(t)})
	require.NoError(t, err)
	return namespace
}

// manage configures a host until the test ends.
func manage(t *testing.T, host *pair.Host, manager v1alpha1.SubflowManager, count int) *pathmanager.Namespace {
	t.Helper()
	namespace := open(t, host, t.TempDir())
	t.Cleanup(func() { namespace.Close() })
	require.NoError(t, namespace.Configure(context.Background(), settings(host, manager, count)))
	return namespace
}

// Tests here mostly wait, each for hosts of its own: as many as this run at a time.
const atOnce = "8"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// forEach runs a test for all managers, IP versions and counts.
func forEach(t *testing.T, counts []int, test func(*testing.T, v1alpha1.SubflowManager, int, int)) {
	t.Parallel()
	for _, manager := range []v1alpha1.SubflowManager{kernel, agent} {
		for _, version := range []int{4, 6} {
			for _, count := range counts {
				t.Run(fmt.Sprintf("%s/IPv%d/%d subflows", manager, version, count), func(t *testing.T) {
					t.Parallel()
					test(t, manager, version, count)
				})
			}
		}
	}
}

// expectAllBegunBy expects that one host opened all subflows.
func expectAllBegunBy(t *testing.T, host *pair.Host, connection net.Conn) {
	t.Helper()
	for _, subflow := range host.Subflows(connection.LocalAddr()) {
		if !subflow.Initiator {
			t.Errorf("subflow %+v was not opened by the host that began the connection", subflow)
		}
	}
}

// expectSteady expects the number of subflows to stay.
func expectSteady(t *testing.T, host *pair.Host, connection net.Conn, count int) {
	t.Helper()
	host.ExpectSubflows(connection, count)
	time.Sleep(500 * time.Millisecond)
	host.ExpectSubflows(connection, count)
}

func TestConnectionsGetTheirSubflows(t *testing.T) {
	forEach(t, []int{1, 2, 3, 4}, func(t *testing.T, manager v1alpha1.SubflowManager, version, count int) {
		client, server := pair.New(t)
		manage(t, server, manager, count)
		manage(t, client, manager, count)
		address := server.Serve(version)
		connections := []net.Conn{client.Connect(address), client.Connect(address)}
		for _, connection := range connections {
			expectSteady(t, client, connection, count)
			expectAllBegunBy(t, client, connection)
		}
	})
}

func TestPodsThatListenAndConnectGetTheirSubflows(t *testing.T) {
	forEach(t, []int{3}, func(t *testing.T, manager v1alpha1.SubflowManager, version, count int) {
		client, server := pair.New(t)
		toServer, toClient := server.Serve(version), client.Serve(version)
		manage(t, server, manager, count)
		manage(t, client, manager, count)
		there, back := client.Connect(toServer), server.Connect(toClient)
		expectSteady(t, client, there, count)
		expectSteady(t, server, back, count)
		expectAllBegunBy(t, client, there)
		expectAllBegunBy(t, server, back)
	})
}

func TestAnUnmanagedServerGivesTheKernelsDefault(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	address := server.Serve(4)
	manage(t, client, agent, 4)
	expectSteady(t, client, client.Connect(address), 3)
}

func TestAClosedSubflowIsOpenedAgain(t *testing.T) {
	forEach(t, []int{3}, func(t *testing.T, manager v1alpha1.SubflowManager, version, count int) {
		client, server := pair.New(t)
		manage(t, server, manager, count)
		manage(t, client, manager, count)
		address := server.Serve(version)
		connection, other := client.Connect(address), client.Connect(address)
		client.ExpectSubflows(connection, count)
		client.ExpectSubflows(other, count)
		before := namesOf(client.Subflows(other.LocalAddr()))
		for range 3 {
			killOne(t, client, connection)
			client.ExpectSubflows(connection, count)
		}
		after := namesOf(client.Subflows(other.LocalAddr()))
		if fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("another connection was disturbed: it had %v and has %v", before, after)
		}
	})
}

// namesOf leaves out what changes while a connection is in use.
func namesOf(subflows []mptcpnl.Subflow) []mptcpnl.Subflow {
	for i := range subflows {
		subflows[i].TCP = mptcpnl.TCPInfo{}
	}
	return subflows
}

// killOne resets a further subflow and waits until it is gone.
func killOne(t *testing.T, host *pair.Host, connection net.Conn) {
	t.Helper()
	for _, subflow := range host.Subflows(connection.LocalAddr()) {
		if subflow.First {
			continue
		}
		host.Kill(subflow)
		pair.Eventually(t, func() bool {
			for _, living := range host.Subflows(connection.LocalAddr()) {
				if living == subflow {
					return false
				}
			}
			return true
		}, func() string { return fmt.Sprintf("%+v lives", subflow) })
		return
	}
	t.Fatal("no further subflow to kill")
}

func TestTheFirstSubflowIsReplacedByTheAgent(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	manage(t, server, agent, 3)
	manage(t, client, agent, 3)
	connection := client.Connect(server.Serve(4))
	client.ExpectSubflows(connection, 3)
	for _, subflow := range client.Subflows(connection.LocalAddr()) {
		if subflow.First {
			client.Kill(subflow)
		}
	}
	pair.Eventually(t, func() bool {
		first := 0
		subflows := client.Subflows(connection.LocalAddr())
		for _, subflow := range subflows {
			if subflow.First {
				first++
			}
		}
		return first == 0 && len(subflows) == 3
	}, func() string { return fmt.Sprintf("subflows are %v", client.Subflows(connection.LocalAddr())) })
}

func TestExistingConnectionsAreTakenOver(t *testing.T) {
	forEach(t, []int{3}, func(t *testing.T, manager v1alpha1.SubflowManager, version, count int) {
		client, server := pair.New(t)
		connection := client.Connect(server.Serve(version))
		client.ExpectSubflows(connection, 1)
		manage(t, server, manager, count)
		manage(t, client, manager, count)
		expectSteady(t, client, connection, count)
	})
}

func TestConnectionsOfAStoppedAgentAreTakenOver(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	manage(t, server, agent, 3)
	require.NoError(t, manage(t, client, agent, 3).Close())
	address := server.Serve(4)
	connection := client.Connect(address)
	expectSteady(t, client, connection, 1)
	manage(t, client, agent, 3)
	expectSteady(t, client, connection, 3)
}

func TestConnectionsSurviveAChangeOfManager(t *testing.T) {
	t.Parallel()
	managers := map[v1alpha1.SubflowManager]v1alpha1.SubflowManager{kernel: agent, agent: kernel}
	for from, to := range managers {
		t.Run(fmt.Sprintf("from %s to %s", from, to), func(t *testing.T) {
			client, server := pair.New(t)
			address := server.Serve(4)
			there, here := manage(t, server, from, 3), manage(t, client, from, 3)
			connection := client.Connect(address)
			client.ExpectSubflows(connection, 3)
			require.NoError(t, there.Configure(context.Background(), settings(server, to, 3)))
			require.NoError(t, here.Configure(context.Background(), settings(client, to, 3)))
			expectSteady(t, client, connection, 3)
			killOne(t, client, connection)
			expectSteady(t, client, connection, 3)
			expectSteady(t, client, client.Connect(address), 3)
		})
	}
}

func TestWithoutTheAgentTheKernelGoesOn(t *testing.T) {
	t.Parallel()
	alone := 2
	if _, err := os.Stat("/proc/sys/net/mptcp/add_addr_v6_port_drop_ts"); err == nil {
		alone = 4 // this kernel can announce IPv6 addresses with a port
	}
	tests := []struct {
		name      string
		version   int
		addresses func(*pair.Host) []netip.Addr
		want      int
	}{
		{"IPv4", 4, func(h *pair.Host) []netip.Addr { return []netip.Addr{h.IPv4} }, 4},
		{"IPv6 in a pod with both versions", 6, func(h *pair.Host) []netip.Addr { return []netip.Addr{h.IPv6, h.IPv4} }, 4},
		{"IPv6 in a pod with IPv6 alone", 6, func(h *pair.Host) []netip.Addr { return []netip.Addr{h.IPv6} }, alone},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			client, server := pair.New(t)
			address := server.Serve(test.version)
			for _, host := range []*pair.Host{client, server} {
				namespace := open(t, host, t.TempDir())
				wanted := settings(host, kernel, 4)
				wanted.Addresses = test.addresses(host)
				require.NoError(t, namespace.Configure(context.Background(), wanted))
				require.NoError(t, namespace.Close())
			}
			connection := client.Connect(address)
			expectSteady(t, client, connection, test.want)
			expectAllBegunBy(t, client, connection)
		})
	}
}

// state is all that a Namespace may change.
func state(t *testing.T, host *pair.Host) string {
	t.Helper()
	sysctls, err := host.Run("sysctl", "-a", "--pattern", `^net\.(mptcp|ipv4\.tcp_timestamps)`)
	require.NoError(t, err)
	limits, err := host.Run("ip", "mptcp", "limits", "show")
	require.NoError(t, err)
	endpoints, err := host.Run("ip", "mptcp", "endpoint", "show")
	require.NoError(t, err)
	listeners, err := host.Run("ss", "-Htln")
	require.NoError(t, err)
	return strings.Join([]string{sysctls, limits, endpoints, listeners}, "\n")
}

func TestRestoreLeavesTheNamespaceAsBefore(t *testing.T) {
	forEach(t, []int{4}, func(t *testing.T, manager v1alpha1.SubflowManager, version, count int) {
		client, server := pair.New(t)
		_, err := server.Run("ip", "mptcp", "limits", "set", "subflows", "5", "add_addr_accepted", "1")
		require.NoError(t, err)
		_, err = server.Run("ip", "mptcp", "endpoint", "add", "192.0.2.1", "id", "77", "signal")
		require.NoError(t, err)
		address := server.Serve(version)
		before := []string{state(t, client), state(t, server)}
		connection := client.Connect(address)
		for i, host := range []*pair.Host{client, server} {
			restoreByAnotherAgent(t, host, manager, count)
			if after := state(t, host); after != before[i] {
				t.Errorf("it was\n%s\nand is\n%s", before[i], after)
			}
		}
		if len(client.Subflows(connection.LocalAddr())) < 1 {
			t.Error("the connection lost its subflows")
		}
	})
}

// restoreByAnotherAgent configures a host, and restores it after a restart.
func restoreByAnotherAgent(t *testing.T, host *pair.Host, manager v1alpha1.SubflowManager, count int) {
	t.Helper()
	statePath := filepath.Join(t.TempDir(), "state")
	first, wanted := open(t, host, statePath), settings(host, manager, count)
	wanted.OpenAfter = pathmanager.OpenAfter{Time: time.Second}
	require.NoError(t, first.Configure(context.Background(), wanted))
	require.NoError(t, first.Close())
	recorded, err := pathmanager.Recorded(statePath, nil)
	if err != nil || len(recorded) != 1 || recorded[0] != first.Identity() {
		t.Fatalf("recorded are %v (%v), want %v", recorded, err, first.Identity())
	}
	second := open(t, host, statePath)
	defer second.Close()
	require.NoError(t, second.Configure(context.Background(), settings(host, manager, count-1)))
	require.NoError(t, second.Restore(context.Background()))
	if recorded, err := pathmanager.Recorded(statePath, nil); err != nil || len(recorded) != 0 {
		t.Errorf("after Restore there are records: %v %v", recorded, err)
	}
}

func TestRestoreClosesNoSubflow(t *testing.T) {
	forEach(t, []int{3}, func(t *testing.T, manager v1alpha1.SubflowManager, version, count int) {
		client, server := pair.New(t)
		there, here := open(t, server, t.TempDir()), open(t, client, t.TempDir())
		for host, namespace := range map[*pair.Host]*pathmanager.Namespace{server: there, client: here} {
			defer namespace.Close()
			wanted := settings(host, manager, count)
			wanted.Addresses = []netip.Addr{host.Address(version)}
			require.NoError(t, namespace.Configure(context.Background(), wanted))
		}
		connection := client.Connect(server.Serve(version))
		client.ExpectSubflows(connection, count)
		require.NoError(t, there.Restore(context.Background()))
		require.NoError(t, here.Restore(context.Background()))
		expectSteady(t, client, connection, count)
	})
}

// The peer's IPv4 address is announced on an IPv6 connection: newer kernels make an
// endpoint of the client's own, for the subflow that goes there.
func TestRestoreRemovesWhatTheKernelMadeForASubflow(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	address := server.Serve(6)
	before := state(t, client)
	here := open(t, client, t.TempDir())
	defer here.Close()
	require.NoError(t, here.Configure(context.Background(), settings(client, kernel, 3)))
	manage(t, server, kernel, 3)
	connection := client.Connect(address)
	client.ExpectSubflows(connection, 3)
	require.NoError(t, connection.Close())
	pair.Eventually(t, func() bool { // they may outlive their connection
		left, err := client.Diagnostics().Subflows(0)
		return err == nil && len(left) == 0
	}, func() string { return "the subflows do not end" })
	require.NoError(t, here.Restore(context.Background()))
	if after := state(t, client); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
}

func TestConfigureMendsWhatSomebodyChanged(t *testing.T) {
	_, server := pair.New(t)
	server.Serve(4)
	namespace := manage(t, server, kernel, 3)
	before := state(t, server)
	for _, command := range []string{"ip mptcp endpoint flush", "ip mptcp limits set subflows 0", "sysctl -q net.mptcp.pm_type=1"} {
		_, err := server.Run("sh", "-c", command)
		require.NoError(t, err)
	}
	require.NoError(t, namespace.Configure(context.Background(), settings(server, kernel, 3)))
	withoutIDs := func(s string) string {
		return strings.NewReplacer("id 1", "", "id 2", "", "id 3", "", "id 4", "").Replace(s)
	}
	if after := state(t, server); withoutIDs(after) != withoutIDs(before) {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
}

func TestBadSettingsAreRefused(t *testing.T) {
	host, _ := pair.New(t)
	good := settings(host, kernel, 3)
	tests := map[string]func(*pathmanager.Settings){
		"an unknown manager":         func(s *pathmanager.Settings) { s.Manager = "Nobody" },
		"no subflow at all":          func(s *pathmanager.Settings) { s.Count = 0 },
		"nine subflows":              func(s *pathmanager.Settings) { s.Count = 9 },
		"no port":                    func(s *pathmanager.Settings) { s.FirstAnnouncedPort = 0 },
		"a port too near to the end": func(s *pathmanager.Settings) { s.FirstAnnouncedPort = 65535 },
		"no addresses":               func(s *pathmanager.Settings) { s.Addresses = nil },
	}
	namespace := open(t, host, t.TempDir())
	defer namespace.Close()
	before := state(t, host)
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			bad := good
			spoil(&bad)
			if err := namespace.Configure(context.Background(), bad); err == nil {
				t.Error("it was accepted")
			}
			if after := state(t, host); after != before {
				t.Errorf("it changed\n%s\nto\n%s", before, after)
			}
		})
	}
}

func TestAPodWithoutMPTCPIsRefused(t *testing.T) {
	host, _ := pair.New(t)
	require.NoError(t, host.Sysctl("net.mptcp.enabled", "0"))
	namespace := open(t, host, t.TempDir())
	defer namespace.Close()
	err := namespace.Configure(context.Background(), settings(host, kernel, 3))
	if !errors.Is(err, pathmanager.ErrDisabled) {
		t.Errorf("Configure returned %v, want ErrDisabled", err)
	}
}

func TestAnotherPortIsAnnouncedInThePlaceOfOneInUse(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	listener, err := server.Listen(context.Background(), "tcp", server.IPv4.String()+":61002")
	require.NoError(t, err)
	defer listener.Close()
	statePath := t.TempDir()
	for range 2 { // what is announced stays so
		namespace := open(t, server, statePath)
		require.NoError(t, namespace.Configure(context.Background(), settings(server, kernel, 3)))
		if now := state(t, server); !strings.Contains(now, "port 61001") || !strings.Contains(now, "port 61003") || strings.Contains(now, "port 61002") {
			t.Errorf("it is\n%s", now)
		}
		require.NoError(t, namespace.Close())
	}
	manage(t, client, kernel, 3)
	expectSteady(t, client, client.Connect(server.Serve(4)), 3)
}

func TestPortsOfConnectionsThatGoOnAreNotInTheWay(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	manage(t, client, kernel, 3)
	namespace := open(t, server, t.TempDir())
	defer namespace.Close()
	address := server.Serve(4)
	require.NoError(t, namespace.Configure(context.Background(), settings(server, kernel, 3)))
	before := client.Connect(address)
	expectSteady(t, client, before, 3)
	require.NoError(t, namespace.Restore(context.Background()))
	require.NoError(t, namespace.Configure(context.Background(), settings(server, kernel, 3)))
	expectSteady(t, client, before, 3)
	expectSteady(t, client, client.Connect(address), 3)
}

func TestWhereNoPortIsFreeAPortIsNamed(t *testing.T) {
	_, server := pair.New(t)
	for port := 61001; port < 61001+15; port++ { // one of 16 is free, and two are needed
		listener, err := server.Listen(context.Background(), "tcp", netip.AddrPortFrom(server.IPv4, uint16(port)).String())
		require.NoError(t, err)
		defer listener.Close()
	}
	namespace := open(t, server, t.TempDir())
	defer namespace.Close()
	err := namespace.Configure(context.Background(), settings(server, kernel, 3))
	if err == nil || !strings.Contains(err.Error(), "port 61015") {
		t.Errorf("Configure returned %v, want an error that names port 61015", err)
	}
	if now := state(t, server); !strings.Contains(now, "port 61016") {
		t.Errorf("it is\n%s", now)
	}
}
