// SPDX-License-Identifier: Apache-2.0

// Package guestline is what a lab and its virtual machines tell each other.
package guestline

// Parameters of the kernel's command line.
const (
	Address = "braid.address" // the machine's own, IPv4
	Gateway = "braid.gateway"
	Segment = "braid.segment" // how large a packet of segmentation offload may be, in bytes
)

// AgentPort is the channel of the machine's guest agent, where it has one, and Agent the agent.
const (
	AgentPort = "org.qemu.guest_agent.0"
	Agent     = "/usr/sbin/qemu-ga"
)

// Traffic is the traffic generator in the machine.
const Traffic = "/traffic"

// Order is what the host asks for, as JSON on a line.
type Order struct {
	// Arguments of the traffic generator.
	Arguments []string `json:"arguments"`
	// Serves has it run on; the answer comes with its first line.
	Serves bool `json:"serves,omitempty"`
	// Now is the host's clock: traffic.Now.
	Now int64 `json:"now"`
}

// Answer is what the machine says to an order, on a line, and once when it is up.
type Answer struct {
	Output string `json:"output"`
	Error  string `json:"error,omitempty"`
}
