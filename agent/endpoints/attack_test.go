// SPDX-License-Identifier: Apache-2.0

package endpoints_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/internal/lab/network"
)

// attack lets a pod do something, to an agent that knows the pods, to one that restarts,
// and to one that never saw them before. Both pods must be found by their own
// interfaces, whether routes lead there or not.
func attack(t *testing.T, act func(t *testing.T, l *lab, attacker, victim *network.Pod)) {
	for name, test := range map[string]struct{ known, restarted, routed bool }{
		"while the agent runs":              {known: true, routed: true},
		"before it restarts":                {known: true, restarted: true, routed: true},
		"before the agent sees it":          {routed: true},
		"before the agent sees it, bridged": {},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 2)
			attacker, victim := l.node.Pods[0], l.node.Pods[1]
			if !test.routed {
				l.withoutRoutes(attacker, victim)
			}
			if test.known {
				l.expectFound(attacker)
			}
			act(t, l, attacker, victim)
			if test.restarted {
				l.restart()
			}
			for range 2 {
				l.expectFound(attacker)
				l.expectFound(victim)
			}
		})
	}
}

func TestAPodThatMovesItsAddressToLoIsFound(t *testing.T) {
	attack(t, func(_ *testing.T, l *lab, attacker, _ *network.Pod) {
		l.ip(attacker.Namespace, "address", "flush", "dev", "eth0")
		l.ip(attacker.Namespace, "address", "add", attacker.IPv4+"/32", "dev", "lo")
	})
}

func TestAPodThatAddsAnothersAddressGetsNothing(t *testing.T) {
	attack(t, func(_ *testing.T, l *lab, attacker, victim *network.Pod) {
		l.ip(attacker.Namespace, "address", "add", victim.IPv4+"/32", "dev", "eth0")
		l.ip(attacker.Namespace, "address", "add", victim.IPv6+"/128", "dev", "eth0")
	})
}

func TestAPodThatMovesItsInterfaceToANamespaceOfItsOwnIsFound(t *testing.T) {
	attack(t, func(_ *testing.T, l *lab, attacker, _ *network.Pod) {
		l.moveAway(attacker, inBurstable(uid(attacker.PodName))+"/container")
	})
}

// threadOf moves one thread of a process, not its first one, to a namespace of its own.
func TestAPodThatMovesItsInterfaceToAThreadsNamespaceIsFound(t *testing.T) {
	attack(t, func(t *testing.T, l *lab, attacker, _ *network.Pod) {
		group := inBurstable(uid(attacker.PodName)) + "/sandbox"
		thread, stop := make(chan int), make(chan struct{})
		go func() { // its thread ends with it
			runtime.LockOSThread()
			if attacker.Do(func() error { return unix.Unshare(unix.CLONE_NEWNET) }) != nil {
				close(thread)
				return
			}
			if unix.Unshare(unix.CLONE_NEWNET) == nil {
				thread <- unix.Gettid()
			}
			<-stop
		}()
		id := <-thread
		t.Cleanup(func() { close(stop) })
		require.NotZero(t, id)
		l.ip(attacker.Namespace, "link", "set", "eth0", "netns", strconv.Itoa(id))
		require.NoError(t, os.WriteFile(filepath.Join(l.groups, group, "cgroup.threads"), fmt.Appendln(nil, id), 0o600))
	})
}

func TestAGroupWithAnothersNameInsideAPodsIsNotBelieved(t *testing.T) {
	attack(t, func(_ *testing.T, l *lab, attacker, victim *network.Pod) {
		own := inBurstable(uid(attacker.PodName))
		process := l.run(attacker, own+"/container")
		l.join(own+"/container/kubepods/pod"+uid(victim.PodName)+"/sandbox", process)
		l.join(own+"/pod"+uid(victim.PodName), process)
	})
}

func TestManyGroupsAndProcessesOfAPodCostLittle(t *testing.T) {
	l := newLab(t, 2)
	own := inBurstable(uid(l.node.Pods[0].PodName)) + "/container"
	for i := range 2000 {
		l.join(fmt.Sprintf("%s/group%d", own, i), os.Getpid())
	}
	l.join(own, slices.Repeat([]int{os.Getpid()}, 20_000)...)
	expectFast(t, l)
	l.expectFound(l.node.Pods[1])
}

func expectFast(t *testing.T, l *lab) {
	t.Helper()
	fastest := time.Hour
	for range 5 {
		l.restart()
		begin := time.Now()
		l.look()
		fastest = min(fastest, time.Since(begin))
	}
	if fastest > 50*time.Millisecond {
		t.Errorf("a look takes %s", fastest)
	}
}

