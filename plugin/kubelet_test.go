// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"      //nolint:staticcheck // where it moved is no dependency of ours
	"k8s.io/apimachinery/pkg/util/httpstream/spdy" //nolint:staticcheck // where it moved is no dependency of ours
)

// nodes stand behind the API server's tunnel for kubelets and pods: whatever address
// the server connects to, it reaches them.
type nodes struct {
	t *testing.T
	// agent answers a command in the container of an agent: the pod's name is given.
	agent func(agent string, command []string, in io.Reader, out io.Writer) error
	// logs are by pod/container, with /previous behind for those of the run before.
	logs map[string]string

	mutex    sync.Mutex
	commands []string // that agents were asked
}

const kubeletPort, metricsPort = 10250, 9478

// newNodeScene is a scene whose nodes have kubelets that do what the test says.
func newNodeScene(t *testing.T, n *nodes) *scene {
	t.Helper()
	n.t = t
	n.listen(tunneled.Options.Tunnel)
	return sceneOf(t, tunneled.Use(t))
}

// listen serves the tunnel: an HTTP proxy on a Unix socket.
func (n *nodes) listen(socket string) {
	kubelet := httptest.NewTLSServer(http.HandlerFunc(n.kubelet))
	listener, err := net.Listen("unix", socket)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		listener.Close()
		kubelet.CloseClientConnections()
		kubelet.Close()
	})
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go tunnel(connection, map[string]string{
				fmt.Sprint(kubeletPort): kubelet.Listener.Addr().String(),
			})
		}
	}()
}

// tunnel connects to what listens for a port.
func tunnel(from net.Conn, addresses map[string]string) {
	defer from.Close()
	reader := bufio.NewReader(from)
	request, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	_, port, _ := net.SplitHostPort(request.Host)
	to, err := net.Dial("tcp", addresses[port])
	if err != nil {
		fmt.Fprint(from, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return
	}
	defer to.Close()
	fmt.Fprint(from, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() {
		_, _ = io.Copy(to, reader)
		to.Close()
	}()
	_, _ = io.Copy(from, to)
}

// kubelet serves /exec and /containerLogs, each followed by namespace, pod and
// container.
func (n *nodes) kubelet(w http.ResponseWriter, request *http.Request) {
	parts := strings.Split(strings.TrimPrefix(request.URL.Path, "/"), "/")
	switch {
	case len(parts) == 4 && parts[0] == "exec":
		n.exec(w, request, parts[2])
	case len(parts) == 4 && parts[0] == "containerLogs":
		key := parts[2] + "/" + parts[3]
		if request.URL.Query().Get("previous") == "true" {
			key += "/previous"
		}
		text, known := n.logs[key]
		if !known {
			http.Error(w, "there is no log of "+key, http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, text)
	default:
		http.NotFound(w, request)
	}
}

// exec speaks the protocol of streams in its fourth version, as kubelets do.
func (n *nodes) exec(w http.ResponseWriter, request *http.Request, pod string) {
	command := request.URL.Query()["command"]
	n.mutex.Lock()
	n.commands = append(n.commands, pod+" "+strings.Join(command, " "))
	n.mutex.Unlock()
	if _, err := httpstream.Handshake(request, w, []string{"v4.channel.k8s.io"}); err != nil {
		return
	}
	made := make(chan httpstream.Stream, 4)
	connection := spdy.NewResponseUpgrader().UpgradeResponse(w, request, func(stream httpstream.Stream, _ <-chan struct{}) error {
		made <- stream
		return nil
	})
	if connection == nil {
		return
	}
	defer connection.Close()
	streams := map[string]httpstream.Stream{}
	for len(streams) < 4 {
		select {
		case stream := <-made:
			streams[stream.Headers().Get(corev1.StreamType)] = stream
		case <-connection.CloseChan(): // whoever asked is gone already
			return
		case <-time.After(30 * time.Second):
			n.t.Errorf("only these streams were made: %v", streams)
			return
		}
	}
	status := metav1.Status{Status: metav1.StatusSuccess}
	if err := n.agent(pod, command, streams[corev1.StreamTypeStdin], streams[corev1.StreamTypeStdout]); err != nil {
		fmt.Fprintln(streams[corev1.StreamTypeStderr], err)
		status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Message: "it failed", Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: "ExitCode", Message: "1"}},
		}}
	}
	text, _ := json.Marshal(status)
	_, _ = streams[corev1.StreamTypeError].Write(text)
	for _, name := range []string{corev1.StreamTypeStdout, corev1.StreamTypeStderr, corev1.StreamTypeError} {
		streams[name].Close()
	}
	select { // the other end closes when it has read everything
	case <-connection.CloseChan():
	case <-time.After(30 * time.Second):
	}
}

// asked are the commands so far, sorted.
func (n *nodes) asked() []string {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return slices.Sorted(slices.Values(n.commands))
}

// addKubelet gives a node an address and a kubelet.
func (s *scene) addKubelet(name, address string) {
	s.t.Helper()
	var node corev1.Node
	node.Name = name
	s.create(&node, func() {
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
	})
}

// addSystemPod adds a pod of Braid's own to the namespace braid-system.
func (s *scene) addSystemPod(component, name, node, address string, environment ...corev1.EnvVar) {
	s.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "braid-system", Name: name, Labels: map[string]string{
			"app.kubernetes.io/name": "braid-" + component,
		}},
		Spec: corev1.PodSpec{NodeName: node, HostNetwork: component == "agent", Containers: []corev1.Container{{
			Name: component, Image: "braid.dev/braid-" + component + ":1", Env: environment,
			Args:  []string{"--namespace=braid-system"},
			Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: metricsPort, HostPort: metricsPort}},
		}}},
	}
	s.create(pod, func() {
		pod.Status.Phase = corev1.PodRunning
		pod.Status.PodIP, pod.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: component, Image: "braid.dev/braid-" + component + ":1", Ready: true, RestartCount: 1}}
	})
}
