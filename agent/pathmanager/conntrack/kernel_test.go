// SPDX-License-Identifier: Apache-2.0

package conntrack_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/pathmanager/conntrack"
	"braid.dev/braid/internal/lab/pair"
)

// translate makes the host send what goes to a Service to a backend.
func translate(t *testing.T, host *pair.Host, service, backend netip.AddrPort) {
	t.Helper()
	family := "ip"
	if service.Addr().Is6() {
		family = "ip6"
	}
	rules := fmt.Sprintf(`table %[1]s services {
		chain output {
			type nat hook output priority -100
			%[1]s daddr %[2]s tcp dport %[3]d dnat to %[4]s
		}
	}`, family, service.Addr(), service.Port(), backend)
	path := filepath.Join(t.TempDir(), "rules")
	require.NoError(t, os.WriteFile(path, []byte(rules), 0o600))
	_, err := host.Run("nft", "-f", path)
	require.NoError(t, err)
}

func open(t *testing.T, host *pair.Host) *conntrack.Table {
	t.Helper()
	file := host.Open()
	defer file.Close()
	table, err := conntrack.Dial(int(file.Fd()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, table.Close()) })
	return table
}

func TestTheBackendOfAServiceIsFound(t *testing.T) {
	for version, address := range map[int]string{4: "10.9.0.77", 6: "fd09::77"} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) {
			client, server := pair.New(t)
			backend := server.Serve(version)
			service := netip.AddrPortFrom(netip.MustParseAddr(address), 80)
			translate(t, client, service, backend)
			table := open(t, client)
			for asked, want := range map[netip.AddrPort]netip.AddrPort{service: backend, backend: backend} {
				local := netip.MustParseAddrPort(client.Connect(asked).LocalAddr().String())
				got, found, err := table.Destination(local, asked)
				require.NoError(t, err)
				if !found || got != want {
					t.Errorf("%s answers for %s (found: %t), wanted %s", got, asked, found, want)
				}
			}
		})
	}
}

func TestAConnectionThatIsNotTrackedIsNotFound(t *testing.T) {
	client, server := pair.New(t)
	for _, version := range []int{4, 6} {
		local := netip.AddrPortFrom(client.Address(version), 40000)
		_, found, err := open(t, client).Destination(local, netip.AddrPortFrom(server.Address(version), 80))
		require.NoError(t, err)
		require.False(t, found)
	}
}

func TestAMasqueradedConnectionIsFoundAsOthersSeeIt(t *testing.T) {
	client, server := pair.New(t)
	at, seen := server.Serve(4), netip.AddrPortFrom(client.Address(4), 41000)
	rules := fmt.Sprintf(`table ip outside {
		chain out {
			type nat hook postrouting priority 100
			ip daddr %s tcp dport %d snat to %s
		}
	}`, at.Addr(), at.Port(), seen)
	path := filepath.Join(t.TempDir(), "rules")
	require.NoError(t, os.WriteFile(path, []byte(rules), 0o600))
	_, err := client.Run("nft", "-f", path)
	require.NoError(t, err)
	table := open(t, client)
	local := netip.MustParseAddrPort(client.Connect(at).LocalAddr().String())
	require.NotEqual(t, seen, local)
	got, found, err := table.Find(local, at)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, conntrack.Ends{Local: seen, Remote: at}, got)
}
