// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// Patience bounds what should take seconds: it ends a run that hangs, and is no
// requirement.
const Patience = 5 * time.Minute

// PolicyAge is how long a policy is there before short connections are measured: of a pod that is
// new to it an agent hears of all connections for a second or two, and users' policies are older.
const PolicyAge = 3 * time.Second

// Cluster is a lab with real kubelets or without.
type Cluster struct{ *lab.Lab }

// Close brings it down.
func (c *Cluster) Close() error { return c.Down() }

// NewCluster brings up three nodes with real kubelets and containerd, on which Braid is
// installed by its chart.
func NewCluster(ctx context.Context) (*Cluster, error) {
	return NewClusterOn(ctx, lab.Native, network.Spec{LinkMbit: LinkMbit})
}

// NewClusterOn is the same with a cluster network of one's choice and the rates and delays that links says. Its
// paths do not say what they can carry.
func NewClusterOn(ctx context.Context, clusterNetwork lab.ClusterNetwork, links network.Spec) (*Cluster, error) {
	if err := lab.FetchKubernetes(ctx); err != nil {
		return nil, err
	}
	Say("building images")
	images, err := lab.BuildImages(ctx)
	if err != nil {
		return nil, err
	}
	Say("bringing up a cluster with kubelets")
	up, err := lab.Up(ctx, lab.Options{
		Name: "benchkube", Kubelets: true, ClusterNetwork: clusterNetwork, Images: images,
		Network: network.Spec{Nodes: 3, Paths: Paths[:3], LinkMbit: links.LinkMbit, PathMbit: links.PathMbit, PathDelays: links.PathDelays},
	})
	if err != nil {
		return nil, err
	}
	c := &Cluster{up}
	if err := c.InstallChart(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := c.Apply(ctx, pathsManifest(&network.Spec{Paths: Paths[:3]})); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	Say("the cluster is up")
	return c, nil
}

// pathsManifest has paths whose NICs are called as they are, with the rates that are their own.
func pathsManifest(spec *network.Spec) string {
	var manifest strings.Builder
	for i, path := range spec.Paths {
		fmt.Fprintf(&manifest, "---\napiVersion: braid.dev/v1alpha1\nkind: MPTCPPath\nmetadata: {name: %s}\nspec: {interfaces: [%s]", path, path)
		if mbit := spec.PathMbit[path]; mbit > 0 {
			fmt.Fprintf(&manifest, ", capacity: %dM", mbit)
		}
		if spec.Racks > 0 {
			fmt.Fprintf(&manifest, ", underlay: Routed, addressRanges: [%q, %q]", spec.PathRange(i, 4), spec.PathRange(i, 6))
		}
		manifest.WriteString("}\n")
	}
	return manifest.String()
}

// RunKubectl runs kubectl and returns its output.
func (c *Cluster) RunKubectl(ctx context.Context, arguments ...string) (string, error) {
	out, err := c.Kubectl(ctx, arguments...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(arguments, " "), err, out)
	}
	return string(out), nil
}

// Apply makes or changes objects.
func (c *Cluster) Apply(ctx context.Context, manifest string) error {
	command := c.Kubectl(ctx, "apply", "--filename", "-")
	command.Stdin = strings.NewReader(manifest)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("applying a manifest: %w: %s", err, out)
	}
	return nil
}

// Settled waits until the plans of all nodes are carried out, with so many endpoints
// in all.
func (c *Cluster) Settled(ctx context.Context, endpoints int) error {
	return Until(ctx, Patience, fmt.Sprintf("%d endpoints are programmed", endpoints), func() (bool, error) {
		var plans v1alpha1.MPTCPNodePlanList
		if err := c.Client.List(ctx, &plans); err != nil {
			return false, fmt.Errorf("reading the plans: %w", err)
		}
		planned, programmed := 0, 0
		for i := range plans.Items {
			plan := &plans.Items[i]
			if !meta.IsStatusConditionTrue(plan.Status.Conditions, v1alpha1.ConditionProgrammed) || plan.Status.ObservedGeneration != plan.Generation {
				return false, nil
			}
			planned += len(plan.Spec.Endpoints)
			programmed += int(plan.Status.EndpointsProgrammed)
		}
		return planned == endpoints && programmed == endpoints, nil
	})
}

// Lab is two nodes, or more, with the real controller and agents, and a pod on each, of which
// one sends to the other.
type Lab struct {
	*Cluster
	Sender, Receiver *network.Pod
}

