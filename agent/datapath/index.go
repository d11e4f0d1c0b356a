// SPDX-License-Identifier: Apache-2.0

package datapath

import "net/netip"

// FlowIndex finds flows by the ends of a pod's socket.
type FlowIndex struct {
	both  map[flowEnds]*Flow
	local map[netip.AddrPort]*Flow
}

type flowEnds struct{ local, remote netip.AddrPort }

// IndexFlows refers to the list from then on.
func IndexFlows(flows []Flow) FlowIndex {
	index := FlowIndex{both: make(map[flowEnds]*Flow, len(flows)), local: map[netip.AddrPort]*Flow{}}
	for i := range flows {
		flow := &flows[i]
		index.both[flowEnds{flow.Local, flow.Remote}] = flow
		if !flow.Initiator || flow.Ended {
			continue
		}
		if _, taken := index.local[flow.Local]; taken {
			index.local[flow.Local] = nil // several: nobody knows which
		} else {
			index.local[flow.Local] = flow
		}
	}
	return index
}

// Find returns the flow of a socket with these ends; nil where there is none. A
// connection to a Service has the Service's address for the pod and a backend's for the
// uplinks: it is found by its own end, where one flow alone has that.
func (i FlowIndex) Find(local, remote netip.AddrPort) *Flow {
	if flow := i.both[flowEnds{local, remote}]; flow != nil {
		return flow
	}
	return i.local[local]
}
