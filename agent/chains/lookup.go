// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Subflow is the record of one subflow of the endpoint with this number; nil when
// it is not known.
func (c *Chains) Subflow(number uint32, local, remote netip.AddrPort) (*SubflowRecord, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.objects == nil {
		return nil, nil
	}
	record := &SubflowRecord{}
	err := c.objects.maps["subflows"].Lookup(keyOf(number, local, remote), record)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading a subflow: %w", err)
	}
	return record, nil
}

func keyOf(number uint32, local, remote netip.AddrPort) SubflowKey {
	key := SubflowKey{Endpoint: number}
	key.Local.Word, key.LocalPort = toAddress(local.Addr().As16()).Word, toPort(local.Port())
	key.Remote.Word, key.RemotePort = toAddress(remote.Addr().As16()).Word, toPort(remote.Port())
	return key
}

// toPort is a port in network byte order.
func toPort(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}