// LabOver makes labs with so many paths.
func LabOver(paths int) func(context.Context) (*Lab, error) {
	return LabOn(network.Spec{Paths: Paths[:paths], LinkMbit: LinkMbit})
}

// LabOn makes labs on a network, with the demo's paths and policy.
func LabOn(spec network.Spec) func(context.Context) (*Lab, error) {
	return func(ctx context.Context) (*Lab, error) {
		l, err := NewLab(ctx, spec)
		if err != nil {
			return nil, err
		}
		if err := l.Spread(ctx, ""); err != nil {
			return nil, errors.Join(err, l.Close())
		}
		return l, nil
	}
}

// PodOf is a pod of a lab. One whose name begins with server serves.
func PodOf(namespace, name string, node int) lab.Pod {
	return lab.Pod{Namespace: namespace, Name: name, Node: node, Labels: map[string]string{"app": name}, Serves: strings.HasPrefix(name, "server")}
}

// NewLab brings up a lab with the sender, the receiver and further pods, without paths
// and policies.
func NewLab(ctx context.Context, spec network.Spec, pods ...lab.Pod) (*Lab, error) {
	if err := lab.FetchKubernetes(ctx); err != nil {
		return nil, err
	}
	Say("bringing up a lab with the controller and agents")
	spec.Nodes = max(spec.Nodes, 2)
	pods = append(slices.Clone(pods), PodOf("demo", "client", 1), PodOf("demo", "server", 2))
	up, err := lab.Up(ctx, lab.Options{Name: "benchlab", Network: spec, Pods: pods})
	if err != nil {
		return nil, err
	}
	return &Lab{Cluster: &Cluster{up}, Sender: up.Network.Pod("client"), Receiver: up.Network.Pod("server")}, nil
}

// Route is from the sender to the receiver's server.
func (l *Lab) Route(version int) Route {
	return Route{From: l.Sender.Namespace, To: net.JoinHostPort(l.Receiver.Address(version), strconv.Itoa(lab.TrafficPort))}
}

// Transfer runs one from the sender to the receiver, which must end well.
func (l *Lab) Transfer(ctx context.Context, options traffic.Options) (*traffic.Result, error) {
	running, err := l.Route(4).Start(ctx, options)
	if err != nil {
		return nil, err
	}
	return running.EndIntact()
}

// Spread gives the lab its paths and both pods a policy with these subflows ("" for the
// policy's own), and waits until they have it.
func (l *Lab) Spread(ctx context.Context, subflows string) error {
	if subflows != "" {
		subflows = "subflows: " + subflows
	}
	return l.SpreadWith(ctx, subflows)
}

// ApplyPaths gives the lab its paths alone.
func (l *Lab) ApplyPaths(ctx context.Context) error {
	return l.Apply(ctx, pathsManifest(&l.Network.Spec))
}

// SpreadWith is Spread with any field of the policy, in a line.
func (l *Lab) SpreadWith(ctx context.Context, field string) error {
	manifest := pathsManifest(&l.Network.Spec) + `---
apiVersion: braid.dev/v1alpha1
kind: MPTCPPolicy
metadata: {name: spread, namespace: demo}
spec:
  podSelector:
    matchExpressions: [{key: app, operator: In, values: [client, server]}]
  ` + field + "\n"
	if err := l.Apply(ctx, manifest); err != nil {
		return err
	}
	return l.WaitForPolicy(ctx)
}

// WaitForPolicy waits until both pods have what the policy says.
func (l *Lab) WaitForPolicy(ctx context.Context) error {
	return l.PolicyHolds(ctx, client.ObjectKey{Namespace: "demo", Name: "spread"}, 2)
}

// PolicyHolds waits until so many pods have what a policy says now.
func (c *Cluster) PolicyHolds(ctx context.Context, key client.ObjectKey, pods int32) error {
	return Until(ctx, time.Minute, "the policy is programmed", func() (bool, error) {
		var policy v1alpha1.MPTCPPolicy
		if err := c.Client.Get(ctx, key, &policy); err != nil {
			return false, fmt.Errorf("reading the policy: %w", err)
		}
		programmed := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionProgrammed)
		return policy.Status.PodsSelected == pods && policy.Status.PodsProgrammed == pods && programmed != nil &&
			programmed.Status == "True" && programmed.ObservedGeneration == policy.Generation, nil
	})
}
