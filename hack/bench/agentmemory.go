// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/hack/lab"
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
func measureAgentMemory(ctx context.Context, b *bench) (err error) {
	k, err := newKubelets(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Down()) }()
	a, err := k.agentOf(ctx, 0)
	if err != nil {
		return err
	}
	idle, err := a.memory(ctx)
	if err != nil {
		return err
	}
	b.addMemory("agent.idle_", []memory{idle})
	if err := k.apply(ctx, watched); err != nil {
		return err
	}
	if err := k.manyPods(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	sent, err := k.send(ctx)
	if err != nil {
		cancel()
		return err
	}
	loaded, err := a.underLoad(ctx)
	if err != nil {
		err = fmt.Errorf("%w; the agents: %s", err, k.agentStates(ctx))
	}
	cancel()
	sent()
	b.addMemory("agent.", loaded)
	return err
}

// agentStates says how often the agents ended, and why they did last.
func (k *kubelets) agentStates(ctx context.Context) string {
	out, err := k.kubectl(ctx, "get", "pods", "--namespace", lab.SystemNamespace, "--selector", agentLabel+"=braid-agent", "--output",
		`jsonpath={range .items[*]}{.spec.nodeName}: {.status.containerStatuses[0].restartCount} ends {.status.containerStatuses[0].lastState}; {end}`)
	if err != nil {
		return err.Error()
	}
	return out
}

const agentLabel = "app.kubernetes.io/name"

// manyPods fills the first node and starts a server on the second.
func (k *kubelets) manyPods(ctx context.Context) error {
	say("starting %d pods on one node", memoryPods)
	server := trafficPod("server", 2, "serve")
	if err := k.Client.Create(ctx, server); err != nil {
		return fmt.Errorf("creating the server: %w", err)
	}
	for i := range memoryPods {
		pod := quietPod(fmt.Sprintf("quiet-%d", i))
		pod.Spec.NodeSelector = onNode(1)
		if i < memorySenders {
			pod = trafficPod(fmt.Sprintf("sender-%d", i), 1, "wait")
		}
		if err := k.Client.Create(ctx, pod); err != nil {
			return fmt.Errorf("creating pod %s: %w", pod.Name, err)
		}
	}
	return k.settled(ctx, memoryPods+1)
}

func onNode(number int) map[string]string {
	return map[string]string{corev1.LabelHostname: fmt.Sprintf("node%d", number)}
}

func trafficPod(name string, node int, arguments ...string) *corev1.Pod {
	pod := quietPod(name)
	pod.Spec.NodeSelector = onNode(node)
	pod.Spec.Containers = []corev1.Container{{Name: "traffic", Image: lab.TrafficImage, ImagePullPolicy: corev1.PullNever, Args: arguments}}
	return pod
}

// send has the senders open their connections and send. The function that it returns
// waits until the last has ended, which they do when the context does.
func (k *kubelets) send(ctx context.Context) (wait func(), err error) {
	var server corev1.Pod
	if err := k.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "server"}, &server); err != nil {
		return nil, fmt.Errorf("finding the server: %w", err)
	}
	ended := make(chan struct{}, memorySenders)
	for i := range memorySenders {
		command := k.Kubectl(ctx, "exec", fmt.Sprintf("sender-%d", i), "--", "/traffic", "run",
			fmt.Sprintf("%s:%d", server.Status.PodIP, lab.TrafficPort),
			"--connections", strconv.Itoa(memoryConnections), "--duration", memorySends.String())
		go func() {
			_ = command.Run() // it is cut off; the flows are counted elsewhere
			ended <- struct{}{}
		}()
	}
	return func() {
		for range memorySenders {
			<-ended
		}
	}, nil
}

// measuredAgent is one agent of the cluster.
type measuredAgent struct {
	container lab.Container
	metrics   *http.Client
	address   string
}

