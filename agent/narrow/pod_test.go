// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/internal/lab/pair"
)

// The uplinks know a backend where the pod knows the Service.
func TestASubflowToAServiceIsFoundByItsOwnEnd(t *testing.T) {
	client, server := pair.New(t)
	connection := client.Connect(server.Serve(4))
	ends := func(of net.Addr) netip.AddrPort { return of.(*net.TCPAddr).AddrPort() }
	local, remote := ends(connection.LocalAddr()), ends(connection.RemoteAddr())
	backend := netip.MustParseAddrPort("192.0.2.7:8080")

	cases := []struct {
		name  string
		host  *pair.Host
		flow  datapath.BusyFlow
		known bool
	}{
		{"as both know it", client, datapath.BusyFlow{Local: local, Remote: remote}, true},
		{"translated", client, datapath.BusyFlow{Local: local, Remote: backend}, true},
		{"of a port that nobody has", client, datapath.BusyFlow{Local: netip.AddrPortFrom(local.Addr(), 1), Remote: backend}, false},
		{"at the server, whose own end all of its connections have", server, datapath.BusyFlow{Local: remote, Remote: backend}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			opened, err := openPod(c.host.Path())
			require.NoError(t, err)
			defer opened.Close()
			for range 2 { // the second time it is remembered
				byToken, ended, err := opened.subflows(time.Now(), []datapath.BusyFlow{c.flow})
				require.NoError(t, err)
				require.Equal(t, c.known, len(byToken) == 1)
				require.Equal(t, !c.known, len(ended) == 1)
			}
		})
	}
}

func TestAPodThatHasEndedIsNoError(t *testing.T) {
	opened, err := openPod(t.TempDir() + "/gone")
	require.NoError(t, err)
	require.Nil(t, opened)
}
