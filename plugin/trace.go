// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/output"
)

// tracing is a packet, or a file of some, to be replayed.
type tracing struct {
	namespace string // of Braid
	pod, to   string
	port      uint16
	capture   string
	// given are the flags that braid-trace has too.
	given []string
}

func (p *plugin) traceCommand() *cobra.Command {
	t := &tracing{}
	command := &cobra.Command{
		Use:   "trace --pod [NAMESPACE/]NAME (--to ADDRESS|NAME:PORT | --pcap FILE)",
		Short: "Replay a packet of a pod through its node's programs, and say what each did",
		Long: `Replay a packet of a pod through its node's programs, and say what each did. It runs
in the container of the node's agent, on copies of the programs: nothing is sent, and
nothing on the node changes. Netfilter is not replayed: what is sent to a Service is traced
to the first ready pod behind it.`,
		Example: "  kubectl braid trace --pod shop/web-0 --to 10.244.2.7:80\n" +
			"  kubectl braid trace --pod shop/web-0 --to service/db:5432\n" +
			"  kubectl braid trace --pod shop/web-0 --to 10.244.2.7:80 --type MPJoin --token 0x1a2b3c4d\n" +
			"  kubectl braid trace --pod shop/web-0 --pcap web.pcap",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			t.given = agentapi.GivenTraceFlags(command.Flags())
			p.warnings = command.ErrOrStderr()
			return p.trace(command.Context(), t, command.InOrStdin())
		},
	}
	flags := command.Flags()
	addSystem(command, &t.namespace)
	flags.StringVar(&t.pod, "pod", "", "the pod")
	flags.StringVar(&t.to, "to", "", "address and port of the other end, or the name of a Service or pod and a port: db:5432, shop/db:postgres, pod/db-0:5432")
	flags.Uint16Var(&t.port, "port", 0, "the pod's port (default 40000)")
	flags.StringVar(&t.capture, "pcap", "", "file of packets to replay, one after the other, as tcpdump writes it; - for the standard input")
	new(agentapi.TraceFlags).Add(flags)
	return p.addFormat(command)
}

func (p *plugin) trace(ctx context.Context, t *tracing, standard io.Reader) error {
	if t.pod == "" || (t.to == "") == (t.capture == "") {
		return errors.New("give --pod, and one of --to and --pcap")
	}
	system, err := p.system(t.namespace)
	if err != nil {
		return err
	}
	pod, err := p.podNamed(ctx, system, t.pod)
	if err != nil {
		return err
	}
	if t.to != "" {
		to, note, err := system.destination(ctx, pod, t.to)
		if err != nil {
			return err
		}
		if note != "" {
			fmt.Fprintln(p.warnings, note)
		}
		t.to = to.String()
	}
	arguments, err := t.arguments(pod, p.format)
	if err != nil {
		return err
	}
	agents, err := system.agents(ctx)
	if err != nil {
		return err
	}
	agent := agents[pod.Spec.NodeName]
	if agent == nil {
		return fmt.Errorf("no agent runs on %s, the node of the pod", pod.Spec.NodeName)
	}
	input, err := t.input(standard)
	if err != nil {
		return err
	}
	defer input.Close()
	return system.run(ctx, agent, input, p.out, append([]string{traceProgram}, arguments...))
}

// podNamed reads a pod that has a node and an address.
func (p *plugin) podNamed(ctx context.Context, system *system, name string) (*corev1.Pod, error) {
	namespace, rest, found := strings.Cut(name, "/")
	if !found {
		var err error
		if namespace, _, err = p.namespace(); err != nil {
			return nil, err
		}
		rest = name
	}
	pod, err := system.core.CoreV1().Pods(namespace).Get(ctx, rest, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading pod %s/%s: %w", namespace, rest, err)
	}
	if pod.Spec.NodeName == "" || len(pod.Status.PodIPs) == 0 {
		return nil, fmt.Errorf("pod %s/%s has no node or no address yet", namespace, rest)
	}
	if pod.Spec.HostNetwork {
		return nil, fmt.Errorf("pod %s/%s uses its node's network: Braid leaves it alone", namespace, rest)
	}
	return pod, nil
}

// arguments are those of the command braid-trace.
func (t *tracing) arguments(pod *corev1.Pod, format output.Format) ([]string, error) {
	address, err := t.address(pod)
	if err != nil {
		return nil, err
	}
	arguments := []string{"--pod=" + pod.Namespace + "/" + pod.Name, "--address=" + address}
	if t.capture != "" {
		arguments = append(arguments, "--pcap=-")
	} else {
		arguments = append(arguments, "--to="+t.to)
	}
	if format != output.Text {
		arguments = append(arguments, "--output="+string(format))
	}
	return append(arguments, t.given...), nil
}

// address is the pod's, of the version of the other end, and its port.
func (t *tracing) address(pod *corev1.Pod) (string, error) {
	chosen := pod.Status.PodIPs[0].IP
	if t.to != "" {
		other, err := netip.ParseAddrPort(t.to)
		if err != nil {
			return "", fmt.Errorf("--to: %w", err)
		}
		chosen = ""
		for _, candidate := range pod.Status.PodIPs {
			if own, err := netip.ParseAddr(candidate.IP); err == nil && own.Is4() == other.Addr().Is4() {
				chosen = candidate.IP
				break
			}
		}
	}
	own, err := netip.ParseAddr(chosen)
	if err != nil {
		return "", fmt.Errorf("pod %s/%s has no address of the same version as %s", pod.Namespace, pod.Name, t.to)
	}
	if t.port == 0 {
		return own.String(), nil
	}
	return netip.AddrPortFrom(own, t.port).String(), nil
}

// input is what the command reads: the capture, or nothing.
func (t *tracing) input(standard io.Reader) (io.ReadCloser, error) {
	switch t.capture {
	case "":
		return io.NopCloser(strings.NewReader("")), nil
	case "-":
		return io.NopCloser(standard), nil
	}
	file, err := os.Open(t.capture)
	if err != nil {
		return nil, fmt.Errorf("opening the capture: %w", err)
	}
	return file, nil
}
