// SPDX-License-Identifier: Apache-2.0

package planes

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

var update = flag.Bool("update", false, "write the golden files anew")

// nic is one that works, with addresses such as 192.0.2.1/24.
func nic(name string, addresses ...string) agentapi.NIC {
	made := agentapi.NIC{Name: name, Kind: "device", SetUp: true, Carrier: true, MTU: 1500, SpeedMbit: 10000, ReversePathFilter: 2}
	for _, address := range addresses {
		made.Addresses = append(made.Addresses, netip.MustParsePrefix(address))
	}
	return made
}

// but changes a NIC.
func but(made agentapi.NIC, change func(*agentapi.NIC)) agentapi.NIC {
	change(&made)
	return made
}

// node has pods at 10.244.N.1.
func node(number int, nics ...agentapi.NIC) Node {
	return Node{
		Name: fmt.Sprintf("node%d", number), Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", number))},
		Survey: &agentapi.Survey{Kernel: "6.12.1", NICs: nics}, Pods: []netip.Addr{podOn(number)},
	}
}

func podOn(number int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("10.244.%d.1", number)) }

// plain nodes have two NICs, in subnets that all nodes have.
func plain(number int) Node {
	return node(number, nic("ens1f0", fmt.Sprintf("192.0.2.%d/24", number), fmt.Sprintf("2001:db8::%d/64", number)), nic("ens1f1", fmt.Sprintf("198.51.100.%d/24", number)))
}

// answered has every node answer what it is asked, and routes lead to the nodes. What they
// say of racks is what comes first: later it is forgotten.
func answered(nodes []Node) (forget func()) {
	answer(nodes, RackQuestions(nodes))
	ofRacks := make([]int, len(nodes))
	for i := range nodes {
		if nodes[i].Survey != nil {
			ofRacks[i] = len(nodes[i].Survey.Answers)
		}
	}
	answer(nodes, Questions(nodes, Find(nodes, nil)))
	return func() {
		for i := range nodes {
			if nodes[i].Survey != nil {
				nodes[i].Survey.Answers = nodes[i].Survey.Answers[ofRacks[i]:]
			}
		}
	}
}

// routerTo is what a NIC whose name begins with routed has on the way to another rack.
func routerTo(address netip.Addr, by *agentapi.NIC) (router netip.Addr) {
	if by == nil || !strings.HasPrefix(by.Name, "routed") {
		return router
	}
	for _, own := range by.Addresses {
		if own.Contains(address) {
			return netip.Addr{}
		}
		if own.Addr().Is4() == address.Is4() {
			router = own.Masked().Addr().Next()
		}
	}
	return router
}

func nicNamed(node *Node, name string) *agentapi.NIC {
	for i := range node.Survey.NICs {
		if node.Survey.NICs[i].Name == name {
			return &node.Survey.NICs[i]
		}
	}
	return nil
}

func answer(nodes []Node, questions map[string]Question) {
	for name, question := range questions {
		for i := range nodes {
			if nodes[i].Name != name {
				continue
			}
			for _, ask := range question.Ask {
				address, nic, _ := strings.Cut(ask, "%")
				asked := netip.MustParseAddr(address)
				router := routerTo(asked, nicNamed(&nodes[i], nic))
				reached := router.IsValid() || slices.ContainsFunc(nicNamed(&nodes[i], nic).Addresses, func(p netip.Prefix) bool { return p.Contains(asked) })
				nodes[i].Survey.Answers = append(nodes[i].Survey.Answers, agentapi.Answer{NIC: nic, Address: asked, Router: router, Answered: reached})
			}
			for _, to := range question.Route {
				nodes[i].Survey.Routes = append(nodes[i].Survey.Routes, agentapi.Route{To: to, NIC: nodes[i].Survey.NICs[0].Name, Gateway: nodeOfPod(nodes, to).Addresses[0]})
			}
		}
	}
}

