// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
)

// claimAddresses: whatever node3 says that it is, it sees no packet of the victims.
func claimAddresses(t *testing.T, s *scene) {
	t.Cleanup(func() { s.restoreNode(t) })
	other := s.Network.Nodes[1]
	claims := []func(*v1alpha1.MPTCPNodeStatus){
		func(status *v1alpha1.MPTCPNodeStatus) {
			status.Addresses = []string{other.Address(0, 4), other.Address(0, 6), s.Network.Pod("server").IPv4}
		},
		func(status *v1alpha1.MPTCPNodeStatus) {
			for path := range status.Paths {
				status.Paths[path].Addresses = []string{other.Address(path, 4), other.Address(path, 6)}
			}
		},
		func(status *v1alpha1.MPTCPNodeStatus) {
			status.Addresses = []string{"0.0.0.0", "127.0.0.1", "169.254.1.1", "224.0.0.1", "::", s.Network.Nodes[0].Address(0, 4)}
		},
		func(status *v1alpha1.MPTCPNodeStatus) {
			for path := range status.Paths {
				status.Paths[path].Interface = "../../lo"
				status.Paths[path].Addresses = []string{"0.0.0.0", "127.0.0.1", "255.255.255.255"}
			}
		},
	}
	client, server := s.Network.Pod("client"), s.Network.Pod("server")
	seen := s.sniff(t)
	for _, claim := range claims {
		if err := s.reportAs(t, func(own *v1alpha1.MPTCPNode) { claim(&own.Status) }); err != nil {
			t.Logf("refused: %v", err)
			continue
		}
		time.Sleep(400 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		connection, err := client.Dial(ctx, "tcp", net.JoinHostPort(server.IPv4, fmt.Sprint(lab.TrafficPort)))
		cancel()
		if err != nil {
			s.escaped("the victim cannot connect: %v", err)
			continue
		}
		if err := connection.Close(); err != nil {
			t.Error(err)
		}
	}
	if packets := seen(); packets > 0 {
		s.escaped("%d packets of the victims came to node3", packets)
	}
}

// sniff counts packets at node3 that have the victims' addresses.
func (s *scene) sniff(t *testing.T) (stop func() int) {
	t.Helper()
	socket := testlab.SocketIn(t, s.neighbour(), unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0x300)
	victims := []netip.Addr{netip.MustParseAddr(s.Network.Pod("client").IPv4), netip.MustParseAddr(s.Network.Pod("server").IPv4)}
	done, count := make(chan struct{}), make(chan int)
	go func() {
		defer unix.Close(socket)
		buffer, seen := make([]byte, 2048), 0
		for {
			n, _, err := unix.Recvfrom(socket, buffer, 0)
			if err == nil && n >= 20 && buffer[0]>>4 == 4 &&
				slices.Contains(victims, netip.AddrFrom4([4]byte(buffer[12:16]))) && slices.Contains(victims, netip.AddrFrom4([4]byte(buffer[16:20]))) {
				seen++
			}
			if err == nil {
				continue
			}
			select {
			case <-done:
				count <- seen
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() int { close(done); return <-count }
}
