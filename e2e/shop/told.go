// SPDX-License-Identifier: Apache-2.0

package shop

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

// PolicyOf reads a policy of the shop, or with the namespace empty one of the
// cluster.
func (c *Cluster) PolicyOf(t *testing.T, namespace, name string) client.Object {
	t.Helper()
	var object client.Object = &v1alpha1.MPTCPPolicy{}
	if namespace == "" {
		object = &v1alpha1.ClusterMPTCPPolicy{}
	}
	object.SetNamespace(namespace)
	object.SetName(name)
	if err := c.Get(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	return object
}

// Ask runs a debug command of the agent of a pod's node.
func (c *Cluster) Ask(t *testing.T, pod string, arguments ...string) []byte {
	t.Helper()
	return c.AskNode(t, pod, append(arguments, "-o", "json")...)
}

// AskNode is for commands that know no other form than JSON.
func (c *Cluster) AskNode(t *testing.T, pod string, arguments ...string) []byte {
	t.Helper()
	node := c.Network.Pod(pod).Node
	arguments = append(arguments, "--pin-path", c.PinPath(node.NodeName()), "--state-path", c.StatePath(node.NodeName()))
	command := node.Command(t.Context(), c.Binary("braid-agent"), arguments...)
	var errors strings.Builder
	command.Stderr = &errors
	out, err := command.Output()
	if err != nil {
		t.Fatalf("braid-agent %s: %v: %s", strings.Join(arguments, " "), err, errors.String())
	}
	return out
}

// RulesOf are the rules of a pod of the shop and what they did, in their order.
func (c *Cluster) RulesOf(t *testing.T, pod string) (rules []agentapi.Rule) {
	t.Helper()
	out := c.Ask(t, pod, "rules", "shop/"+pod)
	if err := json.Unmarshal(out, &rules); err != nil {
		t.Fatalf("braid-agent rules: %v: %s", err, out)
	}
	return rules
}

// BusyPaths are the paths of which the agent of a pod's node tells `kubectl braid top` that
// they carry what the pod sends, or what it receives.
func (c *Cluster) BusyPaths(t *testing.T, pod string, sends bool) []string {
	t.Helper()
	const busy = 1e6
	var reading agentapi.Reading
	out := c.AskNode(t, pod, "rates", "--every=500ms", "--count=1", "shop/"+pod)
	if err := json.Unmarshal(out, &reading); err != nil {
		t.Fatalf("braid-agent rates: %v: %s", err, out)
	}
	carrying := map[string]bool{}
	for _, r := range reading.Busy {
		if sends && r.SentBitsPerSecond > busy {
			carrying[cmp.Or(r.StandIn, r.Path)] = true
		} else if !sends && r.ReceivedBitsPerSecond > busy {
			carrying[cmp.Or(r.Incoming, r.Path)] = true
		}
	}
	return slices.Sorted(maps.Keys(carrying))
}

// SubflowsOf are the subflows of a pod of the shop as the agent tells them.
func (c *Cluster) SubflowsOf(t *testing.T, pod string) (subflows []agentapi.Subflow) {
	t.Helper()
	out := c.Ask(t, pod, "subflows", "shop/"+pod)
	if err := json.Unmarshal(out, &subflows); err != nil {
		t.Fatalf("braid-agent subflows: %v: %s", err, out)
	}
	return subflows
}

// EventsOf are the events of a pod of the shop.
func (c *Cluster) EventsOf(t *testing.T, pod string) (all []agentapi.Event) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(c.Ask(t, pod, "events")))
	for {
		var event agentapi.Event
		err := decoder.Decode(&event)
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatalf("braid-agent events: %v", err)
		}
		if event.Endpoint == "shop/"+pod {
			all = append(all, event)
		}
	}
}

// RuleNamed is a pod's rule of this name.
func (c *Cluster) RuleNamed(t *testing.T, pod, name string) agentapi.Rule {
	t.Helper()
	rules := c.RulesOf(t, pod)
	at := slices.IndexFunc(rules, func(rule agentapi.Rule) bool { return rule.Name == name })
	if at < 0 {
		t.Fatalf("pod %s has no rule %s: %+v", pod, name, rules)
	}
	return rules[at]
}

// NamesOf are the rules as policy and name.
func NamesOf(rules []agentapi.Rule) (names []string) {
	for _, rule := range rules {
		names = append(names, rule.Policy+" "+rule.Name)
	}
	return names
}

// ProgramsOn are the programs of an interface of the network namespace that this thread is in.
func ProgramsOn(index int) (programs []ebpf.ProgramID, err error) {
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		result, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook})
		if err != nil {
			return nil, fmt.Errorf("listing the programs of interface %d: %w", index, err)
		}
		for _, program := range result.Programs {
			programs = append(programs, program.ID)
		}
	}
	return programs, nil
}
