// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"
)

// documented lists the capabilities in docs/security.md.
func documented(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile("(?m)^\\| `CAP_([A-Z_]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		names = append(names, match[1])
	}
	return names
}

// granted are those of the installed agents.
func granted(ctx context.Context, t *testing.T) (names []string) {
	t.Helper()
	out := mustKubectl(ctx, t, "get", "daemonset", "braid-agent", "--namespace", systemNamespace,
		"--output", "jsonpath={.spec.template.spec.containers[0].securityContext.capabilities.add}")
	if err := json.Unmarshal([]byte(out), &names); err != nil {
		t.Fatal(err)
	}
	return names
}

func setCapabilities(ctx context.Context, t *testing.T, names []string) {
	t.Helper()
	add, err := json.Marshal(names)
	if err != nil {
		t.Fatal(err)
	}
	patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/template/spec/containers/0/securityContext/capabilities/add", "value": %s},
		{"op": "replace", "path": "/spec/updateStrategy", "value": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%%"}}}]`, add)
	mustKubectl(ctx, t, "patch", "daemonset", "braid-agent", "--namespace", systemNamespace, "--type=json", "--patch", patch)
}

// rightsMissing tries what agents do and returns what they were not allowed to. It
// waits some time for it, because agents that were just replaced begin anew.
func rightsMissing(ctx context.Context, t *testing.T, patience time.Duration) string {
	t.Helper()
	// A policy that asks for everything: steering, subflows, pacing, rules.
	mustKubectl(ctx, t, "delete", "mpol", "--all")
	mustKubectl(ctx, t, "apply", "--filename", "e2e/cluster/testdata/everything.yaml")
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Second) {
		out, err := kubectl(ctx, "logs", "--namespace", systemNamespace, "--selector", "app.kubernetes.io/name=braid-agent", "--tail=-1")
		if err != nil {
			continue // a container that is just made has no log
		}
		for line := range strings.Lines(out) {
			if strings.Contains(line, "not permitted") || strings.Contains(line, "permission denied") {
				return line
			}
		}
	}
	return ""
}

func TestAgentsHaveExactlyTheCapabilitiesThatTheyNeed(t *testing.T) {
	feature := features.New("capabilities").
		Setup(applyWorkload).
		Assess("the chart gives those that are documented", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			if want, got := documented(t), granted(ctx, t); len(want) == 0 || !slices.Equal(want, got) {
				t.Errorf("the agents have %v, docs/security.md lists %v", got, want)
			}
			return ctx
		}).
		Assess("with them nothing is refused", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			if line := rightsMissing(ctx, t, 12*time.Second); line != "" {
				t.Errorf("an agent lacks a right: %s", line)
			}
			mustKubectl(ctx, t, "wait", "--for=condition=Programmed", "mpol/everything", "--timeout=30s")
			return ctx
		}).
		Assess("without any one of them something is", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			all := granted(ctx, t)
			for _, name := range all {
				setCapabilities(ctx, t, slices.DeleteFunc(slices.Clone(all), func(other string) bool { return other == name }))
				time.Sleep(3 * time.Second)
				if rightsMissing(ctx, t, 25*time.Second) == "" {
					t.Errorf("the agents do not miss %s", name)
				}
			}
			setCapabilities(ctx, t, all)
			mustKubectl(ctx, t, "rollout", "status", "daemonset/braid-agent", "--namespace", systemNamespace, "--timeout=120s")
			return ctx
		}).
		Teardown(removePolicies).Feature()
	testenv.Test(t, feature)
}
