// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"

	"braid.dev/braid/api/v1alpha1"
)

// NodePaths are the paths of one node, as its agent sees them.
type NodePaths struct {
	Node string `json:"node"`
	// Silent says since when the agent does not report; what it said is old then.
	Silent string              `json:"silent,omitempty"`
	Paths  []v1alpha1.NodePath `json:"paths"`
	// Overlays are the node's tunnels.
	Overlays []v1alpha1.NodeOverlay `json:"overlays,omitempty"`
}

func (p *plugin) pathsCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "paths",
		Short: "Show the health of each path on each node",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			c, err := p.connect(command.Context())
			if err != nil {
				return err
			}
			found, err := p.read(command.Context(), c, noPlans)
			if err != nil {
				return err
			}
			if found.unread(unreadMembers) {
				return p.printReadiness(found)
			}
			nodes := []NodePaths{}
			for i := range found.members.Items {
				member := &found.members.Items[i]
				nodes = append(nodes, NodePaths{member.Name, found.silenceOf(member), member.Status.Paths, member.Status.Overlays})
			}
			return p.print(nodes, func() string { return pathsText(nodes) })
		},
	}
	addSystem(command, &p.systemNamespace)
	return p.addFormat(command)
}

func pathsText(nodes []NodePaths) string {
	rows := [][]string{{"NODE", "PATH", "NIC", "STATE", "PEERS", "RTT", "LOSS", "MESSAGE"}}
	for _, node := range nodes {
		for i := range node.Paths {
			cells := pathCells(&node.Paths[i])
			if node.Silent != "" {
				cells = silentCells(&node.Paths[i], node.Silent)
			}
			rows = append(rows, append([]string{node.Node}, cells...))
		}
	}
	if len(rows) == 1 {
		return "no node has a path: is there an MPTCPPath, and a policy that selects a pod?\n"
	}
	return table(rows...) + gatewaysText(nodes) + encapsulatedText(nodes) + xdpText(nodes) + overlaysText(nodes)
}

// gatewaysText is empty where no path leads out of the cluster.
func gatewaysText(nodes []NodePaths) string {
	rows := [][]string{{"NODE", "PATH", "GATEWAY OUTSIDE"}}
	for _, node := range nodes {
		for _, path := range node.Paths {
			if len(path.Gateways) > 0 {
				rows = append(rows, []string{node.Node, string(path.Name), strings.Join(path.Gateways, ", ")})
			}
		}
	}
	if len(rows) == 1 {
		return ""
	}
	return "\n" + table(rows...)
}

// encapsulatedText says how natively routed packets get over routers; empty where none are to.
func encapsulatedText(nodes []NodePaths) string {
	rows := [][]string{{"NODE", "PATH", "ENCAPSULATED TO NODES"}}
	for _, node := range nodes {
		for _, path := range node.Paths {
			if path.Encapsulated > 0 {
				rows = append(rows, []string{node.Node, string(path.Name), fmt.Sprint(path.Encapsulated)})
			}
		}
	}
	if len(rows) == 1 {
		return ""
	}
	return "\n" + table(rows...)
}

// xdpText says at which hook of a NIC rules that only drop act; empty with agent.xdp: Off.
func xdpText(nodes []NodePaths) string {
	rows := [][]string{{"NODE", "PATH", "NIC", "DROPS AT", "REASON", "MESSAGE"}}
	for _, node := range nodes {
		for _, path := range node.Paths {
			if path.XDP == nil {
				continue
			}
			hook, reason := "TC", string(path.XDP.State)
			if path.XDP.State == v1alpha1.XDPNative {
				hook, reason = "XDP", "-"
			}
			rows = append(rows, []string{node.Node, string(path.Name), path.Interface, hook, reason, path.XDP.Message})
		}
	}
	if len(rows) == 1 {
		return ""
	}
	return "\n" + table(rows...)
}

// overlaysText is empty where no node has one.
func overlaysText(nodes []NodePaths) string {
	rows := [][]string{{"NODE", "OVERLAY", "KIND", "PORT", "STEERED"}}
	for _, node := range nodes {
		for _, overlay := range node.Overlays {
			port, steered := "-", "no"
			if overlay.Port != 0 {
				port = fmt.Sprint(overlay.Port)
			}
			if overlay.Steered {
				steered = "yes"
			}
			rows = append(rows, []string{node.Node, overlay.Device, overlay.Kind, port, steered})
		}
	}
	if len(rows) == 1 {
		return ""
	}
	return "\n" + table(rows...)
}

func pathCells(path *v1alpha1.NodePath) []string {
	peers, rtt, loss := "-", "-", "-"
	if path.PeersProbed > 0 {
		peers = fmt.Sprintf("%d/%d", path.PeersAlive, path.PeersProbed)
		loss = fmt.Sprintf("%d%%", path.LossPercent)
	}
	if path.MedianRTTMicros > 0 {
		rtt = (time.Duration(path.MedianRTTMicros) * time.Microsecond).String()
	}
	return []string{string(path.Name), cmp.Or(path.Interface, "-"), string(path.State), peers, rtt, loss, path.Message}
}

// silentCells leave out what nobody has looked at since the agent fell silent.
func silentCells(path *v1alpha1.NodePath, silence string) []string {
	return []string{string(path.Name), cmp.Or(path.Interface, "-"), "Unknown", "-", "-", "-", silence}
}

// PathReadiness is what whoever may not read MPTCPNodes can know of a path.
type PathReadiness struct {
	Path    string `json:"path"`
	Nodes   int32  `json:"nodes"`
	Up      int32  `json:"up"`
	Ready   string `json:"ready"`
	Message string `json:"message,omitempty"`
}

var errNoPaths = errors.New("you may read neither MPTCPNodes nor MPTCPPaths: an admin can bind the ClusterRole braid-path-reader (docs/kubectl-braid.md)")

func (p *plugin) printReadiness(c *cluster) error {
	if c.unread(unreadPaths) {
		return errNoPaths
	}
	all, rows := []PathReadiness{}, [][]string{{"PATH", "NODES", "UP", "READY", "MESSAGE"}}
	for i := range c.paths.Items {
		path := &c.paths.Items[i]
		is := PathReadiness{Path: path.Name, Nodes: path.Status.Nodes, Up: path.Status.NodesUp, Ready: "Unknown"}
		if ready := meta.FindStatusCondition(path.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
			is.Ready, is.Message = string(ready.Status), ready.Message
		}
		all = append(all, is)
		rows = append(rows, []string{is.Path, fmt.Sprint(is.Nodes), fmt.Sprint(is.Up), is.Ready, is.Message})
	}
	return p.print(all, func() string { return table(rows...) + leftOutText([]string{unreadMembers}) })
}
