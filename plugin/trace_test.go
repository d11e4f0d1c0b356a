// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
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
		"to what is no address":            {"--pod web --to web:80", "--to"},
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