func TestTwentyThousandAddressesOfAPodCostNothing(t *testing.T) {
	l := newLab(t, 2)
	addAddresses(t, l.node.Pods[0], 20_000)
	expectFast(t, l)
	l.expectFound(l.node.Pods[0])
	l.expectFound(l.node.Pods[1])
}

func addAddresses(t testing.TB, pod *network.Pod, count int) {
	t.Helper()
	var batch strings.Builder
	for i := range count {
		fmt.Fprintf(&batch, "address add 172.%d.%d.%d/32 dev eth0\n", 16+i>>16, i>>8&255, i&255)
	}
	file := filepath.Join(t.TempDir(), "batch")
	require.NoError(t, os.WriteFile(file, []byte(batch.String()), 0o600))
	_, err := pod.Run("ip", "-batch", file)
	require.NoError(t, err)
}

func TestAPodThatFlapsItsInterfaceIsFound(t *testing.T) {
	attack(t, func(t *testing.T, l *lab, attacker, _ *network.Pod) {
		flap := attacker.Command(t.Context(), "sh", "-c", "while :; do ip link set eth0 down; ip link set eth0 up; ip link add d type veth; ip link del d; done")
		require.NoError(t, flap.Start())
		t.Cleanup(func() {
			_ = flap.Process.Kill()
			_ = flap.Wait()
		})
		for range 20 {
			l.expectFound(attacker)
		}
	})
}

// With no process in the namespace, and no route: what was known of the pod counts. An
// interface of which nothing is known is told as one that leads to another namespace.
func TestANamespaceThatIsHeldByADescriptor(t *testing.T) {
	for _, test := range []struct {
		name                 string
		known, routed, found bool
	}{
		{"of a pod that was found before", true, false, true},
		{"of a pod with a route", false, true, true},
		{"of a pod of which nothing is known", false, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, 2)
			attacker, victim := l.node.Pods[0], l.node.Pods[1]
			if !test.routed {
				l.withoutRoutes(attacker, victim)
			}
			if test.known {
				l.expectFound(attacker)
			}
			process := l.moveAway(attacker, "")
			held, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", process))
			require.NoError(t, err)
			defer held.Close()
			require.NoError(t, unix.Kill(process, unix.SIGKILL))
			for range 2 {
				if test.found {
					l.expectFound(attacker)
				} else {
					l.expectNone(attacker.PodName)
				}
				l.expectFound(victim)
				if _, listed := l.look().HostEnds[l.index(attacker.HostInterface)]; !listed {
					t.Error("its interface is not listed")
				}
				l.restart()
			}
		})
	}
}

// contradiction is what a look says against a pod.
func (l *lab) contradiction(pod *network.Pod) (endpoints.Endpoint, error) {
	found, err := l.look().Find(uid(pod.PodName))
	if err != nil {
		return found, err
	}
	return found, found.Contradiction
}

func TestARouteToAnotherPodIsAContradictionThatBothAreTold(t *testing.T) {
	l := newLab(t, 2)
	a, b := l.node.Pods[0], l.node.Pods[1]
	l.ip(l.node.Namespace, "route", "replace", a.IPv4, "dev", b.HostInterface)
	for _, pod := range []*network.Pod{a, b} {
		found, err := l.contradiction(pod)
		if err == nil || !strings.Contains(err.Error(), a.IPv4) || found.HostInterface != pod.HostInterface {
			t.Errorf("%s was found as %+v, and told %v", pod.PodName, found, err)
		}
		if disputed := fmt.Sprint(found.Disputed); (disputed == "["+a.IPv4+"]") != (pod == a) {
			t.Errorf("%s: disputed are %s", pod.PodName, disputed)
		}
	}
	l.ip(l.node.Namespace, "route", "replace", a.IPv4, "dev", a.HostInterface)
	l.restart()
	l.expectFound(a)
	l.expectFound(b)
}

func TestProcessesOfAnotherPodInAPodsNamespace(t *testing.T) {
	for name, routed := range map[string]bool{"with routes": true, "without routes": false} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 2)
			visitor, host := l.node.Pods[0], l.node.Pods[1]
			if !routed {
				l.withoutRoutes(visitor, host)
			}
			l.run(host, inBurstable(uid(visitor.PodName))+"/container")
			if routed {
				l.expectFound(host)
				l.expectFound(visitor)
				return
			}
			if _, err := l.contradiction(host); err == nil {
				t.Error("the pod that has the visitor is told nothing")
			}
			if found, err := l.contradiction(visitor); err == nil || found.HostInterface != visitor.HostInterface || len(found.Others) > 0 {
				t.Errorf("the visitor was found as %+v, and told %v", found, err)
			}
			l.restart()
			l.pods[1].Interface = l.index(host.HostInterface) // it had it before
			l.expectFound(host)
			l.expectFound(visitor)
		})
	}
}
