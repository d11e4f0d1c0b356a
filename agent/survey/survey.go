// SPDX-License-Identifier: Apache-2.0

// Package survey tells what a node has to offer before any path is declared: its NICs, who
// answers on them, and which way packets to other nodes' pods take. It changes nothing.
package survey

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/internal/agentapi"
)

// Question is what to find out beside the NICs.
type Question struct {
	// Ask are addresses that may answer, each by a NIC.
	Ask []Target
	// Route are addresses whose way is wanted.
	Route []netip.Addr
}

// Target is an address by a NIC, written as address%NIC.
type Target struct {
	Address netip.Addr
	NIC     string
}

// ParseTarget reads ADDRESS%NIC.
func ParseTarget(text string) (Target, error) {
	address, nic, found := strings.Cut(text, "%")
	if !found || nic == "" {
		return Target{}, fmt.Errorf("%q: must be an address, a percent sign and the name of a NIC", text)
	}
	parsed, err := netip.ParseAddr(address)
	if err != nil {
		return Target{}, fmt.Errorf("%q: %w", text, err)
	}
	return Target{parsed.Unmap(), nic}, nil
}

// Look surveys the network namespace that the caller is in.
func Look(ctx context.Context, question Question) (*agentapi.Survey, error) {
	interfaces, err := paths.Interfaces()
	if err != nil {
		return nil, err
	}
	found := &agentapi.Survey{Time: time.Now(), Kernel: release(), MPTCP: mptcpFault(os.ReadFile("/proc/sys/net/mptcp/enabled")), NICs: []agentapi.NIC{}}
	for i := range interfaces {
		if one := &interfaces[i]; !one.Loopback && !one.PodLike {
			found.NICs = append(found.NICs, nicOf(one))
		}
	}
	if found.Answers, err = ask(ctx, question.Ask, interfaces); err != nil {
		return nil, err
	}
	for _, to := range question.Route {
		found.Routes = append(found.Routes, routeTo(to, interfaces))
	}
	return found, nil
}

func release() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}

// mptcpFault reads net.mptcp.enabled, which new network namespaces do not inherit: where
// it is 0 here, somebody switched it off, and may do so in pods.
func mptcpFault(enabled []byte, err error) string {
	switch {
	case err != nil:
		return "the kernel has no MPTCP"
	case strings.TrimSpace(string(enabled)) == "0":
		return "net.mptcp.enabled is 0"
	}
	return ""
}

func nicOf(one *paths.Interface) agentapi.NIC {
	attributes := one.Link.Attrs()
	nic := agentapi.NIC{
		Name: one.Name, Kind: one.Link.Type(), NoPath: noPath(one),
		SetUp: attributes.RawFlags&unix.IFF_UP != 0, Carrier: attributes.RawFlags&unix.IFF_LOWER_UP != 0,
		MTU: one.MTU, Addresses: one.Addresses, Gateways: one.Gateways, ReversePathFilter: reversePathFilter(one.Name),
	}
	if isHardware(nic.Kind) {
		nic.SpeedMbit = speed(one.Name)
	}
	if counted := attributes.Statistics; counted != nil {
		nic.SentBytes, nic.ReceivedBytes = counted.TxBytes, counted.RxBytes
	}
	return nic
}

// noPath says why an interface cannot be on a path; empty where it can.
func noPath(one *paths.Interface) string {
	switch {
	case one.Tunnel:
		return "it encapsulates packets"
	case one.Link.Attrs().MasterIndex != 0:
		return "it belongs to a bridge or bond: that is what can be on a path"
	}
	return ""
}

// isHardware: the speed that virtual links name is made up.
func isHardware(kind string) bool { return kind == "device" || kind == "bond" || kind == "vlan" }

// speed is in Mbit/s; 0 where the driver does not know it, or says -1 without a carrier.
func speed(nic string) int64 {
	known, err := readNumber(filepath.Join("/sys/class/net", nic, "speed"))
	if err != nil {
		return 0
	}
	return max(0, known)
}

// reversePathFilter is what the kernel goes by.
func reversePathFilter(nic string) int {
	const directory = "/proc/sys/net/ipv4/conf"
	all, _ := readNumber(filepath.Join(directory, "all", "rp_filter")) // a kernel without IPv4 filters nothing
	own, _ := readNumber(filepath.Join(directory, nic, "rp_filter"))
	return int(max(all, own))
}

func readNumber(file string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