func TestProposals(t *testing.T) {
	existing := v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: "storage"}}
	existing.Spec.Interfaces = []v1alpha1.InterfacePattern{"ens?f1"}
	bridge := func(n int) agentapi.NIC {
		return but(nic("cni0", fmt.Sprintf("10.244.%d.1/24", n)), func(nic *agentapi.NIC) { nic.Kind = "bridge" })
	}
	docker := but(nic("docker0", "172.17.0.1/16"), func(nic *agentapi.NIC) { nic.Kind = "bridge" })
	withBridges := func(n int) Node {
		made := plain(n)
		made.Survey.NICs = append(made.Survey.NICs, bridge(n), docker)
		return made
	}
	for name, test := range map[string]struct {
		nodes  []Node
		paths  []v1alpha1.MPTCPPath
		change func([]Node)
	}{
		"planes are subnets that nodes share":             {nodes: []Node{plain(1), plain(2), plain(3)}},
		"bridges of pods and of containers are no planes": {nodes: []Node{withBridges(1), withBridges(2)}},
		"a path that is there is left alone":              {nodes: []Node{plain(1), plain(2)}, paths: []v1alpha1.MPTCPPath{existing}},
		"one subnet for all NICs is told apart by names":  {nodes: []Node{node(1, nic("a", "192.0.2.1/24"), nic("b", "192.0.2.101/24")), node(2, nic("a", "192.0.2.2/24"), nic("b", "192.0.2.102/24"))}},
		"NICs with other names on each node get a number": {nodes: []Node{node(1, nic("a", "192.0.2.1/24"), nic("b", "198.51.100.1/24")), node(2, nic("c", "192.0.2.2/24"), nic("d", "198.51.100.2/24"))}},
		"one NIC is nothing to spread over":               {nodes: []Node{node(1, nic("a", "192.0.2.1/24")), node(2, nic("a", "192.0.2.2/24"))}},
		"an unknown speed gives no capacity":              {nodes: []Node{node(1, but(nic("a", "192.0.2.1/24"), func(n *agentapi.NIC) { n.SpeedMbit = 0 }), nic("b", "198.51.100.1/24")), node(2, nic("a", "192.0.2.2/24"), but(nic("b", "198.51.100.2/24"), func(n *agentapi.NIC) { n.SpeedMbit = 1000 }))}},
		"what stands in the way is told with what to do":  {nodes: []Node{plain(1), plain(2), plain(3), plain(4)}, change: everythingWrong},
		"an overlay that is steered is one": {nodes: []Node{plain(1), plain(2)}, change: func(nodes []Node) {
			overlay(nodes)
			nodes[0].Survey.Routes[0].Overlay, nodes[0].Survey.Routes[0].Steered = "VXLAN", true
		}},
		"an encrypted overlay is no way for packets of pods": {nodes: []Node{plain(1), plain(2)}, change: overlay},
		"a node without an agent, and an old kernel":         {nodes: []Node{plain(1), plain(2), {Name: "node3", Missing: "no agent runs there"}}, change: func(nodes []Node) { nodes[0].Survey.Kernel, nodes[1].Survey.Kernel = "5.4.0-generic", "5.15.3" }},
		"racks that routers join are one plane":              {nodes: racksOf("routed", 2, 2)},
		"each node may be a rack of its own":                 {nodes: racksOf("routed", 3, 1)},
		"racks that no route joins are told":                 {nodes: racksOf("ens1f", 2, 2)},
		"one plane of two is joined":                         {nodes: mixed(racksOf("routed", 2, 2))},
		"a path over routers has all its racks":              {nodes: racksOf("ens1f", 2, 2), paths: []v1alpha1.MPTCPPath{overRouters("blue", "ens1f0"), overRouters("red", "ens1f1")}},
		"a path that says it has no routers and has some":    {nodes: racksOf("routed", 2, 2), paths: []v1alpha1.MPTCPPath{switched("blue", "routed0")}},
		"a router with a smaller MTU is told": {nodes: racksOf("routed", 2, 2), change: func(nodes []Node) {
			for i := range nodes[1].Survey.Answers {
				nodes[1].Survey.Answers[i].PathMTU = 1400
			}
		}},
		"more racks than a path has ranges are told":          {nodes: racksOf("routed", 17, 2)},
		"a router in a range is told, routes over it as well": {nodes: []Node{plain(1), plain(2)}, change: router},
	} {
		t.Run(name, func(t *testing.T) {
			forget := answered(test.nodes)
			if test.change != nil {
				test.change(test.nodes)
			}
			found := Find(test.nodes, test.paths)
			forget()
			golden(t, strings.ReplaceAll(strings.ReplaceAll(name, " ", "_"), ",", ""), describe(t, test.nodes, found))
		})
	}
}

