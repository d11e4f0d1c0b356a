// SPDX-License-Identifier: Apache-2.0

package agentapi

import (
	"net/netip"
	"time"
)

// Survey is what a node is, before any path is declared: what `braid-agent survey` prints.
type Survey struct {
	// Time is when the NICs were read.
	Time time.Time `json:"time"`
	// Kernel is the release, as `uname -r` prints it.
	Kernel string `json:"kernel"`
	// MPTCP says why new connections of the node cannot speak MPTCP; empty where they can.
	MPTCP string `json:"mptcp,omitempty"`
	// NICs are all interfaces that could be on a path, and those that could not with the
	// reason, sorted by name. Pods' own are left out.
	NICs []NIC `json:"nics"`
	// Answers are to what was asked by `--ask`.
	Answers []Answer `json:"answers,omitempty"`
	// Routes are to what was asked by `--route`.
	Routes []Route `json:"routes,omitempty"`
}

// NIC is an interface of a node.
type NIC struct {
	Name string `json:"name"`
	// Kind is the kernel's name for its type: device for hardware, vlan, bond, bridge.
	Kind string `json:"kind"`
	// NoPath says why it cannot be on a path, whatever its addresses; empty where it can.
	NoPath string `json:"noPath,omitempty"`
	// SetUp by an admin; Carrier: something is at the other end.
	SetUp   bool `json:"setUp"`
	Carrier bool `json:"carrier"`
	MTU     int  `json:"mtu"`
	// SpeedMbit is the rate of the link; 0 where the driver does not know it.
	SpeedMbit int64 `json:"speedMbit,omitempty"`
	// Addresses are the usable global ones with the lengths of their subnets.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// ReversePathFilter is what the kernel goes by: the larger one of all and its own.
	ReversePathFilter int `json:"reversePathFilter"`
	// Gateways are next hops of default routes over it.
	Gateways []netip.Addr `json:"gateways,omitempty"`
	// SentBytes and ReceivedBytes count what it carried since it exists.
	SentBytes     uint64 `json:"sentBytes"`
	ReceivedBytes uint64 `json:"receivedBytes"`
}

// Answer says whether an address answers on a NIC.
type Answer struct {
	NIC      string     `json:"nic"`
	Address  netip.Addr `json:"address"`
	Answered bool       `json:"answered"`
	// Router is the next hop of the NIC's own route there; not valid where the address is on
	// the NIC's link, or nothing leads to it.
	Router netip.Addr `json:"router,omitzero"`
	// PathMTU is the largest packet that gets there, where a router says that those of the
	// NIC's size do not.
	PathMTU int `json:"pathMTU,omitempty"`
	// Message says why it could not even be asked.
	Message string `json:"message,omitempty"`
}

// Route is the way that packets to an address take.
type Route struct {
	To netip.Addr `json:"to"`
	// NIC that they leave by, and the next hop, which is not valid where there is none.
	NIC     string     `json:"nic,omitempty"`
	Gateway netip.Addr `json:"gateway,omitzero"`
	// Tunnel: they are encapsulated there, by which kind of overlay; Steered:
	// connections within are spread nevertheless.
	Tunnel  bool   `json:"tunnel,omitempty"`
	Overlay string `json:"overlay,omitempty"`
	Steered bool   `json:"steered,omitempty"`
	// Message says why there is no route.
	Message string `json:"message,omitempty"`
}

// Transfer is what a connection of `braid-agent transfer` did, up to now or to its end.
type Transfer struct {
	// Milliseconds since it began.
	Milliseconds int64 `json:"milliseconds"`
	// SentBytes were taken by the socket.
	SentBytes uint64 `json:"sentBytes"`
	// LongestStandstillMilliseconds is the longest time in which the socket took nothing.
	LongestStandstillMilliseconds int64 `json:"longestStandstillMilliseconds"`
	// Multipath: the connection speaks MPTCP, and has not fallen back to TCP.
	Multipath bool `json:"multipath"`
	// Ended: everything was sent, and ReceivedBytes is what the other end counted.
	Ended         bool   `json:"ended,omitempty"`
	ReceivedBytes uint64 `json:"receivedBytes,omitempty"`
	// Error says what broke the connection, or kept it from beginning.
	Error string `json:"error,omitempty"`
}
