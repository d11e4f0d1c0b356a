// SPDX-License-Identifier: Apache-2.0

package atnic

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

// driver is one whose NICs a machine has for tests.
type driver struct {
	name                  string
	hardwareAddress, peer string
}

var (
	virtio = driver{"virtio", network.SpareVirtio, network.SpareVirtioPeer}
	e1000  = driver{"e1000", network.SpareE1000, network.SpareE1000Peer}
)

// newDriverLab is a lab whose nodes reach each other by NICs of this driver.
func newDriverLab(t *testing.T, by driver) *lab {
	t.Helper()
	l := newLab(t)
	for i, hardwareAddress := range []string{by.hardwareAddress, by.peer} {
		err := l.Nodes[i].TakeNIC(hardwareAddress, by.name, fmt.Sprintf("192.0.2.%d/24", i+1), fmt.Sprintf("2001:db8::%d/64", i+1))
		if errors.Is(err, network.ErrNoSpareNIC) {
			t.Skip(err)
		}
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Nodes[i].ReturnNIC(by.name)) })
	}
	for i, end := range l.Nodes {
		for version, gateway := range map[int]string{4: "192.0.2.%d", 6: "2001:db8::%d"} {
			route := network.Route{Destination: l.Nodes[1-i].PodCIDR(version), Gateway: fmt.Sprintf(gateway, 2-i), Interface: by.name}
			require.NoError(t, end.AddRoute(route))
		}
	}
	l.nics = []node.Path{l.pathOf(by.name)}
	t.Cleanup(func() { l.inNode(func() error { return l.part.Remove(context.Background()) }) })
	return l
}

// framesOf are the frames that came in by one of the first node's NICs.
func (l *lab) framesOf(nic string) (frames uint64) {
	l.t.Helper()
	l.inNode(func() error {
		device, err := netlink.LinkByName(nic)
		if err == nil {
			frames = device.Attrs().Statistics.RxPackets
		}
		return err
	})
	return frames
}

func TestWhatRulesDropEndsAtTheNICOfVirtio(t *testing.T) {
	l := newDriverLab(t, virtio)
	l.apply(drop("closed", toClosedPort()))
	require.Equal(t, v1alpha1.NodePathXDP{State: v1alpha1.XDPNative}, l.state("virtio"))
	require.Equal(t, "at_nic", l.atHook("virtio"))
	for _, address := range l.addresses() {
		l.serve(address)
		frames := l.framesOf("virtio")
		require.NoError(t, l.talk(address, "5001"), "what no rule drops, to %s", address)
		require.Greater(t, l.framesOf("virtio"), frames, "frames that came in by that NIC")
		before := l.droppedAtNIC()
		require.Error(t, l.talk(address, "5002"))
		require.Greater(t, l.droppedAtNIC(), before, "SYNs to %s that the NIC dropped", address)
	}
	require.Equal(t, l.droppedAtNIC(), l.hits(), "each was counted once, by its rule")
	l.apply()
	for _, address := range l.addresses() {
		require.NoError(t, l.talk(address, "5002"), "without the rule")
	}
}

// The kernel would run the program for such a driver too, in its generic mode, after it has
// made its packet of the frame.
func TestRulesDropAtThePodBehindANICWhoseDriverRunsNoPrograms(t *testing.T) {
	l := newDriverLab(t, e1000)
	l.apply(drop("closed", toClosedPort()))
	is := l.state("e1000")
	require.Equal(t, v1alpha1.XDPUnsupported, is.State)
	require.Contains(t, is.Message, "no native XDP: the driver refuses it")
	require.Empty(t, l.atHook("e1000"))
	for _, address := range l.addresses() {
		l.serve(address)
		frames := l.framesOf("e1000")
		require.NoError(t, l.talk(address, "5001"))
		require.Greater(t, l.framesOf("e1000"), frames, "frames that came in by that NIC")
		before := l.hits()
		require.Error(t, l.talk(address, "5002"))
		require.Greater(t, l.hits(), before, "SYNs to %s that the rule dropped", address)
	}
	require.Zero(t, l.droppedAtNIC())
}
