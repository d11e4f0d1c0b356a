// SPDX-License-Identifier: Apache-2.0

package product

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/metricsserver"
)

const (
	// memoryPods are the pods of the node, senders among them.
	memoryPods    = 110
	memorySenders = 10
	// Each sender has so many connections, of three subflows each.
	memoryConnections = 360
	memoryFlows       = 10_000
	// Prometheus asks every 30 s by default; here it is asked more often.
	memoryScrapeEvery = 5 * time.Second
	memorySamples     = 6
	memorySends       = 150 * time.Second
)

// watched is a policy whose rule has the subflows recorded, as most of what rules do
// has it too.
const watched = selectAll + `
  rules:
  - name: record
    actions: [{type: Record}]
`

// measureAgentMemory is about one agent on a node with many pods and flows, which is
// also asked for its metrics.
func measureAgentMemory(ctx context.Context, m *rig.Measurement, c *rig.Cluster) error {
	a, err := agentOf(ctx, c, 0)
	if err != nil {
		return err
	}
	if err := a.addMemory(m, "agent.idle_"); err != nil {
		return err
	}
	if err := c.Apply(ctx, watched); err != nil {
		return err
	}
	if err := manyPods(ctx, c); err != nil {
		return err
	}
	sending, cancel := context.WithCancel(ctx)
	wait, err := send(sending, c)
	if err == nil {
		err = a.underLoad(ctx, m)
	}
	cancel()
	wait()
	if err != nil {
		return fmt.Errorf("%w; the agents: %s", err, agentStates(ctx, c))
	}
	return nil
}

// agentStates says how often the agents ended, and why they did last.
func agentStates(ctx context.Context, c *rig.Cluster) string {
	out, err := c.RunKubectl(ctx, "get", "pods", "--namespace", lab.SystemNamespace, "--selector", agentLabel+"=braid-agent", "--output",
		`jsonpath={range .items[*]}{.spec.nodeName}: {.status.containerStatuses[0].restartCount} ends {.status.containerStatuses[0].lastState}; {end}`)
	if err != nil {
		return err.Error()
	}
	return out
}

const agentLabel = "app.kubernetes.io/name"

// manyPods fills the first node and starts a server on the second.
func manyPods(ctx context.Context, c *rig.Cluster) error {
	rig.Say("starting %d pods on one node", memoryPods)
	pods := []*corev1.Pod{trafficPod("server", 2, "serve")}
	for i := range memoryPods {
		if i < memorySenders {
			pods = append(pods, trafficPod(fmt.Sprintf("sender-%d", i), 1, "wait"))
		} else {
			pods = append(pods, quietPod(fmt.Sprintf("quiet-%d", i), 1))
		}
	}
	if err := createPods(ctx, c, pods...); err != nil {
		return err
	}
	return c.Settled(ctx, len(pods))
}

// send has the senders open their connections and send. The function that it returns
// waits until the last has ended, which they do when the context does.
func send(ctx context.Context, c *rig.Cluster) (wait func(), err error) {
	var ending sync.WaitGroup
	var server corev1.Pod
	if err := c.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "server"}, &server); err != nil {
		return ending.Wait, fmt.Errorf("finding the server: %w", err)
	}
	for i := range memorySenders {
		command := c.Kubectl(ctx, "exec", fmt.Sprintf("sender-%d", i), "--", "/traffic", "run",
			fmt.Sprintf("%s:%d", server.Status.PodIP, lab.TrafficPort),
			"--connections", strconv.Itoa(memoryConnections), "--duration", memorySends.String())
		ending.Go(func() { _ = command.Run() }) // it is cut off; the flows are counted elsewhere
	}
	return ending.Wait, nil
}

// measuredAgent is one agent of the cluster.
type measuredAgent struct {
	container lab.Container
}

