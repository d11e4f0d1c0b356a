// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"
)

// deny has a node do what a policy engine would for a NetworkPolicy that keeps the
// client from a server: drop its packets at the hook where such engines work. Cilium is
// one, and denies by the policy alone.
func deny(ctx context.Context, t *testing.T, node, from, to string) {
	t.Helper()
	if onCilium() {
		t.Cleanup(func() { allow(t, node) })
		pod := mustKubectl(ctx, t, "get", "pod", "--field-selector=status.podIP="+to, "--output=jsonpath={.items[0].metadata.name}")
		mustKubectl(ctx, t, "apply", "--filename", writeFile(t, fmt.Sprintf(networkPolicy, pod)))
		time.Sleep(2 * time.Second) // nothing says when the policy holds
		return
	}
	rules := fmt.Sprintf("add table inet deny; add chain inet deny forward { type filter hook forward priority 0; }; "+
		"add rule inet deny forward ip saddr %s ip daddr %s counter drop", from, to)
	if _, err := cluster.onNode(ctx, node, "nft", rules); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { allow(t, node) })
}

// networkPolicy keeps the client from a pod, by a label that this has from the beginning:
// Cilium takes a new label into account seconds later, and blocks of addresses never for
// those of pods.
const networkPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchExpressions: [{key: pod, operator: NotIn, values: [%s]}]}}]}]
`

func allow(t *testing.T, node string) {
	t.Helper()
	if onCilium() {
		mustKubectl(context.Background(), t, "delete", "networkpolicy", "deny", "--ignore-not-found")
		return
	}
	if _, err := cluster.onNode(context.Background(), node, "nft", "add table inet deny; delete table inet deny"); err != nil {
		t.Error(err)
	}
}

// enforces is whether the cluster network has an engine for NetworkPolicies itself.
func enforces() bool { return strings.HasPrefix(os.Getenv("NETWORK"), "calico") }

const denial = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [%s/32]}}]}]
`

// denyNew keeps the client's new connections from a server, by the cluster network's own
// engine where it has one: what lasts already, such engines let pass.
func denyNew(ctx context.Context, t *testing.T, client, server string) {
	t.Helper()
	if !enforces() {
		deny(ctx, t, cluster.nodes()[0], client, server)
		return
	}
	enforce(ctx, t, fmt.Sprintf(denial, server))
	await(t, "the NetworkPolicy has no effect", func() error { return denied(fetch(ctx, server)) })
}

func allowNew(ctx context.Context, t *testing.T, server string) {
	t.Helper()
	if !enforces() {
		allow(t, cluster.nodes()[0])
		return
	}
	mustKubectl(ctx, t, "delete", "networkpolicy", "deny")
	await(t, "what the NetworkPolicy denied", func() error { return fetch(ctx, server) })
	// The kernel takes what was dropped for a middlebox, and uses plain TCP for a minute.
	await(t, "new connections are not spread again", func() error { return usesAll(ctx, t, serverAddress(ctx, t, "traffic")) })
}

// enforce applies a manifest of NetworkPolicies for as long as the test runs.
func enforce(ctx context.Context, t *testing.T, manifest string) {
	t.Helper()
	file := writeFile(t, manifest)
	mustKubectl(ctx, t, "apply", "--filename", file)
	t.Cleanup(func() { mustKubectl(context.Background(), t, "delete", "--filename", file, "--ignore-not-found") })
}

var errAnswered = errors.New("a denied server answered")

// denied is nil where a request failed.
func denied(err error) error {
	if err == nil {
		return errAnswered
	}
	return nil
}

// fetch has the client ask a server for a file.
func fetch(ctx context.Context, server string) error {
	return fetchFrom(ctx, "client", "tools", server)
}

func fetchFrom(ctx context.Context, pod, container, server string) error {
	_, err := kubectl(ctx, "exec", pod, "--container", container, "--", "mptcpize", "run",
		"curl", "--silent", "--fail", "--max-time", "4", "--output", "/dev/null", "http://"+server+"/10k")
	return err
}

func TestADestinationThatIsDeniedIsDeniedOnEveryPath(t *testing.T) {
	feature := features.New("network policy").
		Setup(applyWorkload).
		Assess("new connections do not get through, others do", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			client, denied, other := serverAddress(ctx, t, "client"), serverAddress(ctx, t, "web-a"), serverAddress(ctx, t, "web-b")
			if err := fetch(ctx, denied); err != nil {
				t.Errorf("before anything is denied: %v", err)
			}
			denyNew(ctx, t, client, denied)
			for range 3 {
				if err := fetch(ctx, denied); err == nil {
					t.Error("a denied server answered")
				}
			}
			if err := fetch(ctx, other); err != nil {
				t.Errorf("a server that is not denied: %v", err)
			}
			allowNew(ctx, t, denied)
			return ctx
		}).
		Assess("a transfer over all paths stops on all of them", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			server := serverAddress(ctx, t, "traffic")
			transfer := start(func() (string, error) {
				return kubectl(ctx, "exec", "client", "--container", "traffic", "--", "/traffic", "run", server+":5001", "--duration", "12s", "--json")
			})
			time.Sleep(3 * time.Second)
			deny(ctx, t, cluster.nodes()[0], serverAddress(ctx, t, "client"), server)
			time.Sleep(time.Second)
			before := sent(ctx, t)
			time.Sleep(3 * time.Second)
			for i, after := range sent(ctx, t) {
				if bytes := after - before[i]; bytes > 200_000 {
					t.Errorf("path %s still carried %d bytes", paths[i], bytes)
				}
			}
			allow(t, cluster.nodes()[0])
			if out := transfer.wait(t); !strings.Contains(out, `"subflows":3`) {
				t.Errorf("the transfer did not use three subflows: %.400s", out)
			}
			return ctx
		}).
		Teardown(removePolicies).Feature()
	testenv.Test(t, feature)
}

// onlyTheClient may reach the web servers.
const onlyTheClient = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-the-client}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]
`

// Without an engine this is a download and nothing else, as in other tests.
func TestWhatANetworkPolicyAllowsIsSpread(t *testing.T) {
	feature := features.New("network policy").
		Setup(applyWorkload).
		Assess("and goes on when the policy comes, which denies others", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			server := serverAddress(ctx, t, "web-b")
			transfer := start(func() (string, error) { return "", download(ctx, server) })
			time.Sleep(time.Second)
			enforce(ctx, t, onlyTheClient)
			transfer.wait(t)
			if enforces() {
				await(t, "the NetworkPolicy has no effect", func() error { return denied(fetchFrom(ctx, "web-a", "nginx", server)) })
			}
			before := received(ctx, t)
			if err := download(ctx, server); err != nil {
				t.Error(err)
			}
			shares(t, before, received(ctx, t))
			return ctx
		}).
		Teardown(removePolicies).Feature()
	testenv.Test(t, feature)
}

// download has the client fetch a large file.
func download(ctx context.Context, server string) error {
	_, err := kubectl(ctx, "exec", "client", "--container", "tools", "--", "mptcpize", "run",
		"curl", "--silent", "--fail", "--output", "/dev/null", "http://"+server+"/100m")
	return err
}