// racksOf has nodes with two NICs, whose subnets are those of their rack.
func racksOf(nic0 string, racks, each int) (nodes []Node) {
	for number := 1; number <= racks*each; number++ {
		rack := (number-1)/each + 1
		nodes = append(nodes, node(number, nic(nic0+"0", fmt.Sprintf("10.1.%d.%d/24", rack, number+1), fmt.Sprintf("fd00:1:%d::%d/64", rack, number+1)), nic(nic0+"1", fmt.Sprintf("10.2.%d.%d/24", rack, number+1))))
		nodes[len(nodes)-1].Addresses = []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.1.%d.%d", rack, number+1))}
	}
	return nodes
}

// mixed takes the routes of the second NICs away.
func mixed(nodes []Node) []Node {
	for i := range nodes {
		nodes[i].Survey.NICs[1].Name = "ens1f1"
	}
	return nodes
}

func overRouters(name string, nic v1alpha1.InterfacePattern) v1alpha1.MPTCPPath {
	path := switched(name, nic)
	path.Spec.Underlay = v1alpha1.UnderlayRouted
	return path
}

func switched(name string, nic v1alpha1.InterfacePattern) v1alpha1.MPTCPPath {
	path := v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: name}}
	path.Spec.Interfaces = []v1alpha1.InterfacePattern{nic}
	return path
}

func everythingWrong(nodes []Node) {
	nodes[0].Survey.NICs[0].Carrier = false
	nodes[1].Survey.NICs[1].SetUp = false
	nodes[2].Survey.NICs[1].Addresses = nil
	nodes[2].Survey.NICs[0].ReversePathFilter = 1 // the one that the cluster network uses
	nodes[3].Survey.NICs[1].ReversePathFilter = 1
	nodes[3].Survey.NICs[1].MTU = 9000
	nodes[1].Survey.MPTCP = "net.mptcp.enabled is 0"
	nodes[3].Survey.Answers[0].Answered = false
	nodes[0].Survey.Routes[0].Message = "there is no route: network is unreachable"
}

func overlay(nodes []Node) {
	nodes[0].Survey.Routes[0] = agentapi.Route{To: podOn(2), NIC: "wg0", Overlay: "Encrypted", Gateway: netip.MustParseAddr("10.244.2.0"), Tunnel: true}
}

func router(nodes []Node) {
	outside := netip.MustParseAddr("192.0.2.254")
	nodes[0].Survey.NICs[0].Gateways = []netip.Addr{outside}
	nodes[0].Survey.Routes[0].Gateway = outside
}

// describe has all that a proposal is.
func describe(t *testing.T, nodes []Node, found []Plane) string {
	t.Helper()
	text := ""
	for i := range found {
		plane := &found[i]
		exists := ""
		if plane.Exists {
			exists = ", exists"
		}
		text += fmt.Sprintf("# %s%s\n", plane.Name, exists)
		for j := range nodes {
			member := "no NIC"
			if has := plane.Member(nodes[j].Name); has != nil {
				member = has.NIC
			}
			text += fmt.Sprintf("#   %s: %s %s\n", nodes[j].Name, member, Fault(&nodes[j], plane))
		}
		manifest, err := yaml.Marshal(plane.Path().Spec)
		require.NoError(t, err)
		text += string(manifest)
	}
	for _, finding := range Judge(nodes, found) {
		line, err := json.Marshal(finding)
		require.NoError(t, err)
		text += string(line) + "\n"
	}
	return text
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestEachNodeIsAskedAboutAFewOthers(t *testing.T) {
	var nodes []Node
	for n := 1; n <= 50; n++ {
		nodes = append(nodes, plain(n))
	}
	questions := Questions(nodes, Find(nodes, nil))
	require.Len(t, questions, 50)
	asked := map[string]int{}
	for _, question := range questions {
		require.Len(t, question.Ask, neighbours*3, "of three subnets on two NICs")
		require.Len(t, question.Route, neighbours)
		for _, ask := range question.Ask {
			asked[ask]++
		}
	}
	require.Equal(t, neighbours, asked["192.0.2.50%ens1f0"], "each is asked about as often")
}

func TestAPairOfNodesWithoutPathsIsAskedNothing(t *testing.T) {
	require.Empty(t, Questions([]Node{{Name: "node1", Missing: "no agent runs there"}}, nil))
}