// agentOf finds the agent of a node, by the node's index.
func agentOf(ctx context.Context, c *rig.Cluster, index int) (*measuredAgent, error) {
	node := c.Network.Nodes[index]
	var pods corev1.PodList
	if err := c.Client.List(ctx, &pods, client.InNamespace(lab.SystemNamespace), client.MatchingLabels{agentLabel: "braid-agent"}); err != nil {
		return nil, fmt.Errorf("listing the agents: %w", err)
	}
	a := &measuredAgent{}
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName != node.NodeName() {
			continue
		}
		containers, err := c.Containers(node.NodeName(), pods.Items[i].UID)
		if err != nil {
			return nil, err
		}
		for _, container := range containers {
			if container.Program == "braid-agent" {
				a.container = container
				return a, nil
			}
		}
	}
	return nil, fmt.Errorf("%s has no agent that runs", node.NodeName())
}

// flows asks for the metrics and returns the number of subflows that they tell of.
func (a *measuredAgent) flows(ctx context.Context) (flows int, err error) {
	var text bytes.Buffer
	socket := fmt.Sprintf("/proc/%d/root/run/braid/metrics.sock", a.container.PID)
	if err := metricsserver.Fetch(ctx, socket, &text); err != nil {
		return 0, fmt.Errorf("asking an agent for metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&text)
	if err != nil {
		return 0, fmt.Errorf("reading an agent's metrics: %w", err)
	}
	for _, metric := range families["braid_endpoint_recorded_subflows"].GetMetric() {
		flows += int(metric.GetGauge().GetValue())
	}
	return flows, nil
}

// underLoad waits for the flows and then looks at the agent for a while.
func (a *measuredAgent) underLoad(ctx context.Context, m *rig.Measurement) error {
	err := rig.Until(ctx, rig.Patience, fmt.Sprintf("the agent knows %d flows", memoryFlows), func() (bool, error) {
		flows, err := a.flows(ctx)
		rig.Say("the agent knows %d flows", flows)
		time.Sleep(memoryScrapeEvery)
		return flows >= memoryFlows, err
	})
	for i := 0; i < memorySamples && err == nil; i++ {
		if err = a.addMemory(m, "agent."); err != nil {
			return err
		}
		time.Sleep(memoryScrapeEvery)
		var flows int
		if flows, err = a.flows(ctx); err == nil && flows < memoryFlows {
			err = fmt.Errorf("only %d flows are left", flows)
		}
	}
	return err
}

// addMemory notes what the agent takes: the process's resident memory, and what of it
// no file backs; what counts against the container's limit, less the files that the
// kernel drops when it needs room; and of that what the kernel takes, BPF maps and
// programs among it.
func (a *measuredAgent) addMemory(m *rig.Measurement, prefix string) error {
	process, err := memoryOf(a.container.PID)
	if err != nil {
		return err
	}
	group, kernel, err := groupMemory(a.container.Group)
	if err != nil {
		return fmt.Errorf("reading how much memory is used: %w", err)
	}
	m.Add(prefix+"rss_mib", mib(process.VmRSS))
	m.Add(prefix+"anonymous_mib", mib(process.RssAnon))
	m.Add(prefix+"cgroup_mib", mib(group))
	m.Add(prefix+"kernel_mib", mib(kernel))
	return nil
}

func mib(bytes uint64) float64 { return float64(bytes) / (1 << 20) }

// groupMemory is that of a cgroup, of version 2 or 1.
func groupMemory(group string) (used, kernel uint64, err error) {
	text, err := os.ReadFile(filepath.Join(group, "memory.stat"))
	if err != nil {
		return 0, 0, err
	}
	stat := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		var name string
		var value uint64
		if _, err := fmt.Sscan(line, &name, &value); err != nil {
			return 0, 0, err
		}
		stat[name] = value
	}
	if used, err = numberIn(group, "memory.current"); err == nil {
		return used - stat["inactive_file"], stat["kernel"], nil
	}
	used, err = numberIn(group, "memory.usage_in_bytes")
	kernel, kernelErr := numberIn(group, "memory.kmem.usage_in_bytes")
	return used - stat["total_inactive_file"], kernel, errors.Join(err, kernelErr)
}

func numberIn(group, file string) (uint64, error) {
	text, err := os.ReadFile(filepath.Join(group, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}
