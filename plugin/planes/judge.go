// SPDX-License-Identifier: Apache-2.0

package planes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"braid.dev/braid/internal/agentapi"
)

// Level says how bad a finding is.
type Level string

const (
	// OK means: nothing stands in the way.
	OK Level = "ok"
	// Warning means: it works, and worse than it could.
	Warning Level = "warning"
	// Failed means: connections are not spread, or not everywhere, until it is mended.
	Failed Level = "failed"
)

// Finding is what one check found.
type Finding struct {
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	// Remedy says what to do; empty where nothing need be done.
	Remedy string `json:"remedy,omitempty"`
}

// Judge checks what Braid needs: agents, kernels, at least two planes, NICs that work and
// answer each other, and pods' packets that reach them as they are.
func Judge(nodes []Node, found []Plane) []Finding {
	findings := []Finding{agents(nodes), kernels(nodes), count(found)}
	for _, check := range []func([]Node, []Plane) Finding{racks, members, filters, sizes, answers, network, routers} {
		if finding := check(nodes, found); finding.Check != "" {
			findings = append(findings, finding)
		}
	}
	return findings
}

// verdict is ok where there are no complaints.
func verdict(check, fine string, level Level, complaints []string, remedy string) Finding {
	if len(complaints) == 0 {
		return Finding{Check: check, Level: OK, Message: fine}
	}
	return Finding{check, level, shorten(complaints), remedy}
}

// shown keeps lists short in large clusters.
const shown = 5

func shorten(complaints []string) string {
	text := strings.Join(complaints[:min(len(complaints), shown)], "; ")
	if more := len(complaints) - shown; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

func agents(nodes []Node) Finding {
	var silent []string
	for i := range nodes {
		if nodes[i].Survey == nil {
			silent = append(silent, nodes[i].Name+": "+nodes[i].Missing)
		}
	}
	return verdict("agents", fmt.Sprintf("%d of %d nodes have one that answers", len(nodes)-len(silent), len(nodes)), Warning, silent,
		"connections of pods there are left alone; kubectl braid status says why an agent does not run")
}

// Oldest kernels: the helpers that steering needs, and what is tested.
const (
	oldestMajor, oldestMinor = 5, 10
	testedMajor, testedMinor = 6, 1
)

func kernels(nodes []Node) Finding {
	var bad, old []string
	releases := []string{}
	for i := range nodes {
		survey := nodes[i].Survey
		switch {
		case survey == nil:
			continue
		case survey.MPTCP != "":
			bad = append(bad, nodes[i].Name+": "+survey.MPTCP)
		case older(survey.Kernel, oldestMajor, oldestMinor):
			bad = append(bad, nodes[i].Name+": Linux "+survey.Kernel+" cannot steer packets")
		case older(survey.Kernel, testedMajor, testedMinor):
			old = append(old, nodes[i].Name+": Linux "+survey.Kernel+" is older than any that is tested")
		}
		if !slices.Contains(releases, survey.Kernel) {
			releases = append(releases, survey.Kernel)
		}
	}
	if len(bad) > 0 {
		return Finding{"kernel", Failed, shorten(bad), "docs/requirements.md says what a kernel needs; sysctl -w net.mptcp.enabled=1 where it was switched off"}
	}
	return verdict("kernel", "Linux "+strings.Join(releases, ", "), Warning, old, "use 6.1 or later: docs/requirements.md")
}

func older(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n < 2 {
		return false // a name that nobody knows
	}
	return a < major || a == major && b < minor
}

func count(found []Plane) Finding {
	names := make([]string, 0, len(found))
	for i := range found {
		names = append(names, found[i].Name)
	}
	switch {
	case len(found) < 2:
		return Finding{"planes", Failed, fmt.Sprintf("%d: there is nothing to spread over", len(found)),
			"give a second NIC of each node an address of a subnet of its own, the same on all nodes: docs/requirements.md"}
	case len(found) > MaxPaths:
		return Finding{"planes", Warning, fmt.Sprintf("%d, and a node can use %d", len(found), MaxPaths), "choose among them: kubectl braid init -o yaml, and take some out"}
	}
	return Finding{Check: "planes", Level: OK, Message: fmt.Sprintf("%d: %s", len(found), strings.Join(names, ", "))}
}

// members looks for NICs that are missing or do not work.
func members(nodes []Node, found []Plane) Finding {
	var complaints []string
	for i := range nodes {
		for j := range found {
			if text := Fault(&nodes[i], &found[j]); text != "" {
				complaints = append(complaints, fmt.Sprintf("%s, %s: %s", nodes[i].Name, found[j].Name, text))
			}
		}
	}
	return verdict("NICs", "each node has one on each plane, up and with a carrier", Warning, complaints,
		"connections of pods there use the other planes; set the NIC up, plug it in, or give it an address of the plane's subnet")
}

// Fault says why a node cannot use a plane; empty where it can, and where its agent does
// not answer.
func Fault(node *Node, plane *Plane) string {
	if node.Survey == nil {
		return ""
	}
	member := plane.Member(node.Name)
	switch {
	case member == nil:
		return missing(node.Survey, plane)
	case !member.nic.SetUp:
		return member.NIC + " is set down"
	case !member.nic.Carrier:
		return member.NIC + " has no carrier"
	}
	return ""
}

// missing names the NIC that others call by the plane's name, if the node has it.
func missing(survey *agentapi.Survey, plane *Plane) string {
	wanted := plane.Members[0].NIC
	for i := range survey.NICs {
		nic := &survey.NICs[i]
		if nic.Name != wanted {
			continue
		}
		if nic.NoPath != "" {
			return nic.Name + ": " + nic.NoPath
		}
		return fmt.Sprintf("%s has no address of %s", nic.Name, plane.Subnets[0])
	}
	return fmt.Sprintf("no NIC has an address of %s", plane.Subnets[0])
}

// Member is a node's NIC on the plane; nil where it has none.
func (p *Plane) Member(node string) *Member {
	for i := range p.Members {
		if p.Members[i].Node == node {
			return &p.Members[i]
		}
	}
	return nil
}

// strict is the value of rp_filter that drops what comes in by another NIC than the route's.
const strict = 1

// filters leaves out the NICs that the cluster network uses: the addresses that packets
// come from have their routes there.
func filters(nodes []Node, found []Plane) Finding {
	var complaints, settings []string
	for i := range found {
		for _, member := range found[i].Members {
			if member.nic.ReversePathFilter != strict || isUsed(nodes, &member) {
				continue
			}
			complaints = append(complaints, fmt.Sprintf("%s: %s drops what other NICs' routes lead to", member.Node, member.NIC))
			if setting := "net.ipv4.conf." + strings.ReplaceAll(member.NIC, ".", "/") + ".rp_filter=2"; !slices.Contains(settings, setting) {
				settings = append(settings, setting)
			}
		}
	}
	return verdict("rp_filter", "loose or off where it matters", Failed, complaints, "on those nodes, and in /etc/sysctl.d to keep it: sysctl -w "+strings.Join(settings, " "))
}

// isUsed: the node's routes to other pods are over this NIC, or its own address is there.
func isUsed(nodes []Node, member *Member) bool {
	at := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == member.Node })
	if at < 0 || nodes[at].Survey == nil {
		return false
	}
	return slices.ContainsFunc(nodes[at].Survey.Routes, func(r agentapi.Route) bool { return r.NIC == member.NIC }) ||
		slices.ContainsFunc(member.Addresses, func(p netip.Prefix) bool { return slices.Contains(nodes[at].Addresses, p.Addr()) })
}

