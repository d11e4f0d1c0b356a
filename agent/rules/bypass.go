// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// bypass is what is wrong with rules where a cluster network's programs put packets into
// the pod and past its interface, as Cilium's do with eBPF host routing.
const bypass = "what the pod receives does not pass its interface (bpf_redirect_peer, as with Cilium's eBPF host routing): " +
	"the rule does not see it"

// pathless is what is wrong with rules that match paths in Cilium's overlays: its program at
// the NIC wipes the note of the path (tc_index), and afterwards the tunnel's device is all
// that can be known.
const pathless = "in Cilium's overlay it is not known by which path packets come in: the rule matches no path"

// addHidden says what the cluster network hides from an endpoint's rules. The kernel is asked
// only for rules that it matters to.
func addHidden(statuses []v1alpha1.RuleStatus, attached *chains.Attached, overlaid bool) []v1alpha1.RuleStatus {
	if overlaid && slices.ContainsFunc(attached.Rules, matchesPaths) && isCiliums(attached.Interface) {
		statuses = addTo(statuses, attached.Rules, matchesPaths, pathless)
	}
	if slices.ContainsFunc(attached.Rules, isForReceived) && isBypassed(attached.Interface) {
		statuses = addTo(statuses, attached.Rules, isForReceived, bypass)
	}
	return statuses
}

func addTo(statuses []v1alpha1.RuleStatus, rules []v1alpha1.PlanRule, concerned func(v1alpha1.PlanRule) bool, message string) []v1alpha1.RuleStatus {
	for i := range rules {
		if concerned(rules[i]) {
			statuses = addProblem(statuses, &rules[i], message)
		}
	}
	return statuses
}

func matchesPaths(rule v1alpha1.PlanRule) bool { return rule.Match != nil && len(rule.Match.Paths) > 0 }

// isForReceived is of rules for nothing else. Those for both directions do half of what they
// are for, or all of it, as paced rates.
func isForReceived(rule v1alpha1.PlanRule) bool {
	return rule.Match != nil && rule.Match.Direction == v1alpha1.DirectionToEndpoint
}

func hasOverlay(model *node.Model) bool {
	for i := range model.Tunnels {
		if model.Tunnels[i].Kind.Steered() {
			return true
		}
	}
	return false
}

// enoughSent packets of a pod are answered by some, unless the answers come another way.
const enoughSent, answeredOnce = 1000, 100

// isBypassed is whether the host's end of a pod's interface sends the pod next to nothing,
// though the pod sends and a program of Cilium's takes what it sends.
func isBypassed(index int) bool {
	device, err := netlink.LinkByIndex(index)
	if err != nil || device.Attrs().Statistics == nil {
		return false
	}
	return passItBy(device.Attrs().Statistics) && isCiliums(index)
}

func passItBy(counted *netlink.LinkStatistics) bool {
	return counted.RxPackets >= enoughSent && counted.TxPackets < counted.RxPackets/answeredOnce
}

// isCiliums is whether Cilium has a program at the interface.
func isCiliums(index int) bool {
	for _, id := range attach.ProgramsAt(index, ebpf.AttachTCXIngress) {
		opened, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it is gone meanwhile
		}
		info, err := opened.Info()
		err = errors.Join(err, opened.Close())
		if err == nil && strings.HasPrefix(info.Name, "cil_") {
			return true
		}
	}
	return false
}
