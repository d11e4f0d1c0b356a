// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAShellCompletesNames(t *testing.T) {
	s := newScene(t)
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, nil)
	s.addPath("blue")
	s.addPath("green")
	s.addNode("node1")
	s.addPod("web", "node1")
	s.addPolicy("spread", nil)
	tests := map[string]struct{ typed, want string }{
		"commands":            {"ex", "explain"},
		"pods to explain":     {"explain |", "web"},
		"no second pod":       {"explain web |", ""},
		"pods of top":         {"top |", "web"},
		"pods of a namespace": {"top --namespace kube-system |", ""},
		"namespaces":          {"events --namespace sh", "shop"},
		"nodes":               {"top --node |", "node1"},
		"paths":               {"top --path |", "blue green"},
		"columns to sort by":  {"top --sort r", "rate received rtt"},
		"kinds of objects":    {"events --for m", "mpol/ mguard/ mep/ mpath/ mnode/ mplan/"},
		"objects of a kind":   {"events --for mpol/|", "mpol/spread"},
		"paths as objects":    {"events --for mpath/b", "mpath/blue"},
		"objects of no kind":  {"events --for secret/|", ""},
		"contexts":            {"status --context |", "braid"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			typed := strings.Split(test.typed, " ")
			typed[len(typed)-1] = strings.TrimSuffix(typed[len(typed)-1], "|")
			out, err := s.complete(typed...)
			if err != nil {
				t.Error(err)
			}
			begun := typed[len(typed)-1]
			var names []string
			for line := range strings.Lines(out) {
				name, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
				if strings.HasPrefix(line, ":") {
					break
				}
				if strings.HasPrefix(name, begun) { // as shells do
					names = append(names, name)
				}
			}
			if got := strings.Join(names, " "); got != test.want {
				t.Errorf("%q is completed by %q, want %q", test.typed, got, test.want)
			}
		})
	}
}

// complete is what a shell asks when a user presses the tab key.
func (s *scene) complete(typed ...string) (string, error) {
	s.t.Helper()
	s.t.Setenv("KUBECONFIG", s.server.KubeconfigPath())
	return s.runAsIs(append([]string{"__complete"}, typed...)...)
}
