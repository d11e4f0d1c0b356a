// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/plugin/planes"
)

// surveyor asks the nodes' agents what the nodes have.
type surveyor struct {
	*system
	agents map[string]*corev1.Pod
	nodes  []planes.Node
}

func (p *plugin) newSurveyor(ctx context.Context, c client.Client) (*surveyor, error) {
	s, err := p.system(p.systemNamespace)
	if err != nil {
		return nil, err
	}
	asked := &surveyor{system: s}
	if asked.agents, err = s.agents(ctx); err != nil {
		return nil, err
	}
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("reading the nodes: %w", err)
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}); err != nil { // any state will do
		return nil, fmt.Errorf("reading the pods: %w", err)
	}
	byNode := podsByNode(pods.Items)
	for i := range nodes.Items {
		asked.nodes = append(asked.nodes, nodeOf(&nodes.Items[i], byNode[nodes.Items[i].Name]))
	}
	slices.SortFunc(asked.nodes, func(a, b planes.Node) int { return cmp.Compare(a.Name, b.Name) })
	return asked, nil
}

// nodeOf knows pods by their addresses, or else where pods will be.
func nodeOf(node *corev1.Node, pod *corev1.Pod) planes.Node {
	found := planes.Node{Name: node.Name, Missing: errNoAgent.Error() + " there"}
	for _, address := range node.Status.Addresses {
		if parsed, err := netip.ParseAddr(address.Address); err == nil && address.Type == corev1.NodeInternalIP {
			found.Addresses = append(found.Addresses, parsed.Unmap())
		}
	}
	if pod != nil {
		for _, ip := range pod.Status.PodIPs {
			if address, err := netip.ParseAddr(ip.IP); err == nil {
				found.Pods = append(found.Pods, address.Unmap())
			}
		}
		return found
	}
	for _, text := range node.Spec.PodCIDRs {
		if cidr, err := netip.ParsePrefix(text); err == nil {
			found.Pods = append(found.Pods, cidr.Masked().Addr().Next())
		}
	}
	return found
}

// podsByNode has of each node a pod with an address of its own.
func podsByNode(pods []corev1.Pod) map[string]*corev1.Pod {
	byNode := map[string]*corev1.Pod{}
	for i := range pods {
		pod := &pods[i]
		if !pod.Spec.HostNetwork && pod.Status.Phase == corev1.PodRunning && len(pod.Status.PodIPs) > 0 {
			byNode[pod.Spec.NodeName] = pod
		}
	}
	return byNode
}

// ask asks all agents, or with questions those that have some. What a node does not answer
// is noted.
func (s *surveyor) ask(ctx context.Context, questions map[string]planes.Question) {
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for i := range s.nodes {
		node := &s.nodes[i]
		question, wanted := questions[node.Name]
		if s.agents[node.Name] == nil || questions != nil && !wanted {
			continue
		}
		group.Go(func() error {
			survey, err := s.survey(ctx, node.Name, question)
			if err == nil {
				node.Survey, node.Missing = survey, ""
			} else if node.Survey == nil {
				node.Missing = err.Error()
			}
			return nil
		})
	}
	_ = group.Wait() // what failed is in Missing
}

// survey asks one agent.
func (s *surveyor) survey(ctx context.Context, node string, question planes.Question) (*agentapi.Survey, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	command := []string{"survey"}
	if len(question.Ask) > 0 {
		command = append(command, "--ask="+strings.Join(question.Ask, ","))
	}
	for _, to := range question.Route {
		command = append(command, "--route="+to.String())
	}
	var out bytes.Buffer
	if err := s.system.ask(ctx, s.agents[node], &out, command...); err != nil {
		return nil, err
	}
	var survey agentapi.Survey
	if err := json.Unmarshal(out.Bytes(), &survey); err != nil {
		return nil, fmt.Errorf("the agent on %s: failed to parse its output: %w", node, err)
	}
	return &survey, nil
}
