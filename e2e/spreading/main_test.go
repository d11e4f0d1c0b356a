// SPDX-License-Identifier: Apache-2.0

// Package spreading_test shows on a real API server, with the real controller and agents,
// that the status of a policy tells what its pods' traffic does, and why it is not spread
// where it is not.
package spreading_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/plugin"
)

// interval is between two looks of the agents, which users leave at half a minute.
const interval = time.Second

// patience is some intervals, and what it takes to write what was seen.
const patience = 30 * time.Second

var shared = testlab.NewShared(lab.Options{
	Name:    "spreading",
	Network: network.Spec{Nodes: 2, Paths: []string{"blue", "green", "red"}, LinkMbit: 30},
	Pods: []lab.Pod{
		{Namespace: "shop", Name: "client", Node: 1, Labels: app("client")},
		{Namespace: "shop", Name: "server", Node: 2, Labels: app("server"), Serves: true},
		{Namespace: "shop", Name: "stranger", Node: 2, Labels: app("stranger"), Serves: true},
		{Namespace: "shop", Name: "neighbour", Node: 1, Labels: app("neighbour"), Serves: true},
	},
	SpreadingInterval: interval,
})

func app(name string) map[string]string { return map[string]string{"app": name} }

func TestMain(m *testing.M) { shared.Main(m) }

// cluster is the lab that the tests share, with a policy for some pods.
type cluster struct {
	*testlab.Cluster
	policy *v1alpha1.MPTCPPolicy
}

// use gives a test the lab, in which a policy for these pods is programmed.
func use(t *testing.T, change func(*v1alpha1.MPTCPPolicy), apps ...string) *cluster {
	t.Helper()
	c := &cluster{shared.Use(t), testlab.NewPolicy("shop", apps...)}
	if change != nil {
		change(c.policy)
	}
	c.CreatePaths(t)
	c.Create(t, c.policy)
	c.WaitProgrammed(t, c.policy, len(apps))
	return c
}

// send has the client send to another pod, until it is stopped or the test ends.
func (c *cluster) send(t *testing.T, to string, protocol network.Protocol) (stop func()) {
	t.Helper()
	from, address := c.Network.Pod("client"), net.JoinHostPort(c.Network.Pod(to).IPv4, strconv.Itoa(lab.TrafficPort))
	dial := func(ctx context.Context) (net.Conn, error) { return from.DialBy(ctx, protocol, "tcp", address) }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		// That it is cut short is no failure.
		_, _ = traffic.Run(ctx, dial, traffic.Options{Duration: 2 * patience, OfferedMbit: 16})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

// expect waits until the condition Spreading of the policy is so, and returns its message.
func (c *cluster) expect(t *testing.T, status metav1.ConditionStatus, reason string) (message string) {
	t.Helper()
	took := c.WaitFor(t, fmt.Sprintf("Spreading is %s: %s", status, reason), patience, func(ctx context.Context) error {
		if err := c.Get(ctx, c.policy); err != nil {
			return err
		}
		is := meta.FindStatusCondition(c.policy.Status.Conditions, v1alpha1.ConditionSpreading)
		if is == nil {
			return errors.New("there is no such condition")
		}
		message = is.Message
		if is.Status != status || is.Reason != reason {
			return fmt.Errorf("it is %s: %s: %s", is.Status, is.Reason, is.Message)
		}
		return nil
	})
	t.Logf("after %v: %s", took, message)
	return message
}

// endpoint is what the status of the client's plan says of its traffic.
func (c *cluster) endpoint(t *testing.T) (told *v1alpha1.SpreadingStatus) {
	t.Helper()
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	c.WaitFor(t, "the client's traffic is told of", 30*time.Second, func(ctx context.Context) error {
		if err := c.Get(ctx, plan); err != nil {
			return err
		}
		for _, endpoint := range plan.Status.Endpoints {
			if endpoint.Name == "client" && endpoint.Spreading != nil {
				told = endpoint.Spreading
				return nil
			}
		}
		return fmt.Errorf("the plan says nothing of the client: %+v", plan.Status)
	})
	return told
}

// traffic is what the agent says of the client's connections.
func (c *cluster) traffic(t *testing.T) agentapi.Spreading {
	t.Helper()
	command := c.Network.Pod("client").Node.Command(t.Context(), c.Binary("braid-agent"), "spreading", "shop/client", "-o", "json",
		"--pin-path", c.PinPath("node1"), "--state-path", c.StatePath("node1"))
	var said strings.Builder
	command.Stderr = &said
	out, err := command.Output()
	require.NoError(t, err, said.String())
	var all []agentapi.Spreading
	require.NoError(t, json.NewDecoder(bytes.NewReader(out)).Decode(&all))
	if len(all) == 0 {
		return agentapi.Spreading{} // it has not looked yet
	}
	return all[0]
}

// plugin is what `kubectl braid` prints.
func (c *cluster) plugin(t *testing.T, arguments ...string) string {
	t.Helper()
	var out bytes.Buffer
	command := plugin.Command(&out, "test")
	command.SetErr(io.Discard) // no agent is a pod here, to be asked
	command.SetArgs(append(arguments, "--kubeconfig", c.Server.KubeconfigPath()))
	require.NoError(t, command.ExecuteContext(t.Context()))
	return out.String()
}

// columns is what kubectl shows of the policy.
func (c *cluster) columns(t *testing.T) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), "get", "mpol", "--namespace", "shop").CombinedOutput()
	require.NoError(t, err)
	require.Regexp(t, `PROGRAMMED +STATUS +SPREADING`, string(out))
	return string(out)
}

// paths are the names of those that carried bytes.
func paths(of agentapi.Spreading) (names []string) {
	for _, path := range of.Paths {
		if path.SentBytes > 0 {
			names = append(names, path.Path)
		}
	}
	return names
}
