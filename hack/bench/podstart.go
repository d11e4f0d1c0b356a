// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubewatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
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

// measurePod starts pods through scheduler, kubelet and containerd, and takes the
// time from when their addresses are known to when their policy is carried out.
func measurePod(ctx context.Context, b *bench) (err error) {
	k, err := newKubelets(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Down()) }()
	if err := k.apply(ctx, selectAll); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := &births{of: map[types.UID]*birth{}}
	if err := seen.follow(ctx, k); err != nil {
		return err
	}
	// With its first pod a node loads the programs, which is another matter.
	for index := range k.Network.Nodes {
		if err := seen.startOne(ctx, k, fmt.Sprintf("first-%d", index+1), onNode(index+1)); err != nil {
			return err
		}
	}
	b.addBirths("pod.first_on_node.", seen.take())
	if err := seen.start(ctx, k); err != nil {
		return err
	}
	b.addBirths("pod.", seen.take())
	return nil
}

// follow notes what happens to pods and plans until the context ends.
func (s *births) follow(ctx context.Context, k *kubelets) error {
	watching, err := k.withWatch()
	if err != nil {
		return err
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
func (s *births) start(ctx context.Context, k *kubelets) error {
	underWay := semaphore.NewWeighted(startingAtOnce)
	failed := make(chan error, startedPods)
	for i := range startedPods {
		if err := underWay.Acquire(ctx, 1); err != nil {
			return err
		}
		go func() {
			defer underWay.Release(1)
			failed <- s.startOne(ctx, k, fmt.Sprintf("pod-%d", i+1), nil)
		}()
		if i%25 == 24 {
			say("%d of %d pods", i+1, startedPods)
		}
	}
	var all error
	for range startedPods {
		all = errors.Join(all, <-failed)
	}
	return all
}

// quietPod does nothing, and takes next to no memory.
func quietPod(name string) *corev1.Pod {
	grace := int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []corev1.Container{{Name: "pause", Image: lab.PauseImage, ImagePullPolicy: corev1.PullNever}},
		},
	}
}

func (s *births) startOne(ctx context.Context, k *kubelets, name string, where map[string]string) error {
	pod := quietPod(name)
	pod.Spec.NodeSelector = where
	if err := k.Client.Create(ctx, pod); err != nil {
		return fmt.Errorf("creating pod %s: %w", name, err)
	}
	var one birth
	err := until(ctx, "pod "+name+" is programmed", func() (done bool, _ error) {
		one, done = s.get(pod.UID)
		return done, nil
	})
	if err != nil {
		return err
	}
	if one.begun, err = containerBegun(k, one.node, pod.UID); err != nil {
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
func containerBegun(k *kubelets, node string, pod types.UID) (latest time.Time, err error) {
	containers, err := k.Containers(node, pod)
	if err != nil || len(containers) < 2 {
		return latest, fmt.Errorf("pod %s has the containers %v on %s: %w", pod, containers, node, err)
	}
	for _, container := range containers {
		begun, err := processBegun(container.PID)
		if err != nil {
			return latest, err
		}
		if begun.After(latest) {
			latest = begun
		}
	}
	return latest, nil
}

// processBegun is when a process began, to 10 ms.
func processBegun(pid int) (time.Time, error) {
	const ticksPerSecond, startField = 100, 19 // of those after the name; see proc_pid_stat(5)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return time.Time{}, fmt.Errorf("reading when a process began: %w", err)
	}
	fields := strings.Fields(string(text)[strings.LastIndexByte(string(text), ')')+1:])
	ticks, err := strconv.ParseInt(fields[startField], 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading when a process began: %w", err)
	}
	var sinceBoot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot); err != nil {
		return time.Time{}, fmt.Errorf("reading the clock: %w", err)
	}
	return time.Now().Add(time.Duration(ticks)*time.Second/ticksPerSecond - time.Duration(sinceBoot.Nano())), nil
}

func (b *bench) addBirths(prefix string, all []birth) {
	var toPlan, fromAddress, fromBegin []float64
	for _, one := range all {
		toPlan = append(toPlan, milliseconds(one.planned.Sub(one.address)))
		fromAddress = append(fromAddress, milliseconds(one.programmed.Sub(one.address)))
		fromBegin = append(fromBegin, milliseconds(one.programmed.Sub(one.begun)))
	}
	b.addQuantiles(prefix+"planned", toPlan)
	b.addQuantiles(prefix+"programmed", fromAddress)
	b.addQuantiles(prefix+"begun_to_programmed", fromBegin)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// addQuantiles notes the median and the 99th percentile of times, with the least
// and the longest.
func (b *bench) addQuantiles(name string, times []float64) {
	for suffix, q := range map[string]float64{"_p50_ms": 0.5, "_p99_ms": 0.99} {
		b.Figures[name+suffix] = figure{
			Value: round(quantile(times, q)), Unit: "ms",
			Min: round(slices.Min(times)), Max: round(slices.Max(times)), N: len(times),
		}
	}
}

// quantile is the least of the values that so large a share of them does not exceed.
func quantile(values []float64, share float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}
