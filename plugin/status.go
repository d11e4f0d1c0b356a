// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

// Status says whether everything is fine.
type Status struct {
	// Fine is true when there is no problem.
	Fine bool `json:"fine"`
	// Traffic is what that of each policy's pods does.
	Traffic []Traffic `json:"traffic,omitempty"`
	// Counts are by what is counted: nodes, paths, policies, endpoints.
	Counts []Count `json:"counts"`
	// Problems are what is not fine, and why.
	Problems []Problem `json:"problems,omitempty"`
	// Remarks are worth knowing and no problem.
	Remarks []Problem `json:"remarks,omitempty"`
}

// Count is how many of some kind there are, and how many of them are fine.
type Count struct {
	What  string `json:"what"`
	Fine  int    `json:"fine"`
	Total int    `json:"total"`
}

// Problem is one object that is not fine.
type Problem struct {
	Object  string `json:"object"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func (p *plugin) statusCommand() *cobra.Command {
	var wait time.Duration
	command := &cobra.Command{
		Use:   "status",
		Short: "Say whether everything is fine, and if not what and why",
		Long:  "Say whether everything is fine, and if not what and why. The exit code is 1 while it is not.",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return p.status(command.Context(), wait)
		},
	}
	command.Flags().DurationVar(&wait, "wait", 0, "how long to wait for everything to be fine; --wait alone means a minute")
	command.Flags().Lookup("wait").NoOptDefVal = "1m"
	return p.addFormat(command)
}

func (p *plugin) status(ctx context.Context, wait time.Duration) error {
	for deadline := time.Now().Add(wait); ; {
		_, found, err := p.read(ctx)
		if err != nil {
			return err
		}
		status := found.status()
		if !status.Fine && time.Now().Before(deadline) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(500 * time.Millisecond):
				continue
			}
		}
		if err := p.print(status, status.text); err != nil {
			return err
		}
		if !status.Fine {
			return ErrNotFine
		}
		return nil
	}
}

func (c *cluster) status() Status {
	s := Status{}
	s.addNodes(c)
	s.addPaths(c)
	s.addPolicies(c)
	s.addEndpoints(c)
	s.Fine = len(s.Problems) == 0
	return s
}

// count adds to a count, and to the problems where there is one.
func (s *Status) count(what string, problem *Problem) {
	i := len(s.Counts) - 1
	if i < 0 || s.Counts[i].What != what {
		s.Counts = append(s.Counts, Count{What: what})
		i++
	}
	s.Counts[i].Total++
	if problem == nil {
		s.Counts[i].Fine++
		return
	}
	s.Problems = append(s.Problems, *problem)
}

// unlessTrue is the problem of an object whose condition is not True.
func unlessTrue(object string, conditions []metav1.Condition, kind string) *Problem {
	condition := meta.FindStatusCondition(conditions, kind)
	switch {
	case condition == nil:
		return &Problem{object, "Unknown", "nobody has reported yet: is the controller running?"}
	case condition.Status == metav1.ConditionTrue:
		return nil
	}
	return &Problem{object, condition.Reason, condition.Message}
}

// addNodes goes by the cluster's Nodes: one without an agent takes no part.
func (s *Status) addNodes(c *cluster) {
	members := map[string]*v1alpha1.MPTCPNode{}
	for i := range c.members.Items {
		members[c.members.Items[i].Name] = &c.members.Items[i]
	}
	for i := range c.nodes.Items {
		name := c.nodes.Items[i].Name
		member, known := members[name]
		if !known {
			s.Remarks = append(s.Remarks, Problem{"node " + name, "NoAgent", "no agent has run there: its pods' connections are left alone"})
			continue
		}
		s.count("nodes", unlessTrue("node "+name, member.Status.Conditions, v1alpha1.ConditionReady))
		// Others do without the addresses that are refused. One that is claimed is worth
		// knowing at both ends.
		addresses := meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionAddressesConfirmed)
		if addresses != nil && (addresses.Status == metav1.ConditionFalse || addresses.Reason == v1alpha1.ReasonDuplicate) {
			s.Remarks = append(s.Remarks, Problem{"node " + name, addresses.Reason, addresses.Message})
		}
	}
}

func (s *Status) addPaths(c *cluster) {
	for i := range c.paths.Items {
		path := &c.paths.Items[i]
		s.count("paths", unlessTrue("path "+path.Name, path.Status.Conditions, v1alpha1.ConditionReady))
	}
}

func (s *Status) addPolicies(c *cluster) {
	for i := range c.policies.Items {
		p := &c.policies.Items[i]
		s.addPolicy("policy "+p.Namespace+"/"+p.Name, p.Status.Conditions)
	}
	for i := range c.clusterPolicies.Items {
		p := &c.clusterPolicies.Items[i]
		s.addPolicy("cluster policy "+p.Name, p.Status.Conditions)
	}
}

// addPolicy names the first condition that explains the others. That another
// policy decides for some pods, or that none is selected, is no problem.
func (s *Status) addPolicy(object string, conditions []metav1.Condition) {
	s.addTraffic(object, conditions)
	for _, kind := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionRulesAccepted, v1alpha1.ConditionProgrammed} {
		condition := meta.FindStatusCondition(conditions, kind)
		optional := kind != v1alpha1.ConditionAccepted
		if optional && (condition == nil || condition.Reason == v1alpha1.ReasonNoPodsSelected || condition.Reason == v1alpha1.ReasonOverridden) {
			continue
		}
		if problem := unlessTrue(object, conditions, kind); problem != nil {
			s.count("policies", problem)
			return
		}
	}
	s.count("policies", nil)
	for _, kind := range []string{v1alpha1.ConditionEffective, v1alpha1.ConditionHintsAccepted} {
		if condition := meta.FindStatusCondition(conditions, kind); condition != nil && condition.Status == metav1.ConditionFalse {
			s.Remarks = append(s.Remarks, Problem{object, condition.Reason, condition.Message})
		}
	}
}

func (s *Status) addEndpoints(c *cluster) {
	for i := range c.plans.Items {
		plan := &c.plans.Items[i]
		results := map[string]*v1alpha1.EndpointStatus{}
		for j := range plan.Status.Endpoints {
			results[string(plan.Status.Endpoints[j].UID)] = &plan.Status.Endpoints[j]
		}
		for j := range plan.Spec.Endpoints {
			endpoint := &plan.Spec.Endpoints[j]
			s.count("pods", problemOf(plan.Name, endpoint, results[string(endpoint.UID)]))
		}
	}
}

func problemOf(node string, endpoint *v1alpha1.PlanEndpoint, result *v1alpha1.EndpointStatus) *Problem {
	object := fmt.Sprintf("pod %s/%s on %s", endpoint.Namespace, endpoint.Name, node)
	switch {
	case result == nil:
		return &Problem{object, string(v1alpha1.EndpointPending), "the node's agent has not seen it yet"}
	case result.State != v1alpha1.EndpointProgrammed:
		return &Problem{object, string(result.State), result.Message}
	case result.PolicyGeneration != endpoint.Policy.Generation:
		return &Problem{object, string(v1alpha1.EndpointPending), "the node's agent has not seen the policy's change yet"}
	}
	return nil
}

func (s Status) text() string {
	rows := [][]string{}
	summary, notSpread := s.trafficText()
	if summary != "" {
		rows = append(rows, []string{"traffic", summary})
	}
	for _, count := range s.Counts {
		rows = append(rows, []string{count.What, fmt.Sprintf("%d of %d fine", count.Fine, count.Total)})
	}
	out := table(rows...)
	if len(rows) == 0 {
		out = "no agent reports, and there are no paths and no policies\n"
	}
	out += notSpread + list("Problems", s.Problems) + list("Worth knowing", s.Remarks)
	switch {
	case s.Fine && notSpread != "":
		out += "\nEverything is in place, but not all traffic is spread.\n"
	case s.Fine:
		out += "\nEverything is fine.\n"
	}
	return out
}

func list(title string, problems []Problem) string {
	if len(problems) == 0 {
		return ""
	}
	out := "\n" + title + ":\n"
	for _, problem := range problems {
		out += fmt.Sprintf("  %s: %s\n    %s\n", problem.Object, problem.Reason, problem.Message)
	}
	return out
}
