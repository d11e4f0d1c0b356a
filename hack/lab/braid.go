// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/internal/lab/network"
)

// startBraid installs Braid and starts its processes and those of the pods.
func (l *Lab) startBraid(ctx context.Context) error {
	if err := l.install(ctx); err != nil {
		return err
	}
	if err := l.startForwarder(ctx); err != nil {
		return err
	}
	if err := l.StartController(ctx); err != nil {
		return err
	}
	for _, node := range l.Network.Nodes {
		if err := l.StartAgent(ctx, node); err != nil {
			return err
		}
	}
	for _, pod := range l.options.Pods {
		if err := l.startPod(pod); err != nil {
			return err
		}
	}
	return l.waitForBraid(ctx)
}

// install applies CRDs, roles, service accounts and admission policies, as a user
// would, and waits until the objects can be used.
func (l *Lab) install(ctx context.Context) error {
	for _, arguments := range [][]string{
		{"apply", "--server-side", "--kustomize", l.repository + "/config"},
		{"wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"},
	} {
		if out, err := l.Kubectl(ctx, arguments...).CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl %s: %w: %s", arguments[0], err, out)
		}
	}
	return nil
}

// Kubectl is a command for the lab's API server, as a cluster admin.
func (l *Lab) Kubectl(ctx context.Context, arguments ...string) *exec.Cmd {
	path, err := Kubectl()
	if err != nil {
		path = "kubectl" // unreachable: the server runs from the same directory
	}
	command := exec.CommandContext(ctx, path, arguments...)
	command.Env = append(os.Environ(), "KUBECONFIG="+l.Server.KubeconfigPath())
	return command
}

// startForwarder makes the API server reachable inside every node at the address
// that it has outside, and kubelets from outside.
func (l *Lab) startForwarder(ctx context.Context) error {
	wanted := forwarding{}
	if l.options.Kubelets {
		wanted.Tunnel, wanted.Nodes = l.tunnel(), map[string]string{}
		for _, node := range l.Network.Nodes {
			wanted.Nodes[node.Address(0, l.Network.Versions()[0])] = node.Name
		}
	}
	return l.forward(ctx, "forwarder", wanted, l.Network.Nodes...)
}

// forward starts a process that makes the API server reachable inside these nodes.
func (l *Lab) forward(ctx context.Context, name string, wanted forwarding, nodes ...*network.Node) error {
	server, err := url.Parse(l.Server.Config().Host)
	if err != nil {
		return fmt.Errorf("reading the API server's address: %w", err)
	}
	wanted.Inside, wanted.Outside = []string{server.Host}, server.Host
	if l.options.Kubelets {
		wanted.Inside = append(wanted.Inside, net.JoinHostPort(advertised, server.Port()))
	}
	for _, node := range nodes {
		wanted.Namespaces = append(wanted.Namespaces, node.Name)
	}
	input, err := wanted.encode()
	if err != nil {
		return fmt.Errorf("encoding what to forward: %w", err)
	}
	command, environment := roleCommand(roleForward, input)
	forwarder, err := l.start(name, command, environment...)
	if err != nil {
		return err
	}
	return eventually(ctx, []*Process{forwarder}, func(ctx context.Context) error {
		return reachServer(ctx, server.Host, nodes)
	})
}

func reachServer(ctx context.Context, address string, nodes []*network.Node) error {
	for _, node := range nodes {
		connection, err := node.Dial(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("reaching the API server from %s: %w", node.NodeName(), err)
		}
		if err := connection.Close(); err != nil {
			return fmt.Errorf("closing a connection: %w", err)
		}
	}
	return nil
}

// kubeconfig writes one with a real token of a service account.
func (l *Lab) kubeconfig(ctx context.Context, file, account, node string) (string, error) {
	config, err := l.Server.ServiceAccountConfig(ctx, SystemNamespace, account, node)
	if err != nil {
		return "", err
	}
	return l.writeKubeconfig(file, config)
}

func (l *Lab) writeKubeconfig(file string, config *rest.Config) (string, error) {
	content, err := apiserver.Kubeconfig(config)
	if err != nil {
		return "", err
	}
	path := l.kubeconfigPath(file)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return "", fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return path, nil
}

