// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/endpoint"
)

// half is the endpoint half, loaded apart from any node's, with one endpoint and its
// chain.
type half struct {
	from, to *ebpf.Program
	maps     map[string]*ebpf.Map
	both     [2]*ebpf.Collection
}

const (
	halfEndpoint = 1
	halfSlot     = 1
	halfWord     = halfSlot | 1<<32 // slot and row 1 and 0, epoch 1
)

// newHalf loads the programs and gives an interface a chain.
func newHalf(ifindex int, rules []v1alpha1.PlanRule) (*half, error) {
	h := &half{}
	if err := h.load(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	if err := h.give(ifindex, rules); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *half) Close() error {
	for _, collection := range h.both {
		if collection != nil {
			collection.Close()
		}
	}
	return nil
}

// load loads both programs with the same maps.
func (h *half) load() error {
	for i, read := range []func() (*ebpf.CollectionSpec, error){endpoint.LoadFromEndpoint, endpoint.LoadToEndpoint} {
		spec, err := read()
		if err != nil {
			return fmt.Errorf("reading the endpoint half: %w", err)
		}
		shared := maps.Clone(h.maps)
		maps.DeleteFunc(shared, func(name string, _ *ebpf.Map) bool { return spec.Maps[name] == nil || strings.HasPrefix(name, ".") })
		if h.both[i], err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared}); err != nil {
			return fmt.Errorf("loading the endpoint half: %w", err)
		}
		if h.maps == nil {
			h.maps = h.both[i].Maps
		}
	}
	h.from, h.to = h.both[0].Programs[endpoint.FromEndpointProgFromEndpoint], h.both[1].Programs[endpoint.ToEndpointProgToEndpoint]
	return nil
}

// give compiles the rules and attaches their chain to an interface.
func (h *half) give(ifindex int, rules []v1alpha1.PlanRule) error {
	chain, err := chains.Compile(rules, chains.Surroundings{})
	if err != nil {
		return err
	}
	spec, err := endpoint.LoadFromEndpoint()
	if err != nil {
		return fmt.Errorf("reading from_endpoint: %w", err)
	}
	inner, err := ebpf.NewMap(spec.Maps[endpoint.FromEndpointMapChains].InnerMap)
	if err != nil {
		return fmt.Errorf("making a chain: %w", err)
	}
	defer inner.Close()
	if err := errors.Join(inner.Put(uint32(0), chain), h.maps["chains"].Put(uint32(halfSlot), inner)); err != nil {
		return fmt.Errorf("writing a chain: %w", err)
	}
	attachment := endpoint.FromEndpointAttachment{Interface: uint32(ifindex), Endpoint: halfEndpoint, Chain: halfWord}
	if err := h.maps["attachments"].Put(uint32(ifindex), attachment); err != nil {
		return fmt.Errorf("attaching a chain: %w", err)
	}
	return nil
}

// know writes the record of a subflow as if its beginning had been seen: its token,
// the scale of its windows, and whether its sender's socket is paced.
func (h *half) know(local, remote netip.AddrPort, token uint32, paced bool) error {
	const (
		scale = 1 + 7
		rtt   = 5000 // us
	)
	key := endpoint.FromEndpointSubflowKey{Endpoint: halfEndpoint, LocalPort: bpf.Port(local.Port()), RemotePort: bpf.Port(remote.Port())}
	key.Local.Word, key.Remote.Word = bpf.Words(local.Addr()), bpf.Words(remote.Addr())
	record := endpoint.FromEndpointSubflow{Token: token, Path: endpoint.PathUnknown, Known: endpoint.KnownSYN | endpoint.KnownSYNACK | endpoint.KnownMPTCP | endpoint.KnownHandshake, SeededRtt: rtt}
	record.Traffic[0].WindowScale, record.Traffic[1].WindowScale = scale, scale
	if paced {
		record.Paced = 1
	}
	connection := endpoint.FromEndpointMptcpConnection{Token: token}
	err := errors.Join(
		h.maps["subflows"].Put(key, record),
		h.maps["mptcp_connections"].Put(endpoint.FromEndpointMptcpConnectionKey{Endpoint: halfEndpoint, Token: token}, connection),
	)
	if err != nil {
		return fmt.Errorf("writing the record of a subflow: %w", err)
	}
	return nil
}

// hits are the packets that the first rule matched.
func (h *half) hits() (uint64, error) {
	var counters endpoint.FromEndpointCounters
	if err := h.maps["chain_counters"].Lookup(uint32(0), &counters); err != nil {
		return 0, fmt.Errorf("reading counters: %w", err)
	}
	return counters.Rule[0].Hits, nil
}
