// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubewatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/rig"
)

const (
	// startedPods is how many pods are started in all, and startingAtOnce how many
	// are under way at a time: two processors carry the kubelets of three nodes.
	startedPods    = 200
	startingAtOnce = 4
)

// birth is when things happened to a pod, as a watcher of the API server saw them.
type birth struct {
	node string
	// address is when its address was first known, planned when its node's plan had it,
	// programmed when its node's agent said that it is programmed.
	address, planned, programmed time.Time
	// begun is when its container's process began.
	begun time.Time
}

// births are those of all pods, by UID, and what is known whole of them.
type births struct {
	mutex sync.Mutex
	of    map[types.UID]*birth
	whole []birth
}

// selectAll is a policy for all pods of the namespace default.
const selectAll = `
apiVersion: braid.dev/v1alpha1
kind: MPTCPPolicy
metadata: {name: spread, namespace: default}
spec:
  podSelector: {}
`

// measurePod starts pods through scheduler, kubelet and containerd, and takes the
// time from when their addresses are known to when their policy is carried out.
func measurePod(ctx context.Context, m *rig.Measurement, c *rig.Cluster) error {
	if err := c.Apply(ctx, selectAll); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := &births{of: map[types.UID]*birth{}}
	if err := seen.follow(ctx, c); err != nil {
		return err
	}
	// With its first pod a node loads the programs, which is another matter.
	for index := range c.Network.Nodes {
		if err := seen.startOne(ctx, c, quietPod(fmt.Sprintf("first-%d", index+1), index+1)); err != nil {
			return err
		}
	}
	addBirths(m, "pod.first_on_node.", seen.take())
	if err := seen.start(ctx, c); err != nil {
		return err
	}
	addBirths(m, "pod.", seen.take())
	return nil
}

// follow notes what happens to pods and plans until the context ends.
func (s *births) follow(ctx context.Context, c *rig.Cluster) error {
	watching, err := client.NewWithWatch(c.Server.Config(), client.Options{Scheme: c.Client.Scheme()})
	if err != nil {
		return fmt.Errorf("making a client that watches: %w", err)
	}
	pods, err := watching.Watch(ctx, &corev1.PodList{}, client.InNamespace("default"))
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	plans, err := watching.Watch(ctx, &v1alpha1.MPTCPNodePlanList{})
	if err != nil {
		return fmt.Errorf("watching plans: %w", err)
	}
	go eachEvent(pods, func(at time.Time, event kubewatch.Event) {
		if pod, ok := event.Object.(*corev1.Pod); ok && pod.Status.PodIP != "" {
			s.note(pod.UID, func(one *birth) { one.node, one.address = pod.Spec.NodeName, first(one.address, at) })
		}
	})
	go eachEvent(plans, func(at time.Time, event kubewatch.Event) {
		plan, ok := event.Object.(*v1alpha1.MPTCPNodePlan)
		if !ok {
			return
		}
		for _, endpoint := range plan.Spec.Endpoints {
			s.note(endpoint.UID, func(one *birth) { one.planned = first(one.planned, at) })
		}
		for _, endpoint := range plan.Status.Endpoints {
			if endpoint.State == v1alpha1.EndpointProgrammed {
				s.note(endpoint.UID, func(one *birth) { one.programmed = first(one.programmed, at) })
			}
		}
	})
	return nil
}

func eachEvent(events kubewatch.Interface, do func(time.Time, kubewatch.Event)) {
	for event := range events.ResultChan() {
		do(time.Now(), event)
	}
}

// first is when something was seen first.
func first(before, now time.Time) time.Time {
	if before.IsZero() {
		return now
	}
	return before
}

func (s *births) note(pod types.UID, change func(*birth)) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.of[pod] == nil {
		s.of[pod] = &birth{}
	}
	change(s.of[pod])
}

// get is what is known of a pod, once it is programmed.
func (s *births) get(pod types.UID) (birth, bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	one := s.of[pod]
	if one == nil || one.address.IsZero() || one.programmed.IsZero() {
		return birth{}, false
	}
	return *one, true
}

// start starts all pods, each when one that was under way is programmed.
func (s *births) start(ctx context.Context, c *rig.Cluster) error {
	starting, ctx := errgroup.WithContext(ctx)
	starting.SetLimit(startingAtOnce)
	for i := range startedPods {
		starting.Go(func() error { return s.startOne(ctx, c, quietPod(fmt.Sprintf("pod-%d", i+1), 0)) })
		if i%25 == 24 {
			rig.Say("%d of %d pods", i+1, startedPods)
		}
	}
	return starting.Wait()
}

func (s *births) startOne(ctx context.Context, c *rig.Cluster, pod *corev1.Pod) error {
	if err := createPods(ctx, c, pod); err != nil {
		return err
	}
	var one birth
	err := rig.Until(ctx, rig.Patience, "pod "+pod.Name+" is programmed", func() (done bool, _ error) {
		one, done = s.get(pod.UID)
		return done, nil
	})
	if err != nil {
		return err
	}
	if one.begun, err = containerBegun(c, one.node, pod.UID); err != nil {
		return err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.whole = append(s.whole, one)
	return nil
}

// take returns those of the pods that were started since it was last called.
func (s *births) take() []birth {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	whole := s.whole
	s.whole = nil
	return whole
}

// containerBegun is when the latest of a pod's processes began.
func containerBegun(c *rig.Cluster, node string, pod types.UID) (latest time.Time, err error) {
	containers, err := c.Containers(node, pod)
	if err != nil || len(containers) < 2 {
		return latest, fmt.Errorf("pod %s has the containers %v on %s: %w", pod, containers, node, err)
	}
	for _, container := range containers {
		begun, err := processBegun(container.PID)
		if err != nil {
			return latest, fmt.Errorf("reading when a process began: %w", err)
		}
		if begun.After(latest) {
			latest = begun
		}
	}
	return latest, nil
}

// processBegun is when a process began, to 10 ms.
func processBegun(pid int) (time.Time, error) {
	const ticksPerSecond = 100
	process, err := procfs.NewProc(pid)
	if err != nil {
		return time.Time{}, err
	}
	stat, err := process.Stat()
	if err != nil {
		return time.Time{}, err
	}
	var sinceBoot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot); err != nil {
		return time.Time{}, err
	}
	return time.Now().Add(time.Duration(stat.Starttime)*time.Second/ticksPerSecond - time.Duration(sinceBoot.Nano())), nil
}

func addBirths(m *rig.Measurement, prefix string, all []birth) {
	times := map[string][]float64{}
	for _, one := range all {
		times["planned"] = append(times["planned"], milliseconds(one.planned.Sub(one.address)))
		times["programmed"] = append(times["programmed"], milliseconds(one.programmed.Sub(one.address)))
		times["begun_to_programmed"] = append(times["begun_to_programmed"], milliseconds(one.programmed.Sub(one.begun)))
	}
	for name, values := range times {
		m.AddQuantiles(prefix+name, values)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
