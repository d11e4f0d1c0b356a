// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

func killAgent(node string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		s.mend(func() { s.Start(t, s.node(node)) })
		check(t, s.Agents[node].Stop(syscall.SIGKILL))
	}
}

func killController(t *testing.T, s *scene) {
	s.mend(func() {
		check(t, s.StartController(context.Background()))
		s.waitForChange(t)
	})
	check(t, s.Controller.Stop(syscall.SIGKILL))
}

// stopServer stops the API server. The controller ends when it loses its Lease.
func stopServer(t *testing.T, s *scene) {
	s.mend(func() {
		check(t, s.Server.StartServer(context.Background()))
		if s.Controller.Ended() {
			check(t, s.StartController(context.Background()))
		}
		s.waitForChange(t)
	})
	check(t, s.Server.StopServer())
}

// waitForChange changes the policy and waits until that is carried out: the controller has its
// Lease then, and the agents hear of it.
func (s *scene) waitForChange(t *testing.T) {
	s.Update(t, s.policy, func() { s.policy.Spec.Priority++ })
	s.WaitFor(t, "a change is carried out", patience, func(ctx context.Context) error { return s.Programmed(ctx, s.policy, 3) })
}

// setCondition writes what kubelet says of its node, or what the controller of nodes says of
// one whose kubelet is silent: the lab has neither.
func setCondition(node string, bad corev1.NodeCondition) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		set := func(condition corev1.NodeCondition) {
			condition.LastHeartbeatTime = metav1.NewTime(time.Now())
			patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{condition}}})
			check(t, err)
			object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
			check(t, s.Client.Status().Patch(context.Background(), object, client.RawPatch(types.StrategicMergePatchType, patch)))
		}
		good := corev1.NodeCondition{Type: bad.Type, Status: corev1.ConditionFalse, Reason: "LabNode"}
		if bad.Type == corev1.NodeReady {
			good.Status = corev1.ConditionTrue
		}
		s.mend(func() { set(good) })
		set(bad)
	}
}

// fillDisk leaves no room where an agent saves what it knows.
func fillDisk(node string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		directory, agent := s.SavedPath(node), strconv.Itoa(s.Agents[node].Pid())
		inside := func(script string) {
			out, err := exec.Command("nsenter", "--target", agent, "--mount", "sh", "-c", script).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v: %s", script, err, out)
			}
		}
		s.mend(func() { inside("umount --lazy " + directory) })
		inside("mount -t tmpfs -o size=64k tmpfs " + directory + " && ! head -c 1M /dev/zero >" + directory + "/others")
	}
}

// jump has a node's clock an hour ahead, as its agent's Lease shows it: all nodes of the lab
// have the machine's clock.
func jump(node string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		s.mend(func() {
			cancel()
			<-done
		})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				if err := s.renewAhead(ctx, node, time.Hour); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				time.Sleep(200 * time.Millisecond)
			}
		}()
	}
}

func (s *scene) renewAhead(ctx context.Context, node string, by time.Duration) error {
	var lease coordinationv1.Lease
	key := client.ObjectKey{Namespace: lab.SystemNamespace, Name: v1alpha1.AgentLeasePrefix + node}
	if err := s.Client.Get(ctx, key, &lease); err != nil || time.Until(lease.Spec.RenewTime.Time) > by/2 {
		return err
	}
	patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().Add(by).UTC().Format(metav1.RFC3339Micro))
	return s.Client.Patch(ctx, &lease, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// loseRoute takes the cluster network's route to another node's pods away.
func loseRoute(node, to string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		on, destination := s.node(node), s.node(to).PodCIDR(4)
		s.mend(func() {
			check(t, on.AddRoute(network.Route{Destination: destination, Gateway: s.node(to).Address(0, 4), Interface: paths[0]}))
		})
		s.must(t, on, "ip", "route", "delete", destination)
	}
}

// spreads is what explain says of a pod whose traffic is spread.
var spreads = regexp.MustCompile(`traffic: spread`)

// whenSpread waits until a pod's traffic is spread: it is broken then.
func whenSpread(name string, then func(*testing.T, *scene)) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		s.WaitFor(t, "the traffic of "+name+" is spread", patience, func(context.Context) error {
			if text := s.plugin("explain", name, "--namespace", shop); !spreads.MatchString(text) {
				return fmt.Errorf("it is not: %s", text)
			}
			return nil
		})
		then(t, s)
	}
}
