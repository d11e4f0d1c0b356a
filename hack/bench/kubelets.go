// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

// kubelets is a cluster of three nodes with real kubelets and containerd, on which
// Braid is installed by its chart.
type kubelets struct{ *lab.Lab }

// kubeletsPatience bounds what should take seconds: it ends a run that hangs, and is
// no requirement.
const kubeletsPatience = 5 * time.Minute

func newKubelets(ctx context.Context, settings ...string) (*kubelets, error) {
	if err := lab.FetchKubernetes(ctx); err != nil {
		return nil, err
	}
	say("building images")
	images, err := lab.BuildImages(ctx)
	if err != nil {
		return nil, err
	}
	say("bringing up a cluster with kubelets")
	up, err := lab.Up(ctx, lab.Options{
		Name: "benchkube", Kubelets: true, Images: images,
		Network: network.Spec{Nodes: 3, Paths: pathNames[:3], LinkMbit: linkMbit},
	})
	if err != nil {
		return nil, err
	}
	k := &kubelets{up}
	if err := k.prepare(ctx, settings); err != nil {
		return nil, errors.Join(err, k.Down())
	}
	say("the cluster is up")
	return k, nil
}

// prepare installs Braid and tells it of the paths.
func (k *kubelets) prepare(ctx context.Context, settings []string) error {
	if err := k.InstallChart(ctx, settings...); err != nil {
		return err
	}
	var manifest strings.Builder
	for _, path := range pathNames[:3] {
		fmt.Fprintf(&manifest, "---\napiVersion: braid.dev/v1alpha1\nkind: MPTCPPath\nmetadata: {name: %s}\nspec: {interfaces: [%s]}\n", path, path)
	}
	return k.apply(ctx, manifest.String())
}

func (k *kubelets) apply(ctx context.Context, manifest string) error {
	command := k.Kubectl(ctx, "apply", "--filename", "-")
	command.Stdin = strings.NewReader(manifest)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("applying a manifest: %w: %s", err, out)
	}
	return nil
}

// kubectl runs kubectl and returns its output.
func (k *kubelets) kubectl(ctx context.Context, arguments ...string) (string, error) {
	out, err := k.Kubectl(ctx, arguments...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(arguments, " "), err, out)
	}
	return string(out), nil
}

// until asks again until something is so.
func until(ctx context.Context, what string, holds func() (bool, error)) error {
	for deadline := time.Now().Add(kubeletsPatience); time.Now().Before(deadline); {
		if ok, err := holds(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s: not so within %s", what, kubeletsPatience)
}

// settled waits until the plans of all nodes are carried out, with so many endpoints
// in all.
func (k *kubelets) settled(ctx context.Context, endpoints int) error {
	return until(ctx, fmt.Sprintf("%d endpoints are programmed", endpoints), func() (bool, error) {
		var plans v1alpha1.MPTCPNodePlanList
		if err := k.Client.List(ctx, &plans); err != nil {
			return false, fmt.Errorf("reading the plans: %w", err)
		}
		wanted, programmed := 0, 0
		for i := range plans.Items {
			plan := &plans.Items[i]
			wanted += len(plan.Spec.Endpoints)
			if meta.IsStatusConditionTrue(plan.Status.Conditions, v1alpha1.ConditionProgrammed) && plan.Status.ObservedGeneration == plan.Generation {
				programmed += int(plan.Status.EndpointsProgrammed)
			} else {
				programmed = -1 << 16
			}
		}
		return wanted == endpoints && programmed == endpoints, nil
	})
}

// selectAll is a policy for all pods of the namespace default.
const selectAll = `
apiVersion: braid.dev/v1alpha1
kind: MPTCPPolicy
metadata: {name: spread, namespace: default}
spec:
  podSelector: {}
`

// withWatch is a client of the cluster that can watch.
func (k *kubelets) withWatch() (client.WithWatch, error) {
	watching, err := client.NewWithWatch(k.Server.Config(), client.Options{Scheme: k.Client.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("making a client that watches: %w", err)
	}
	return watching, nil
}
