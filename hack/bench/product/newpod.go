// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

// New pods send ten times as fast as they may, for a second from the moment in which they
// have an interface. The API server is told of them at that moment.
const (
	newPodMbit  = 2
	newPodsEach = 7
	firstSecond = time.Second
)

const newPodManifest = `
apiVersion: braid.dev/v1alpha1
kind: MPTCPPath
metadata: {name: blue}
spec: {interfaces: [blue]}
---
apiVersion: braid.dev/v1alpha1
kind: MPTCPGuardrail
metadata: {name: tenants}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: tenant}}
  podSelector: {}
  maxPodRate: 2M
  newPods: %s
`

// newNewPod is a lab with a pod of the tenant on each node, and one of somebody else.
func newNewPod(ctx context.Context) (*rig.Lab, error) {
	return rig.NewLab(ctx, network.Spec{Paths: rig.Paths[:1], LinkMbit: rig.LinkMbit}, rig.PodOf("tenant", "first", 1), rig.PodOf("tenant", "last", 2))
}

// measureNewPod adds pods in turns while new ones are guarded and while they are not.
func measureNewPod(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	added := 0
	for range newPodsEach {
		for prefix, mode := range map[string]v1alpha1.NewPods{"newpod.": v1alpha1.NewPodsGuard, "newpod.unguarded.": v1alpha1.NewPodsPass} {
			if err := guardNewPods(ctx, l, mode); err != nil {
				return err
			}
			for _, namespace := range []string{"tenant", "demo"} {
				added++
				sent, err := sendAtOnce(ctx, l, namespace, fmt.Sprint("new-", added))
				if err != nil {
					return err
				}
				rig.Say("new pods: %s; a pod of %s: %.0f kB in its first second", mode, namespace, sent)
				if namespace == "demo" {
					m.Add(prefix+"exempt_sent_kb", sent)
				} else {
					m.Add(prefix+"over_ceiling_kb", max(0, sent-newPodMbit*1000/8*firstSecond.Seconds()))
				}
			}
		}
	}
	return nil
}

// guardNewPods waits until the pods' node guards new ones, or does not.
func guardNewPods(ctx context.Context, l *rig.Lab, mode v1alpha1.NewPods) error {
	if err := l.Apply(ctx, fmt.Sprintf(newPodManifest, mode)); err != nil {
		return err
	}
	return rig.Until(ctx, time.Minute, "new pods: "+string(mode), func() (bool, error) {
		var plan v1alpha1.MPTCPNodePlan
		err := l.Client.Get(ctx, client.ObjectKey{Name: l.Sender.Node.NodeName()}, &plan)
		is := (plan.Spec.NewPods != nil) == (mode == v1alpha1.NewPodsGuard)
		return is && len(plan.Spec.Endpoints) == 1 && plan.Status.ObservedGeneration == plan.Generation, client.IgnoreNotFound(err)
	})
}

// sendAtOnce adds a pod that sends at once, and returns how many kB of its first second
// arrive on another node.
func sendAtOnce(ctx context.Context, l *rig.Lab, namespace, name string) (sent float64, err error) {
	inside, err := l.Sender.Node.AddPod(name)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, l.RemovePod(context.WithoutCancel(ctx), namespace, inside)) }()
	registered := make(chan error, 1)
	go func() { registered <- l.RegisterPod(ctx, rig.PodOf(namespace, name, 1)) }()
	to := l.Network.Pod("last")
	before, err := to.Counters("eth0")
	if err == nil {
		err = floodFor(ctx, inside, to, firstSecond)
	}
	after, afterErr := to.Counters("eth0")
	return float64(after.RxBytes-before.RxBytes) / 1000, errors.Join(err, afterErr, <-registered)
}

// floodFor sends datagrams for so long.
func floodFor(ctx context.Context, from, to *network.Pod, lasts time.Duration) error {
	socket, err := from.Dial(ctx, "udp", net.JoinHostPort(to.IPv4, fmt.Sprint(lab.TrafficPort)))
	if err != nil {
		return err
	}
	payload := make([]byte, 1400)
	pause := time.Duration(len(payload)) * 8 * time.Microsecond / (10 * newPodMbit)
	for begin, count := time.Now(), time.Duration(0); time.Since(begin) < lasts; count++ {
		_, _ = socket.Write(payload) // what does not fit, or nobody wants, is lost
		time.Sleep(time.Until(begin.Add(count * pause)))
	}
	return socket.Close()
}
