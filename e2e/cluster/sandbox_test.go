// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
)

// agentProcesses are the directories in /proc of the agents that run in containers.
func agentProcesses(t *testing.T) (all []string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		words, _ := os.ReadFile(line) // a process may have ended
		if bytes.HasPrefix(words, []byte("/braid-agent\x00")) && bytes.Contains(words, []byte("--proc-path=/host/proc\x00")) {
			all = append(all, filepath.Dir(line))
		}
	}
	return all
}

// refuseWriting looks with which error a file of the container cannot be written to
// or made, seen from the node, whose root has all rights.
func refuseWriting(process, file string) error {
	opened, err := os.OpenFile(filepath.Join(process, "root", file), os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		err = opened.Close()
	}
	return err
}

func agentsDoNotReachTheNode(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	agents := agentProcesses(t)
	if want := len(cluster.nodes()); len(agents) != want {
		t.Fatalf("%d agents run, wanted %d", len(agents), want)
	}
	for _, agent := range agents {
		for _, file := range []string{"host/proc/sys/kernel/core_pattern", "host/proc/1/oom_score_adj", "host/cgroup/made", "run/netns/made", "made"} {
			if err := refuseWriting(agent, file); !errors.Is(err, unix.EROFS) {
				t.Errorf("an agent that writes to %s gets: %v", file, err)
			}
		}
		if err := refuseWriting(agent, "host/proc/sys/net/mptcp/enabled"); err != nil {
			t.Errorf("an agent cannot set up MPTCP: %v", err)
		}
		status, err := os.ReadFile(filepath.Join(agent, "status"))
		if err != nil || !strings.Contains(string(status), "Seccomp:\t2\nSeccomp_filters:\t2\n") {
			t.Errorf("an agent is not held by the runtime's filter and its own: %v\n%s", err, status)
		}
	}
	return ctx
}
