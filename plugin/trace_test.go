// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestATraceThatCannotBeSaysWhy(t *testing.T) {
	s := newScene(t)
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "braid-system"}}, nil)
	s.addPod("web", "node1")
	for name, test := range map[string]struct{ arguments, says string }{
		"without a pod":                    {"--to 10.0.0.1:80", "give --pod"},
		"without a packet":                 {"--pod default/web", "one of --to and --pcap"},
		"of a pod that does not exist":     {"--pod default/wbe --to 10.0.0.1:80", `pods "wbe" not found`},
		"to what nobody is called":         {"--pod web --to nobody:80", "--to"},
		"to an address of another version": {"--pod web --to [fd00::1]:80", "no address of the same version"},
		"where no agent runs":              {"--pod default/web --to 10.0.0.1:80", "no agent runs"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.run(append([]string{"trace"}, strings.Fields(test.arguments)...)...)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error is %v, wanted one that says %q", err, test.says)
			}
		})
	}
}

func TestATraceIsAskedOfTheAgentOnThePodsNode(t *testing.T) {
	n := &nodes{agent: func(_ string, command []string, in io.Reader, out io.Writer) error {
		if slices.Contains(command, "--pcap=-") {
			capture, err := io.ReadAll(in)
			fmt.Fprintf(out, "%d bytes of capture\n", len(capture))
			return err
		}
		fmt.Fprintln(out, "leaves by path green (ens2)")
		return nil
	}}
	s := newNodeScene(t, n)
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "braid-system"}}, nil)
	s.addKubelet("node1", "192.0.2.1")
	s.addSystemPod("agent", "agent-node1", "node1", "192.0.2.1")
	s.addPod("web", "node1")
	out, err := s.run("trace", "--pod", "default/web", "--to", "10.0.1.7:80", "--type", "MPJoin", "--token", "0x1", "--port", "40001", "-o", "json")
	if err != nil || out != "leaves by path green (ens2)\n" {
		t.Errorf("%v: %q", err, out)
	}
	capture := filepath.Join(t.TempDir(), "web.pcap")
	if err := os.WriteFile(capture, make([]byte, 100000), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err = s.run("trace", "--pod", "web", "--pcap", capture); err != nil || out != "100000 bytes of capture\n" {
		t.Errorf("%v: %q", err, out)
	}
	wanted := []string{
		"agent-node1 /braid-trace --pod=default/web --address=10.0.0.9 --pcap=-",
		"agent-node1 /braid-trace --pod=default/web --address=10.0.0.9:40001 --to=10.0.1.7:80 --output=json --token=0x1 --type=MPJoin",
	}
	if asked := n.asked(); !slices.Equal(asked, wanted) {
		t.Errorf("the agent was asked:\n%s", strings.Join(asked, "\n"))
	}
}
