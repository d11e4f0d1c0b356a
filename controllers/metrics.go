// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

var (
	compileDuration = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "braid_controller_compile_duration_seconds",
		Help:    "Time to compile the plans that changes concern, from reading the objects to the result.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 12),
	})
	planWrites = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "braid_controller_plan_writes_total",
		Help: "Plans written, by operation.",
	}, []string{"operation"})
	hintEvents = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "braid_controller_hint_events_total",
		Help: "Events about hints of pods that have no effect, by outcome: written, withheld because the pod had many, dropped because too many waited, or failed.",
	}, []string{"outcome"})
)

// stateCollector tells what the statuses say that were written last: series that are there
// whatever fails, so that alerts need not notice that some vanished. None is of a node.
type stateCollector struct {
	told atomic.Pointer[clusterState] // nobody changes one that was stored
}

// clusterState is what a run of the status reconciler found.
type clusterState struct {
	// paths counts the nodes of each path by their state there.
	paths map[string]map[string]int
	// agents counts the nodes with an agent by whether it reports.
	reporting, silent int
	// programmed are the policies that are carried out, or have nothing to be.
	programmed map[v1alpha1.PolicyReference]bool
}

var (
	clusterStates = &stateCollector{}

	pathNodes = prometheus.NewDesc("braid_controller_path_nodes",
		"Nodes that a path selects, by the state of the path there: Ready, or the reason why it is not.", []string{"path", "state"}, nil)
	agentsByState = prometheus.NewDesc("braid_controller_agents",
		"Nodes with an agent, by whether it reports: reporting or silent.", []string{"state"}, nil)
	policyProgrammed = prometheus.NewDesc("braid_controller_policy_programmed",
		"1 while the policy is carried out on all nodes, or has no pods to be carried out for; 0 else.", []string{"kind", "namespace", "policy"}, nil)
)

// Describe says which metrics there are.
func (c *stateCollector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{pathNodes, agentsByState, policyProgrammed} {
		descriptions <- description
	}
}

// Collect tells what was found last.
func (c *stateCollector) Collect(metrics chan<- prometheus.Metric) {
	told := c.told.Load()
	if told == nil {
		return
	}
	gauge := func(description *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, labels...)
	}
	for path, states := range told.paths {
		for state, count := range states {
			gauge(pathNodes, float64(count), path, state)
		}
	}
	gauge(agentsByState, float64(told.reporting), "reporting")
	gauge(agentsByState, float64(told.silent), "silent")
	for of, programmed := range told.programmed {
		value := 0.0
		if programmed {
			value = 1
		}
		gauge(policyProgrammed, value, of.Kind, of.Namespace, of.Name)
	}
}

// stateOf gathers what a run found. Every path has a count for each state, so that one is
// 0 before it is not.
func stateOf(o *observation, told verdicts) *clusterState {
	state := &clusterState{paths: map[string]map[string]int{}, programmed: make(map[v1alpha1.PolicyReference]bool, len(told))}
	for i := range o.result.Paths {
		if path := &o.result.Paths[i]; o.result.Active {
			state.paths[path.Name] = countPathNodes(o, path)
		}
	}
	for node := range o.nodes {
		if o.silence(node) == "" {
			state.reporting++
		} else {
			state.silent++
		}
	}
	for of, verdict := range told {
		of.Generation = 0 // else two keys would be one series
		c := meta.FindStatusCondition(verdict.status.Conditions, v1alpha1.ConditionProgrammed)
		state.programmed[of] = c == nil || c.Status == metav1.ConditionTrue || c.Reason == v1alpha1.ReasonNoPodsSelected || c.Reason == v1alpha1.ReasonOverridden
	}
	return state
}

func countPathNodes(o *observation, path *policy.PathResult) map[string]int {
	counts := map[string]int{v1alpha1.ReasonReady: len(path.Nodes)}
	problems := pathProblems{}
	for _, node := range path.Nodes {
		nic := nodePath(o.nodes[node], path.Name)
		problems.add(node, nic, o.silence(node))
		problems.addUnreachable(node, nic, o.unreachable(node, nic))
	}
	for _, problem := range pathProblemWords {
		counts[problem.reason] = len(problems[problem.reason])
		counts[v1alpha1.ReasonReady] -= counts[problem.reason]
	}
	return counts
}

// trafficCollector counts the pods of each policy by what their traffic does.
type trafficCollector struct {
	description *prometheus.Desc
	told        atomic.Pointer[verdicts] // nobody changes one that was stored
}

var policyPods = &trafficCollector{description: prometheus.NewDesc("braid_controller_policy_pods",
	"Pods that the policy decides for, by what their traffic does: Spread, or the reason why it is not.", []string{"kind", "namespace", "policy", "reason"}, nil)}

// Describe says which metric there is.
func (c *trafficCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- c.description
}

// Collect counts by the statuses that were told last.
func (c *trafficCollector) Collect(metrics chan<- prometheus.Metric) {
	told := c.told.Load()
	if told == nil {
		return
	}
	for of, verdict := range *told {
		for reason, count := range verdict.traffic {
			metrics <- prometheus.MustNewConstMetric(c.description, prometheus.GaugeValue, float64(count), of.Kind, of.Namespace, of.Name, reason)
		}
	}
}

func init() {
	metrics.Registry.MustRegister(compileDuration, planWrites, hintEvents, policyPods, clusterStates)
}
