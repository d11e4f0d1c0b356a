// SPDX-License-Identifier: Apache-2.0

// Package charts_test renders the chart, and installs it on a real API server.
package charts_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/internal/testutil"
	"braid.dev/braid/plugin"
)

var update = flag.Bool("update", false, "write the golden files anew")

const namespace = "networking" // not the one of config/, to see that it is replaced

var helmPath string

func TestMain(m *testing.M) {
	flag.Parse()
	out, err := exec.Command("../hack/helm/build.sh").Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, "building helm:", err)
		os.Exit(1)
	}
	helmPath = strings.TrimSpace(string(out))
	os.Exit(m.Run())
}

// helm runs it with nothing of the machine's own settings.
func helm(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	command := exec.Command(helmPath, arguments...)
	home := t.TempDir()
	command.Env = append(os.Environ(), "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home)
	out, err := command.CombinedOutput()
	return string(out), err
}

func mustHelm(t *testing.T, arguments ...string) string {
	t.Helper()
	out, err := helm(t, arguments...)
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
	return out
}

func TestTheChartHasNothingThatHelmWarnsOf(t *testing.T) {
	mustHelm(t, "lint", "--strict", "--with-subcharts", "braid")
}

func TestTheChartRendersAsItsGoldenFilesSay(t *testing.T) {
	tests := map[string][]string{
		"defaults":   nil,
		"everything": {"--values", "testdata/everything.yaml"},
		"least":      {"--values", "testdata/least.yaml"},
	}
	for name, arguments := range tests {
		t.Run(name, func(t *testing.T) {
			// The CRDs are in config/crd, and compared by the test that installs them.
			arguments := append([]string{"template", "braid", "braid", "--namespace", namespace, "--set", "crds.install=false"}, arguments...)
			compare(t, filepath.Join("testdata", name+".golden.yaml"), mustHelm(t, arguments...))
		})
	}
}

func compare(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, []byte(got)) {
		t.Errorf("%s does not match; go test ./charts -update writes it anew, git diff shows the difference", path)
	}
}

func TestValuesThatCannotWorkAreRefusedByName(t *testing.T) {
	tests := map[string]struct{ value, names string }{
		"a key that does not exist":       {"agent.replicas=2", "replicas"},
		"a pull policy that is not one":   {"image.pullPolicy=Sometimes", "pullPolicy"},
		"no controller at all":            {"controller.replicas=0", "replicas"},
		"a relative directory":            {"agent.networkNamespaces=run/netns", "networkNamespaces"},
		"a port beyond the last":          {"metrics.port=65536", "port"},
		"a level of logging that is none": {"agent.logLevel=loud", "logLevel"},
		"a text where a number belongs":   {"controller.verbosity=high", "verbosity"},
		"no port for probes":              {"health.port=0", "port"},
		"a quote in a directory":          {"sockets.preload.directory=/opt/'braid'", "directory"},
		"a library that is a path":        {"sockets.preload.library=lib/x.so", "library"},
		"a digest that is a tag":          {"image.digests.agent=0.1.0", "agent"},
		"a version that is none":          {"sockets.preload.apiVersion=v2", "apiVersion"},
		"no agent that may be replaced":   {"agent.maxUnavailable=0", "maxUnavailable"},
		"a share of none":                 {"agent.maxUnavailable=0%", "maxUnavailable"},
		"a share of more than all":        {"agent.maxUnavailable=101%", "maxUnavailable"},
		"a monitor of nothing":            {"metrics.enabled=false,metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.enabled needs metrics.enabled"},
		"alerts on nothing":               {"metrics.enabled=false,metrics.prometheusRule.enabled=true", "metrics.prometheusRule.enabled needs"},
		"a dashboard of nothing":          {"metrics.enabled=false,metrics.dashboard.enabled=true", "metrics.dashboard.enabled needs"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := helm(t, "template", "braid", "braid", "--set", test.value)
			if err == nil {
				t.Fatalf("%s was accepted", test.value)
			}
			if !strings.Contains(out, test.names) {
				t.Errorf("the message does not name %s:\n%s", test.names, out)
			}
		})
	}
}

