// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"

	"braid.dev/braid/bpf/uplink"
)

// ways tells whether the programs would have a flow's next packet leave its own path, because
// that is dead, or because a preference of the flow's pod says so. The zero value says that
// they would not. It is for one goroutine.
type ways struct {
	peers, preferences *ebpf.Map
	up                 uint32
	// read and preferring are what was looked up: many flows ask for the same.
	read       map[uint16]uint8
	preferring map[uint32]bool
	err        error // the first
}

func newWays(node, peers, preferences *ebpf.Map) *ways {
	w := &ways{peers: peers, preferences: preferences, read: map[uint16]uint8{}, preferring: map[uint32]bool{}}
	var here uplink.ToUplinkNode
	if w.lookup(node, uint32(0), &here) {
		w.up = here.PathsUp
	}
	return w
}

// lookup is false where there is no such entry, or no map.
func (w *ways) lookup(m *ebpf.Map, key, value any) bool {
	if m == nil {
		return false
	}
	err := m.Lookup(key, value)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) && w.err == nil {
		w.err = fmt.Errorf("reading which paths flows may take: %w", err)
	}
	return err == nil
}

// leads is false for a path of a flow that is dead to its peer, or down here, while another
// one is not.
func (w *ways) leads(flow *uplink.ToUplinkFlow) bool {
	usable, known := w.read[flow.Peer]
	if !known {
		var peer uplink.ToUplinkPeer
		if !w.lookup(w.peers, uint32(flow.Peer), &peer) {
			return true
		}
		usable = (peer.Ipv4Paths | peer.Ipv6Paths) & uint8(w.up)
		w.read[flow.Peer] = usable
	}
	return usable == 0 || usable>>flow.Path&1 != 0
}

// prefers is true where the flow's pod has a preference.
func (w *ways) prefers(flow *uplink.ToUplinkFlow) bool {
	if is, known := w.preferring[flow.Endpoint]; known {
		return is
	}
	var preference uplink.ToUplinkPreference
	is := w.lookup(w.preferences, flow.Endpoint, &preference) && preference.Flags&uplink.PreferenceSet != 0
	w.preferring[flow.Endpoint] = is
	return is
}

// openWays opens these maps by their pins; those that are not there are nil.
func (d *Datapath) openWays() (node, peers, preferences *ebpf.Map, err error) {
	for name, to := range map[string]**ebpf.Map{uplink.ToUplinkMapNode: &node, uplink.ToUplinkMapPeers: &peers, uplink.ToUplinkMapPreferences: &preferences} {
		m, failed := ebpf.LoadPinnedMap(filepath.Join(d.loaded.Directory(), name), &ebpf.LoadPinOptions{ReadOnly: true})
		if failed != nil && !errors.Is(failed, os.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("failed to open the pinned map %s: %w", name, failed))
		} else if failed == nil {
			*to = m
		}
	}
	return node, peers, preferences, err
}