// sizes: a path with a smaller MTU than the node's largest is not used.
func sizes(nodes []Node, found []Plane) Finding {
	var complaints []string
	for i := range nodes {
		largest, smallest := 0, 0
		for j := range found {
			if member := found[j].Member(nodes[i].Name); member != nil {
				largest, smallest = max(largest, member.nic.MTU), leastButZero(smallest, member.nic.MTU)
			}
		}
		if largest != smallest {
			complaints = append(complaints, fmt.Sprintf("%s: from %d to %d", nodes[i].Name, smallest, largest))
		}
	}
	if narrow := narrowRouters(nodes, found); len(complaints) == 0 && len(narrow) > 0 {
		return Finding{"MTU", Failed, shorten(narrow), "large packets are lost there: set the NICs' MTU and the routers' to the same"}
	}
	return verdict("MTU", "the same on all planes", Failed, complaints, "a path with a smaller MTU than another of its node is not used: set the same on all, ip link set NIC mtu N")
}

// narrowRouters are ways to other racks that take smaller packets than the NICs send.
func narrowRouters(nodes []Node, found []Plane) (complaints []string) {
	for i := range nodes {
		if nodes[i].Survey == nil {
			continue
		}
		for _, answer := range nodes[i].Survey.Answers {
			if other, plane := ownerOf(found, answer.Address); answer.PathMTU > 0 && plane != "" {
				complaints = append(complaints, fmt.Sprintf("%s reaches %s on %s with packets of %d bytes at most (%s by %s)", nodes[i].Name, other, plane, answer.PathMTU, answer.Address, answer.NIC))
			}
		}
	}
	return complaints
}

func leastButZero(a, b int) int {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// answers: who does not answer on a plane.
func answers(nodes []Node, found []Plane) Finding {
	var complaints []string
	asked := 0
	for i := range nodes {
		if nodes[i].Survey == nil {
			continue
		}
		for _, answer := range nodes[i].Survey.Answers {
			asked++
			if other, plane := ownerOf(found, answer.Address); !answer.Answered && plane != "" {
				complaints = append(complaints, fmt.Sprintf("%s does not reach %s on %s (%s by %s)", nodes[i].Name, other, plane, answer.Address, answer.NIC))
			}
		}
	}
	if asked == 0 {
		return Finding{}
	}
	return verdict("reachability", fmt.Sprintf("%d of %d neighbours answer", asked-len(complaints), asked), Failed, complaints,
		"NICs of one plane must be in one network, or joined by routers: look at cables, VLANs and switch ports, routes, and at firewalls between the nodes")
}

func ownerOf(found []Plane, address netip.Addr) (node, plane string) {
	for i := range found {
		for _, member := range found[i].Members {
			if slices.ContainsFunc(member.Addresses, func(p netip.Prefix) bool { return p.Addr() == address }) {
				return member.Node, found[i].Name
			}
		}
	}
	return "", ""
}