// cluster is a real API server and how to speak with it.
type cluster struct {
	t      *testing.T
	server *apiserver.Server
}

func (c cluster) helm(arguments ...string) string {
	c.t.Helper()
	return mustHelm(c.t, append(arguments, "--kubeconfig", c.server.KubeconfigPath(), "--namespace", namespace)...)
}

func (c cluster) tryKubectl(arguments ...string) (string, error) {
	c.t.Helper()
	directory, err := apiserver.DefaultBinDir()
	if err != nil {
		c.t.Fatal(err)
	}
	global := []string{"--kubeconfig", c.server.KubeconfigPath(), "--cache-dir", filepath.Join(c.server.Dir(), "kubectl")}
	out, err := exec.Command(filepath.Join(directory, "kubectl"), append(global, arguments...)...).CombinedOutput()
	return string(out), err
}

func (c cluster) kubectl(arguments ...string) string {
	c.t.Helper()
	out, err := c.tryKubectl(arguments...)
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
	return out
}

// named lists the objects of these kinds that carry Braid's name.
func (c cluster) named(kinds string) []string {
	c.t.Helper()
	var found []string
	for line := range strings.Lines(c.kubectl("get", kinds, "--all-namespaces", "--output", "name")) {
		if strings.Contains(line, "braid") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

func startServer(t *testing.T) *apiserver.Server {
	t.Helper()
	server, err := apiserver.Start(context.Background(), apiserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

const everyKind = "deployments,daemonsets,services,serviceaccounts,poddisruptionbudgets,networkpolicies," +
	"clusterroles,clusterrolebindings,roles,rolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings," +
	"mutatingadmissionpolicies,mutatingadmissionpolicybindings"

func TestAnInstallationCanBeUpgradedAndUninstalledByForceAndLeavesThePolicies(t *testing.T) {
	c := cluster{t, startServer(t)}

	c.helm("install", "braid", "braid", "--create-namespace")
	c.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
	c.kubectl("apply", "--server-side", "-k", "../config/samples")
	mayWrite := func(account, verb, resource string) string {
		// The answer no is an exit code too.
		out, _ := c.tryKubectl("auth", "can-i", verb, resource, "--as=system:serviceaccount:"+namespace+":"+account)
		return out[strings.LastIndexByte(strings.TrimSpace(out), '\n')+1:]
	}
	if got := mayWrite("braid-controller", "create", "mptcpnodeplans.braid.dev"); got != "yes\n" {
		t.Errorf("the controller may write plans: %s", got)
	}
	if got := mayWrite("braid-agent", "create", "mptcpnodeplans.braid.dev"); got != "no\n" {
		t.Errorf("an agent may write plans: %s", got)
	}

	c.helm("upgrade", "braid", "braid", "--set", "controller.replicas=3,sockets.preload.enabled=true")
	if got := c.kubectl("get", "deployment", "braid-controller", "--namespace", namespace, "--output", "jsonpath={.spec.replicas}"); got != "3" {
		t.Errorf("after the upgrade the controller has %s replicas", got)
	}

	c.selectAPod()
	c.helm("uninstall", "braid", "--no-hooks")
	if left := c.named(everyKind); len(left) > 0 {
		t.Errorf("the uninstallation left %v", left)
	}
	if got := c.kubectl("get", "mpath", "--output", "name"); !strings.Contains(got, "mptcppath") {
		t.Errorf("the uninstallation took the paths with it: %q", got)
	}
}

func TestAnUninstallationIsRefusedWhilePoliciesSelectPods(t *testing.T) {
	c := cluster{t, startServer(t)}
	c.helm("install", "braid", "braid", "--create-namespace")
	c.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
	c.selectAPod()

	out, err := helm(t, "uninstall", "braid", "--kubeconfig", c.server.KubeconfigPath(), "--namespace", namespace)
	if err == nil || !strings.Contains(out, "policies still select 1 pods on node1") || !strings.Contains(out, "--no-hooks") {
		t.Errorf("uninstalling while policies select pods: %v\n%s", err, out)
	}
	if left := c.named("daemonsets,deployments"); len(left) != 2 {
		t.Errorf("what was refused took something with it, left are %v", left)
	}
	if left := c.named("configmaps,jobs,pods"); len(left) > 0 {
		t.Errorf("what was refused left %v", left)
	}
	if out, err := c.guardedCreate("kubectl-client-side-apply"); err != nil {
		t.Errorf("what `helm template` renders cannot be applied: %v\n%s", err, out)
	}
	c.helm("upgrade", "braid", "braid", "--set", "crds.install=false") // which Helm does not where it believes that it has begun to uninstall

	c.kubectl("delete", "mplan", "node1")
	testutil.Retry(t, time.Minute, func() error {
		_, err := c.guardedCreate("helm")
		return err
	})
	c.selectAPod()
	c.kubectl("delete", "crd", "--selector", "app.kubernetes.io/part-of=braid", "--wait=false")
	testutil.Retry(t, time.Minute, func() error { // what the API server remembers of them
		out, err := helm(t, "uninstall", "braid", "--timeout=20s", "--kubeconfig", c.server.KubeconfigPath(), "--namespace", namespace)
		if err != nil {
			err = fmt.Errorf("without the definitions: %w\n%s", err, out)
		}
		return err
	})
}

// selectAPod has a plan with a pod, and waits until the API server goes by it, which
// learns of a new kind of parameters some seconds later.
func (c cluster) selectAPod() {
	c.t.Helper()
	plan := filepath.Join(c.t.TempDir(), "plan.yaml")
	if err := os.WriteFile(plan, []byte(planWithAPod), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("apply", "--filename", plan)
	testutil.Retry(c.t, time.Minute, func() error {
		if out, err := c.guardedCreate("helm"); err == nil {
			return errors.New("it would not be refused: " + out)
		}
		return nil
	})
}

// guardedCreate tries to create what Helm does before it uninstalls.
func (c cluster) guardedCreate(manager string) (string, error) {
	c.t.Helper()
	return c.tryKubectl("create", "configmap", "braid-uninstall", "--namespace", namespace, "--dry-run=server", "--field-manager="+manager)
}

func TestTheNextCommandsThatTheChartNamesAreThoseOfThePlugin(t *testing.T) {
	out := mustHelm(t, "install", "braid", "braid", "--namespace", namespace, "--dry-run=client")
	found := regexp.MustCompile(`kubectl braid ([^#\n]*)`).FindAllStringSubmatch(out, -1)
	if len(found) != 4 {
		t.Errorf("the notes name %d commands, not 4:\n%s", len(found), out)
	}
	for _, match := range found {
		command, rest, err := plugin.Command(io.Discard, "test").Find(strings.Fields(match[1]))
		if err == nil {
			err = command.ParseFlags(rest)
		}
		if err != nil || command.Name() == "kubectl-braid" {
			t.Errorf("%s: %v", match[0], err)
		}
		if !strings.Contains(match[1], "--system-namespace="+namespace) {
			t.Errorf("%s looks for Braid elsewhere", match[0])
		}
	}
}

const planWithAPod = `
apiVersion: braid.dev/v1alpha1
kind: MPTCPNodePlan
metadata: {name: node1}
spec:
  endpoints:
  - uid: a
    namespace: shop
    name: web
    addresses: [10.0.0.1]
    policy: {kind: MPTCPPolicy, namespace: shop, name: spread, generation: 1}
    subflows: {manager: Kernel, count: 2}
`

func TestAnUninstallationTakesTheDefinitionsWhereThatIsAskedFor(t *testing.T) {
	for value, kept := range map[string]bool{"crds.keep=true": true, "crds.keep=false": false} {
		out := mustHelm(t, "template", "braid", "braid", "--set", value)
		if got := strings.Contains(out, "helm.sh/resource-policy: keep"); got != kept {
			t.Errorf("with %s the definitions are kept: %v", value, got)
		}
	}
}