func (l *Lab) kubeconfigPath(file string) string { return l.path(file + ".kubeconfig") }

// StartController starts the controller, also again after it ended.
func (l *Lab) StartController(ctx context.Context) error {
	kubeconfig, err := l.kubeconfig(ctx, "controller", controllerAccount, "")
	if err != nil {
		return err
	}
	command := exec.Command(l.Binary("braid-controller"),
		"--kubeconfig", kubeconfig, "--namespace", SystemNamespace, "--health-probe-bind-address", "0",
		"--metrics-bind-address", cmp.Or(l.options.ControllerMetrics, "0"))
	l.Controller, err = l.start("controller", command)
	return err
}

// MetricsPort is where agents serve metrics, as the chart has them do.
const MetricsPort = 9478

// StartAgent starts the agent of a node, inside the node.
func (l *Lab) StartAgent(ctx context.Context, node *network.Node) error {
	if _, err := l.kubeconfig(ctx, node.NodeName(), agentAccount, node.NodeName()); err != nil {
		return err
	}
	return l.RestartAgent(node)
}

// RestartAgent starts the agent of a node with the token of the last one, for which no
// API server is needed.
func (l *Lab) RestartAgent(node *network.Node) (err error) {
	name := node.NodeName()
	arguments := []string{
		"--node-name", name, "--kubeconfig", l.kubeconfigPath(name), "--namespace", SystemNamespace,
		"--pin-path", l.PinPath(name), "--state-path", l.StatePath(name), "--saved-path", l.SavedPath(name), "--netns-dirs", network.Directory,
		"--metrics-bind-address", ":" + strconv.Itoa(MetricsPort),
		"--cgroup-path", l.path("cgroup"), // its pods have none
		"--guest-agent-path", l.GuestAgents(), "--pods-path", l.PodsDirectory(),
	}
	if l.options.SpreadingInterval > 0 {
		arguments = append(arguments, "--spreading-interval", l.options.SpreadingInterval.String())
	}
	command := node.Command(context.Background(), l.Binary("braid-agent"), arguments...)
	l.Agents[name], err = l.start("agent-"+name, command)
	return err
}

// startPod starts the process of a pod, if it has one.
func (l *Lab) startPod(pod Pod) error {
	if !pod.Serves {
		return nil
	}
	command := l.Network.Pod(pod.Name).Command(context.Background(),
		l.Binary("traffic"), "serve", "--listen", ":"+strconv.Itoa(TrafficPort))
	process, err := l.start("pod-"+pod.Name, command)
	l.pods = append(l.pods, process)
	return err
}

func (l *Lab) processes() []*Process {
	processes := slices.Clone(l.pods)
	if l.Controller != nil {
		processes = append(processes, l.Controller)
	}
	for _, agent := range l.Agents {
		processes = append(processes, agent)
	}
	return processes
}

// waitForBraid waits until every agent reports and every serving pod listens.
func (l *Lab) waitForBraid(ctx context.Context) error {
	for _, node := range l.Network.Nodes {
		if err := l.WaitForAgent(ctx, node.NodeName()); err != nil {
			return err
		}
	}
	for _, pod := range l.options.Pods {
		if !pod.Serves {
			continue
		}
		inside := l.Network.Pod(pod.Name)
		err := eventually(ctx, l.processes(), func(ctx context.Context) error { return listens(ctx, inside) })
		if err != nil {
			return err
		}
	}
	return nil
}

// WaitForAgent waits until a node's agent has reported itself ready.
func (l *Lab) WaitForAgent(ctx context.Context, node string) error {
	return eventually(ctx, l.processes(), func(ctx context.Context) error {
		var reported v1alpha1.MPTCPNode
		if err := l.Client.Get(ctx, client.ObjectKey{Name: node}, &reported); err != nil {
			return fmt.Errorf("waiting for the agent of %s: %w", node, err)
		}
		if !meta.IsStatusConditionTrue(reported.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("the agent of %s is not ready: %v", node, reported.Status.Conditions)
		}
		return nil
	})
}

func listens(ctx context.Context, pod *network.Pod) error {
	connection, err := pod.Dial(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(TrafficPort))
	if err != nil {
		return fmt.Errorf("waiting for the server in pod %s: %w", pod.PodName, err)
	}
	return connection.Close()
}
