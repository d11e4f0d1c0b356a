// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"braid.dev/braid/api/v1alpha1"
)

// NodePaths are the paths of one node, as its agent sees them.
type NodePaths struct {
	Node string `json:"node"`
	// Silent says since when the agent does not report; what it said is old then.
	Silent string              `json:"silent,omitempty"`
	Paths  []v1alpha1.NodePath `json:"paths"`
}

func (p *plugin) pathsCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "paths",
		Short: "Show the health of each path on each node",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			_, found, err := p.read(command.Context())
			if err != nil {
				return err
			}
			nodes := []NodePaths{}
			for i := range found.members.Items {
				member := &found.members.Items[i]
				nodes = append(nodes, NodePaths{member.Name, found.silenceOf(member), member.Status.Paths})
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
	return table(rows...)
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
