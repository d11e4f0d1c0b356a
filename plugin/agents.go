// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // where it moved is no dependency of ours
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// system is where Braid's own pods run, and the way to them.
type system struct {
	namespace string
	config    *rest.Config
	core      kubernetes.Interface
}

// addSystem adds the flag that says where Braid runs.
func addSystem(command *cobra.Command, namespace *string) {
	command.Flags().StringVar(namespace, "system-namespace", "braid-system", "namespace that Braid is installed in")
}

// system says how to reach Braid's own pods.
func (p *plugin) system(namespace string) (*system, error) {
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w", err)
	}
	// A stream for each node, beside which others are asked for.
	config.QPS, config.Burst = 50, 100
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the API server: %w", err)
	}
	return &system{namespace: namespace, config: config, core: core}, nil
}

// askTimeout bounds how long an agent may take to answer; a node that is not
// reachable does not answer at all.
const askTimeout = 20 * time.Second

const (
	agentLabel = "app.kubernetes.io/name=braid-agent"
	// traceProgram is of the agents' image too.
	traceProgram = "/braid-trace"
)

var errNoAgent = errors.New("no agent runs")

// agents are the running agents by their nodes.
func (s *system) agents(ctx context.Context) (map[string]*corev1.Pod, error) {
	list, err := s.core.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: agentLabel})
	if err != nil {
		return nil, fmt.Errorf("looking for the agents in namespace %s: %w", s.namespace, err)
	}
	agents := map[string]*corev1.Pod{}
	for i := range list.Items {
		if pod := &list.Items[i]; pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			agents[pod.Spec.NodeName] = pod
		}
	}
	if len(agents) == 0 {
		return nil, fmt.Errorf("%w in namespace %s: is Braid installed elsewhere (--system-namespace)?", errNoAgent, s.namespace)
	}
	return agents, nil
}

// componentOf names a pod of Braid's own as its program: braid-agent or braid-controller.
func componentOf(pod *corev1.Pod) string { return pod.Labels["app.kubernetes.io/name"] }

// ask runs a command of an agent in its container, as kubectl exec does, and copies
// what it prints, until the command or the context ends.
func (s *system) ask(ctx context.Context, agent *corev1.Pod, out io.Writer, arguments ...string) error {
	// What is read is never written: the end of it tells the command that we are gone.
	input, end := io.Pipe()
	defer end.Close()
	return s.run(ctx, agent, input, out, append([]string{"/" + componentOf(agent)}, arguments...))
}

// run runs a program of the agents' image in an agent's container.
func (s *system) run(ctx context.Context, agent *corev1.Pod, input io.Reader, out io.Writer, command []string) error {
	executor, err := s.executor(agent, command)
	if err != nil {
		return fmt.Errorf("preparing to ask the agent on %s: %w", agent.Spec.NodeName, err)
	}
	said := &beginning{limit: 2048}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: input, Stdout: out, Stderr: said})
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	if text := strings.TrimSpace(said.String()); text != "" {
		err = errors.New(text)
	}
	return fmt.Errorf("asking the agent on %s: %w", agent.Spec.NodeName, err)
}

// executor prefers a WebSocket and falls back to SPDY for older API servers.
func (s *system) executor(agent *corev1.Pod, command []string) (remotecommand.Executor, error) {
	url := s.core.CoreV1().RESTClient().Get().Resource("pods").Namespace(agent.Namespace).Name(agent.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: strings.TrimPrefix(componentOf(agent), "braid-"), Command: command, Stdin: true, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec).URL()
	webSocket, err := remotecommand.NewWebSocketExecutor(s.config, http.MethodGet, url.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(s.config, http.MethodPost, url)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(webSocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// beginning keeps the first bytes of what is written.
type beginning struct {
	bytes.Buffer
	limit int
	cut   bool
}

// Write implements io.Writer.
func (b *beginning) Write(data []byte) (int, error) {
	room := min(b.limit-b.Len(), len(data))
	b.Buffer.Write(data[:room])
	b.cut = b.cut || room < len(data)
	return len(data), nil
}

// cutOff is an error where something was left out.
func (b *beginning) cutOff() error {
	if !b.cut {
		return nil
	}
	return fmt.Errorf("it is longer than %d bytes, the rest was left out", b.limit)
}

// ending keeps the last bytes of what is written.
type ending struct {
	kept  []byte
	limit int
}

// Write implements io.Writer.
func (e *ending) Write(data []byte) (int, error) {
	e.kept = append(e.kept, data...)
	if len(e.kept) > 2*e.limit {
		e.kept = append(e.kept[:0], e.bytes()...)
	}
	return len(data), nil
}

func (e *ending) bytes() []byte { return e.kept[max(0, len(e.kept)-e.limit):] }

// jsonLines decodes each whole line that is written, and hands it to visit.
type jsonLines[T any] struct {
	visit func(*T)
	rest  bytes.Buffer
}

// Write implements io.Writer.
func (l *jsonLines[T]) Write(data []byte) (int, error) {
	written := len(data)
	for {
		line, after, whole := bytes.Cut(data, []byte("\n"))
		l.rest.Write(line)
		if !whole {
			return written, nil
		}
		data = after
		var value T
		err := json.Unmarshal(l.rest.Bytes(), &value)
		l.rest.Reset()
		if err != nil {
			return written, fmt.Errorf("failed to parse the agent's output: %w", err)
		}
		l.visit(&value)
	}
}
