// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"

	"braid.dev/braid/internal/testutil"
)

// holding is what goes on while a test changes things: in pods, because what the
// API server carries does not outlive it.
type holding struct {
	Connections, Lost int
	Multipath         bool
	Exchanges         int64
	LongestMs         float64
	Errors            []string

	Requests, Failed int
	// Complaints are what programs said beside.
	Complaints string
}

// lost are connections and requests.
func (h *holding) lost() int { return h.Lost + h.Failed }

const heldConnections = 200

// patience is how long a loaded machine may take for what a quiet one does in seconds.
const patience = 2 * time.Minute

// await looks again and again until there is no error.
func await(t *testing.T, what string, look func() error) {
	t.Helper()
	if _, err := testutil.Until(patience, look); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// startHolding makes servers, a policy for all, and what goes on.
func startHolding(ctx context.Context, t *testing.T, config *envconf.Config) context.Context {
	t.Helper()
	ctx = removeWorkload(ctx, t, config)
	mustKubectl(ctx, t, "apply", "--filename", manifest(t, "lifecycle.yaml"))
	mustKubectl(ctx, t, "wait", "--for=condition=Ready", "pod/steady", "pod/third", "pod/client", "--timeout=2m")
	for i := range paths {
		mustKubectl(ctx, t, "apply", "--filename", writePath(t, i))
	}
	mustKubectl(ctx, t, "apply", "--filename", "e2e/cluster/testdata/recorded.yaml")
	mustKubectl(ctx, t, "wait", "--for=condition=Programmed", "mpol/recorded", "--timeout=2m")
	mustKubectl(ctx, t, "apply", "--filename", manifest(t, "holding.yaml", "SERVICE", serviceAddress(ctx, t, "steady")))
	await(t, "connections and requests do not begin", func() error { return goesOn(ctx, &holding{}) })
	return ctx
}

func stopHolding(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	t.Helper()
	mustKubectl(ctx, t, "delete", "mpol,mpath", "--all")
	for _, name := range []string{"holding.yaml", "lifecycle.yaml"} {
		mustKubectl(ctx, t, "delete", "--filename", manifest(t, name), "--grace-period=1")
	}
	return ctx
}

// manifest is one of testdata, with the names that the nodes have here and further
// replacements.
func manifest(t *testing.T, name string, replacements ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, "e2e/cluster/testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for i, node := range cluster.nodes() {
		replacements = append(replacements, "hostname: node"+string(rune('1'+i))+"}", "hostname: "+node+"}")
	}
	return writeFile(t, strings.NewReplacer(replacements...).Replace(string(content)))
}

// held is what the pods say last.
func held(ctx context.Context) (*holding, error) {
	var all holding
	for _, pod := range []string{"holder", "requester"} {
		out, err := kubectl(ctx, "logs", pod, "--timestamps")
		if err != nil {
			return nil, err
		}
		last := ""
		for line := range strings.Lines(out) {
			if _, said, _ := strings.Cut(line, " "); strings.HasPrefix(said, "{") {
				last = said
			} else {
				all.Complaints += line
			}
		}
		if err := json.Unmarshal([]byte(last), &all); err != nil {
			return nil, err
		}
	}
	return &all, nil
}

// goesOn is nil when more was exchanged and asked for than before.
func goesOn(ctx context.Context, before *holding) error {
	now, err := held(ctx)
	if err != nil {
		return err
	}
	if now.Connections != heldConnections || now.Exchanges < before.Exchanges+heldConnections || now.Requests < before.Requests+5 {
		return fmt.Errorf("there are %+v, and were %+v", *now, *before)
	}
	return nil
}

// stillHolds fails where something was lost, or nothing goes on any more.
func stillHolds(ctx context.Context, t *testing.T, what string) *holding {
	t.Helper()
	var now *holding
	await(t, what+": what was held is not known", func() (err error) {
		now, err = held(ctx)
		return err
	})
	if now.lost() > 0 || !now.Multipath {
		t.Errorf("%s: connections or requests were lost: %+v", what, *now)
	}
	if now.Lost < now.Connections {
		await(t, what+": nothing goes on", func() error { return goesOn(ctx, now) })
	}
	return now
}

// awaitConvergence waits until everything is fine, and returns how long that took.
func awaitConvergence(ctx context.Context, t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	await(t, "not everything is fine", func() error { return converged(ctx) })
	return time.Since(began)
}

func converged(ctx context.Context) error {
	for what, counts := range map[string]string{
		"daemonset/braid-agent":       "{.status.desiredNumberScheduled} {.status.updatedNumberScheduled} {.status.numberReady}",
		"deployment/braid-controller": "{.spec.replicas} {.status.updatedReplicas} {.status.readyReplicas}",
	} {
		found, err := kubectl(ctx, "get", what, "--namespace", systemNamespace, "--output",
			"jsonpath={.metadata.generation} {.status.observedGeneration} "+counts)
		fields := strings.Fields(found)
		if err != nil || len(fields) != 5 || fields[0] != fields[1] || fields[2] != fields[3] || fields[2] != fields[4] {
			return fmt.Errorf("%s: generation, observed, wanted, of this version and ready are %s: %w", what, found, err)
		}
	}
	out, err := run(ctx, pluginBin, "status")
	if err != nil || !strings.Contains(out, "Everything is ") {
		return fmt.Errorf("kubectl braid status: %w: %s", err, out)
	}
	return nil
}

// expectSpread waits until a new connection to the third node has its subflows,
// and fails unless it uses all paths.
func expectSpread(ctx context.Context, t *testing.T) context.Context {
	t.Helper()
	await(t, "new connections are not spread", func() error { return spread(ctx, t) })
	return ctx
}

// spread has the client send to the third node.
func spread(ctx context.Context, t *testing.T) error {
	address, err := kubectl(ctx, "get", "pod", "third", "--output", "jsonpath={.status.podIP}")
	if err != nil {
		return err
	}
	return usesAll(ctx, t, address)
}

// usesAll has the client send to a server, and fails unless that uses all paths.
func usesAll(ctx context.Context, t *testing.T, address string) error {
	t.Helper()
	before := sent(ctx, t)
	out, err := kubectl(ctx, "exec", "client", "--container", "traffic", "--", "/traffic", "run", address+":5001", "--duration", "2s", "--verify", "--json")
	if err != nil {
		return err
	}
	if !strings.Contains(out, `"subflows":3`) || !strings.Contains(out, `"failed":0`) {
		return fmt.Errorf("a connection to %s: %.300s", address, out)
	}
	for i, after := range sent(ctx, t) {
		if after-before[i] < 1_000_000 {
			return fmt.Errorf("path %s carried %d bytes of it", paths[i], after-before[i])
		}
	}
	return nil
}

// versions of what this checkout pins.
var versions = map[string]string{"datapath": "v2", "endpoints": "v1"}

// expectVersion waits until all nodes have the pins that the images with this tag make,
// and no others. What came before may have had other versions: of it there is one.
func expectVersion(ctx context.Context, t *testing.T, tag string) {
	t.Helper()
	await(t, "pins", func() error {
		for _, node := range cluster.nodes() {
			for part, version := range versions {
				if tag == otherPins {
					version += otherPins
				}
				out, err := cluster.insideNode(ctx, node, "ls", "/sys/fs/bpf/braid/"+part)
				found := strings.Fields(out)
				if err != nil || len(found) != 1 || found[0] != version && (tag != previous || strings.HasSuffix(found[0], otherPins)) {
					return errors.Join(fmt.Errorf("%s has these versions of the %s instead of %s: %v", node, part, version, found), err)
				}
			}
		}
		return nil
	})
}
