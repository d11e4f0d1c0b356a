// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"
)

const nodePorts = `
apiVersion: v1
kind: Service
metadata: {name: port-local}
spec: {type: NodePort, externalTrafficPolicy: Local, selector: {pod: web-a}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: port-cluster}
spec: {type: NodePort, externalTrafficPolicy: Cluster, selector: {pod: web-a}, ports: [{port: 80}]}
`

// What comes to a node's port is passed on to the pod's node, with an address of the node that passes it on, or
// goes nowhere if the policy is Local. Braid must change neither who answers nor whom the server takes the client for.
func TestNodePortsAnswerByTheirExternalTrafficPolicyAsWithoutBraid(t *testing.T) {
	var without map[string]string
	feature := features.New("node ports").
		Setup(applyWorkload).
		Setup(func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "apply", "--filename", writeFile(t, nodePorts))
			mustKubectl(ctx, t, "delete", "mpol", "spread")
			return ctx
		}).
		Assess("Local answers on the pod's node alone, Cluster on each", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			await(t, "no node port answers", func() error {
				without = nodePortAnswers(ctx, t)
				if strings.Contains(without["port-local on the pod's node"], "exit status") || strings.Contains(without["port-cluster on another node"], "exit status") {
					return fmt.Errorf("%v", without)
				}
				return nil
			})
			if !strings.Contains(without["port-local on another node"], "exit status") {
				t.Errorf("a Service whose policy is Local answers on another node: %v", without)
			}
			return ctx
		}).
		Assess("with a policy it is the same", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "apply", "--filename", "e2e/cluster/testdata/policy.yaml")
			mustKubectl(ctx, t, "wait", "--for=condition=Programmed", "mpol/spread", "--timeout=60s")
			for range 3 {
				if with := nodePortAnswers(ctx, t); !maps.Equal(with, without) {
					t.Errorf("with a policy the answers are %v, without %v", with, without)
				}
			}
			t.Log(without)
			return ctx
		}).
		Teardown(func(ctx context.Context, t *testing.T, config *envconf.Config) context.Context {
			mustKubectl(ctx, t, "delete", "service", "port-local", "port-cluster")
			return removePolicies(ctx, t, config)
		}).Feature()
	testenv.Test(t, feature)
}

// nodePortAnswers are, for each Service and node, whom the server takes the client for and how much
// of a file arrives, or how curl fails.
func nodePortAnswers(ctx context.Context, t *testing.T) map[string]string {
	t.Helper()
	answers := map[string]string{}
	for _, service := range []string{"port-local", "port-cluster"} {
		port := mustKubectl(ctx, t, "get", "service", service, "--output", "jsonpath={.spec.ports[0].nodePort}")
		for i, which := range []string{"on the pod's node", "on another node"} {
			address := mustKubectl(ctx, t, "get", "node", cluster.nodes()[1+i], "--output", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
			answers[service+" "+which] = fromClient(ctx, fmt.Sprintf("http://%s:%s/", strings.Fields(address)[0], port))
		}
	}
	return answers
}

func fromClient(ctx context.Context, url string) string {
	const whoAndFile = "--silent --fail --connect-timeout 3 --max-time 20 %[1]sfrom --next --silent --fail --max-time 20 --output /dev/null --write-out %%{size_download} %[1]s1m"
	arguments := append([]string{"exec", "client", "--container", "tools", "--", "mptcpize", "run", "curl", "--fail-early"}, strings.Fields(fmt.Sprintf(whoAndFile, url))...)
	out, err := kubectl(ctx, arguments...)
	if err != nil {
		return "exit status: " + strings.TrimSpace(out)
	}
	return strings.Join(strings.Fields(out), " ")
}
