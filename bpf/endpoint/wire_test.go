// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// attachToWire attaches from_endpoint by a filter, which every kernel knows.
func (h *host) attachToWire(t *testing.T) {
	t.Helper()
	handle, err := h.Handle()
	require.NoError(t, err)
	defer handle.Close()
	link, err := handle.LinkByIndex(int(h.pod))
	require.NoError(t, err)
	require.NoError(t, handle.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: int(h.pod), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}))
	require.NoError(t, handle.FilterAdd(&netlink.BpfFilter{
		FilterAttrs:  netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd:           h.from.FD(),
		Name:         "from_endpoint",
		DirectAction: true,
	}))
}

func send(t *testing.T, ns *network.Namespace, nic string, frame []byte) {
	t.Helper()
	index, err := ns.Index(nic)
	require.NoError(t, err)
	require.NoError(t, ns.Do(func() error {
		socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		return unix.Sendto(socket, frame, 0, &unix.SockaddrLinklayer{Ifindex: index})
	}))
}

// The kernel takes the tag of what comes in out of the frame.
func TestATagBesideTheFrame(t *testing.T) {
	h := newHost(t)
	h.attachToWire(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.use(t, dropping(all(is(types(typePriority)), is(port(selectRemotePort, 80)))))
		s := e.out().carrying(timestamps(1, 1), dataAck(), priority(1)).with(func(s *segment) { s.vlan = 7 })
		send(t, h.peer, "pod", s.frame())
		testutil.Eventually(t, 5*time.Second, "the tagged packet is dropped", func() bool { return h.counters(t).Rule[0].Acted > 0 })
	})
}
