// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"
)

func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRequestsThroughAServiceUseEveryNIC(t *testing.T) {
	feature := features.New("nginx and curl through a ClusterIP").
		Setup(applyWorkload).
		Assess("a download fills more than one NIC", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			awaitService(ctx, t)
			before := received(ctx, t)
			mustKubectl(ctx, t, "exec", "client", "--container", "tools", "--", "mptcpize", "run",
				"curl", "--silent", "--fail", "--output", "/dev/null", "http://"+serviceAddress(ctx, t, "web")+"/100m")
			shares(t, before, received(ctx, t))
			return ctx
		}).
		Assess("10,000 requests have no error", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			request(ctx, t, 10000, "10k")
			return ctx
		}).
		Assess("every join of connections that last reaches its backend", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			before := map[string]map[string]int64{}
			for _, pod := range webPods {
				before[pod] = settled(ctx, t, pod)
			}
			request(ctx, t, 2000, "100k", "-k")
			var joins int64
			for _, pod := range webPods {
				after := counters(ctx, t, pod)
				joinsArrived(t, pod, before[pod], after)
				joins += after["MPJoinAckRx"] - before[pod]["MPJoinAckRx"]
			}
			// 20 connections, of three subflows each when all have been opened.
			if joins < 20 {
				t.Errorf("20 connections that last got only %d joins", joins)
			}
			return ctx
		}).
		Teardown(removePolicies).Feature()
	testenv.Test(t, feature)
}

// awaitService waits until kube-proxy leads to the Service's pods from the client's node.
func awaitService(ctx context.Context, t *testing.T) {
	t.Helper()
	await(t, "the Service does not answer", func() error {
		_, err := kubectl(ctx, "exec", "client", "--container", "tools", "--", "curl", "--silent", "--fail",
			"--max-time", "5", "--output", "/dev/null", "http://"+serviceAddress(ctx, t, "web")+"/1k")
		return err
	})
}

var webPods = []string{"web-a", "web-b"}

// request asks the Service for a file, over and over.
func request(ctx context.Context, t *testing.T, times int, file string, options ...string) {
	t.Helper()
	arguments := append([]string{"exec", "client", "--container", "tools", "--", "mptcpize", "run", "ab", "-q", "-n", strconv.Itoa(times), "-c", "20"}, options...)
	out := mustKubectl(ctx, t, append(arguments, "http://"+serviceAddress(ctx, t, "web")+"/"+file)...)
	for _, line := range []string{"Failed requests:        0\n", fmt.Sprintf("Complete requests:      %d\n", times)} {
		if !strings.Contains(out, line) {
			t.Errorf("ab does not say %q:\n%s", line, out)
		}
	}
	// ab takes an answer with another status, such as 404, for a good one.
	if strings.Contains(out, "Non-2xx responses:") {
		t.Errorf("not every answer was the file:\n%s", out)
	}
}

// joinsArrived fails where joins reached a backend that does not know their
// connection. It says nothing about connections that are over when their joins
// come, as those of single requests are.
func joinsArrived(t *testing.T, pod string, before, after map[string]int64) {
	t.Helper()
	if after["MPJoinAckRx"] == before["MPJoinAckRx"] {
		t.Errorf("%s got no join at all", pod)
	}
	for _, name := range []string{"MPJoinNoTokenFound", "MPJoinSynAckHMacFailure", "MPJoinAckHMacFailure"} {
		if count := after[name] - before[name]; count > 0 {
			t.Errorf("%s: %s rose by %d", pod, name, count)
		}
	}
}

// received is what the client's node has received on each path, in bytes.
func received(ctx context.Context, t *testing.T) []int64 { return traffic(ctx, t, "RX:") }

// sent is what it has sent.
func sent(ctx context.Context, t *testing.T) []int64 { return traffic(ctx, t, "TX:") }

func traffic(ctx context.Context, t *testing.T, direction string) (bytes []int64) {
	t.Helper()
	return counted(ctx, t, cluster.nodes()[0], direction)
}

// counted is what each NIC of a node has sent or received.
func counted(ctx context.Context, t *testing.T, node, direction string) (bytes []int64) {
	t.Helper()
	for i := range paths {
		out, err := cluster.onNode(ctx, node, "ip", "-s", "-o", "link", "show", "dev", interfaceOf(i))
		if err != nil {
			t.Fatal(err)
		}
		// … RX: bytes packets errors … \    123 4 0 …
		_, statistics, _ := strings.Cut(out, direction)
		for field := range strings.FieldsSeq(statistics) {
			if count, err := strconv.ParseInt(field, 10, 64); err == nil {
				bytes = append(bytes, count)
				break
			}
		}
	}
	return bytes
}

// shares fails unless each path carried a good part of it.
func shares(t *testing.T, before, after []int64) {
	t.Helper()
	var total int64
	for i := range after {
		total += after[i] - before[i]
	}
	for i := range after {
		if share := float64(after[i]-before[i]) / float64(total); share < 0.15 {
			t.Errorf("path %s carried %.0f %% of %d bytes", paths[i], 100*share, total)
		}
	}
}

// settled are a pod's counters once joins of requests before have stopped to come.
func settled(ctx context.Context, t *testing.T, pod string) map[string]int64 {
	t.Helper()
	last := counters(ctx, t, pod)
	await(t, "joins of requests before still come", func() error {
		time.Sleep(time.Second)
		now := counters(ctx, t, pod)
		come := now["MPJoinSynRx"] - last["MPJoinSynRx"]
		if last = now; come != 0 {
			return fmt.Errorf("%d joins in a second", come)
		}
		return nil
	})
	return last
}

// counters are MPTCP's in a pod's network namespace.
func counters(ctx context.Context, t *testing.T, pod string) map[string]int64 {
	t.Helper()
	found := map[string]int64{}
	var names []string
	for line := range strings.Lines(mustKubectl(ctx, t, "exec", pod, "--", "busybox", "cat", "/proc/net/netstat")) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "MPTcpExt:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i := 1; i < len(fields); i++ {
			count, err := strconv.ParseInt(fields[i], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			found[names[i]] = count
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no counters of MPTCP", pod)
	}
	return found
}