// agentOf finds the agent of a node, by the node's index.
func (k *kubelets) agentOf(ctx context.Context, index int) (*measuredAgent, error) {
	node := k.Network.Nodes[index]
	var pods corev1.PodList
	if err := k.Client.List(ctx, &pods, client.InNamespace(lab.SystemNamespace), client.MatchingLabels{agentLabel: "braid-agent"}); err != nil {
		return nil, fmt.Errorf("listing the agents: %w", err)
	}
	a := &measuredAgent{
		metrics: &http.Client{Transport: &http.Transport{DialContext: node.Dial}},
		address: "http://127.0.0.1:9478/metrics",
	}
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName != node.NodeName() {
			continue
		}
		containers, err := k.Containers(node.NodeName(), pods.Items[i].UID)
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
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.address, nil)
	if err != nil {
		return 0, fmt.Errorf("asking an agent for metrics: %w", err)
	}
	response, err := a.metrics.Do(request)
	if err != nil {
		return 0, fmt.Errorf("asking an agent for metrics: %w", err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.Reader(response.Body))
	if err != nil {
		return 0, fmt.Errorf("reading an agent's metrics: %w", err)
	}
	for _, metric := range families["braid_endpoint_recorded_subflows"].GetMetric() {
		flows += int(metric.GetGauge().GetValue())
	}
	return flows, nil
}

// underLoad waits for the flows and then looks at the agent for a while.
func (a *measuredAgent) underLoad(ctx context.Context) (samples []memory, err error) {
	err = until(ctx, fmt.Sprintf("the agent knows %d flows", memoryFlows), func() (bool, error) {
		flows, err := a.flows(ctx)
		say("the agent knows %d flows", flows)
		time.Sleep(memoryScrapeEvery)
		return flows >= memoryFlows, err
	})
	for len(samples) < memorySamples && err == nil {
		var one memory
		if one, err = a.memory(ctx); err == nil {
			samples = append(samples, one)
			time.Sleep(memoryScrapeEvery)
			one.flows, err = a.flows(ctx)
		}
		if err == nil && one.flows < memoryFlows {
			err = fmt.Errorf("only %d flows are left", one.flows)
		}
	}
	return samples, err
}

// memory is what an agent takes, in bytes.
type memory struct {
	flows int
	// resident is the process's, of which anonymous is what no file backs.
	resident, anonymous float64
	// group is what counts against the container's limit, less the files that the
	// kernel drops when it needs room; kernel is its part that the kernel takes,
	// BPF maps and programs among it.
	group, kernel float64
}

func (a *measuredAgent) memory(context.Context) (m memory, err error) {
	status, err := numbersIn(fmt.Sprintf("/proc/%d/status", a.container.PID))
	if err != nil {
		return m, err
	}
	m.resident, m.anonymous = status["VmRSS:"]*1024, status["RssAnon:"]*1024
	stat, err := numbersIn(filepath.Join(a.container.Group, "memory.stat"))
	if err != nil {
		return m, err
	}
	if m.group, err = numberIn(a.container.Group, "memory.current"); err == nil { // cgroup v2
		m.group -= stat["inactive_file"]
		m.kernel = stat["kernel"]
		return m, nil
	}
	if m.group, err = numberIn(a.container.Group, "memory.usage_in_bytes"); err != nil {
		return m, err
	}
	m.group -= stat["total_inactive_file"]
	m.kernel, err = numberIn(a.container.Group, "memory.kmem.usage_in_bytes")
	return m, err
}

// numbersIn reads lines of a name and a number.
func numbersIn(path string) (map[string]float64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading how much memory is used: %w", err)
	}
	numbers := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		if number, err := strconv.ParseFloat(fields[1], 64); err == nil {
			numbers[fields[0]] = number
		}
	}
	return numbers, nil
}

func numberIn(group, file string) (float64, error) {
	text, err := os.ReadFile(filepath.Join(group, file))
	if err != nil {
		return 0, fmt.Errorf("reading how much memory is used: %w", err)
	}
	return strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
}

func (b *bench) addMemory(prefix string, samples []memory) {
	for name, of := range map[string]func(memory) float64{
		"rss_mib":       func(m memory) float64 { return m.resident },
		"anonymous_mib": func(m memory) float64 { return m.anonymous },
		"cgroup_mib":    func(m memory) float64 { return m.group },
		"kernel_mib":    func(m memory) float64 { return m.kernel },
	} {
		var values []float64
		for _, one := range samples {
			values = append(values, of(one)/(1<<20))
		}
		b.add(prefix+name, "MiB", values)
	}
}
