// SPDX-License-Identifier: Apache-2.0

package pathmanager_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/pair"
)

// The kernel's own values are not those that pods need, and come back when Braid leaves.
func TestSettingsOfAPodStayWithinBounds(t *testing.T) {
	tests := []struct {
		name, setting string
		wanted        map[string]string // by what the pod has before
	}{
		// Where the network dropped the first SYNs of a pod, as before its NetworkPolicies are
		// there, the kernel would give MPTCP up for an hour.
		{"a pod tries MPTCP again after a minute", "net.mptcp.blackhole_timeout", map[string]string{"3600": "60", "61": "60", "60": "60", "10": "10", "0": "0"}},
		{"ICMP errors make no packet smaller than IPv6 allows", "net.ipv4.route.min_pmtu", map[string]string{"552": "1280", "1279": "1280", "1280": "1280", "1400": "1400"}},
	}
	for _, test := range tests {
		for before, wanted := range test.wanted {
			t.Run(test.name+"/"+before, func(t *testing.T) {
				t.Parallel()
				testBound(t, test.setting, before, wanted)
			})
		}
	}
}

// settingOf is what a host's setting is.
func settingOf(t *testing.T, host *pair.Host, setting string) string {
	t.Helper()
	value, err := host.Run("sysctl", "-n", setting)
	require.NoError(t, err)
	return strings.TrimSpace(value)
}

func testBound(t *testing.T, setting, before, wanted string) {
	t.Helper()
	client, _ := pair.New(t)
	read := func() string { return settingOf(t, client, setting) }
	if _, err := os.Stat(filepath.Join("/proc/sys", strings.ReplaceAll(setting, ".", "/"))); errors.Is(err, os.ErrNotExist) {
		t.Skipf("this kernel does not have %s", setting)
	}
	_, err := client.Run("sysctl", "-w", setting+"="+before)
	require.NoError(t, err)
	statePath := t.TempDir()
	first := open(t, client, statePath)
	require.NoError(t, first.Configure(context.Background(), settings(client, kernel, 3)))
	require.Equal(t, wanted, read())
	require.NoError(t, first.Close())
	second := open(t, client, statePath)
	defer second.Close()
	require.NoError(t, second.Configure(context.Background(), settings(client, agent, 3)))
	require.Equal(t, wanted, read())
	require.NoError(t, second.Restore(context.Background()))
	require.Equal(t, before, read())
}

// An error that a packet was too large, which names an open socket, is believed, whoever sent it.
func TestForgedErrorsMakePacketsNoSmallerThanIPv6Allows(t *testing.T) {
	client, server := pair.New(t)
	n := open(t, client, t.TempDir())
	defer n.Close()
	require.NoError(t, n.Configure(context.Background(), settings(client, kernel, 3)))
	const claimed = 600
	forgeTooLarge(t, client, server, claimed)
	pair.Eventually(t, func() bool { return strings.Contains(routeTo(t, client, server), "mtu lock 1280") }, func() string {
		return "the error was not believed at all: " + routeTo(t, client, server)
	})
	require.NoError(t, n.Restore(context.Background()))
	_, err := client.Run("ip", "route", "flush", "cache")
	require.NoError(t, err)
	forgeTooLarge(t, client, server, claimed)
	pair.Eventually(t, func() bool { return strings.Contains(routeTo(t, client, server), "mtu 600") }, func() string {
		return "the kernel has a bound of its own now: " + routeTo(t, client, server)
	})
}

func routeTo(t *testing.T, client, server *pair.Host) string {
	t.Helper()
	route, err := client.Run("ip", "route", "get", server.IPv4.String())
	require.NoError(t, err)
	return route
}

// forgeTooLarge has the server tell the client of a datagram that it never got.
func forgeTooLarge(t *testing.T, client, server *pair.Host, mtu uint16) {
	t.Helper()
	const port = 9
	var from netip.AddrPort
	require.NoError(t, client.Do(func() error {
		socket, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: server.IPv4.AsSlice(), Port: port})
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = socket.Close() })
		from = netip.AddrPortFrom(client.IPv4, uint16(socket.LocalAddr().(*net.UDPAddr).Port))
		return nil
	}))
	buffer := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeDestinationUnreachable, layers.ICMPv4CodeFragmentationNeeded), Seq: mtu},
		&layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: client.IPv4.AsSlice(), DstIP: server.IPv4.AsSlice()},
		gopacket.Payload(binary.BigEndian.AppendUint64(nil, uint64(from.Port())<<48|port<<32|1480<<16)),
	))
	require.NoError(t, server.Do(func() error {
		raw, err := net.ListenPacket("ip4:icmp", server.IPv4.String())
		if err != nil {
			return err
		}
		defer raw.Close() //nolint:errcheck // it was only sent by
		_, err = raw.WriteTo(buffer.Bytes(), &net.IPAddr{IP: client.IPv4.AsSlice()})
		return err
	}))
}
