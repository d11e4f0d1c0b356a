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
	Node  string              `json:"node"`
	Paths []v1alpha1.NodePath `json:"paths"`
}

func (p *plugin) pathsCommand() *cobra.Command {
	return p.addFormat(&cobra.Command{
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
				nodes = append(nodes, NodePaths{found.members.Items[i].Name, found.members.Items[i].Status.Paths})
			}
			return p.print(nodes, func() string { return pathsText(nodes) })
		},
	})
}

func pathsText(nodes []NodePaths) string {
	rows := [][]string{{"NODE", "PATH", "NIC", "STATE", "PEERS", "RTT", "LOSS", "MESSAGE"}}
	for _, node := range nodes {
		for i := range node.Paths {
			rows = append(rows, append([]string{node.Node}, pathCells(&node.Paths[i])...))
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
