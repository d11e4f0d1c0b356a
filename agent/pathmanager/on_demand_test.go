// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/announcements"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// teller is a Watcher that tells what a test has it tell.
type teller struct {
	mutex  sync.Mutex
	cannot bool
	told   map[uint32]chan<- uint32
}

func (w *teller) Watch(_ []int, what uint32, told chan<- uint32) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for bit := uint32(1); bit <= what; bit <<= 1 {
		if what&bit != 0 {
			w.told[bit] = told
		}
	}
	return !w.cannot
}

func (w *teller) Unwatch(_ []int, what uint32) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for bit := range w.told {
		if what&bit != 0 {
			delete(w.told, bit)
		}
	}
}

// tell is false where nobody asked for it.
func (w *teller) tell(what uint32) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	told := w.told[what]
	if told != nil {
		told <- 0
	}
	return told != nil
}

// listeningPod is one that the path managers of a node manage, by what tells of it.
func listeningPod(t *testing.T, watcher *teller) (p *Pods, pod *network.Namespace) {
	t.Helper()
	pod = network.NamespaceForTest(t)
	for _, command := range []string{"ip link set lo up", "ip address add 10.9.0.1/32 dev lo"} {
		words := strings.Fields(command)
		_, err := pod.Run(words[0], words[1:]...)
		require.NoError(t, err)
	}
	listener, err := pod.Listen(t.Context(), "tcp", "10.9.0.1:80")
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	p = NewPods(PodsOptions{StatePath: t.TempDir(), ProcPath: "/proc", Watcher: watcher, Log: testr.New(t)})
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	var status unix.Stat_t
	require.NoError(t, unix.Stat(pod.Path(), &status))
	report := p.Apply(t.Context(), &node.Model{LookComplete: true, Endpoints: []node.Endpoint{{
		Found: &endpoints.Endpoint{Inode: status.Ino, Path: pod.Path()}, HostInterface: 1, Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.1")},
		PlanEndpoint: &v1alpha1.PlanEndpoint{UID: "1", Subflows: v1alpha1.PlanSubflows{
			Manager: v1alpha1.SubflowManagerKernel, Count: 3, FirstAnnouncedPort: 61001, AnnounceAfterMillis: 500,
		}},
	}}})
	require.True(t, report.Done(), report.Err)
	return p, pod
}

func expectAnnounced(t *testing.T, pod *network.Namespace, count int) {
	t.Helper()
	testutil.Eventually(t, 10*time.Second, "the pod announces what it should", func() bool {
		out, err := pod.Run("ip", "mptcp", "endpoint", "show")
		return err == nil && strings.Count(out, "signal") == count
	})
}

func TestAPodAnnouncesItsAddressesWhenItIsToldThatAConnectionLasts(t *testing.T) {
	watcher := &teller{told: map[uint32]chan<- uint32{}}
	_, pod := listeningPod(t, watcher)
	testutil.Eventually(t, 10*time.Second, "what lasts is told", func() bool {
		expectAnnounced(t, pod, 0)
		return watcher.tell(announcements.TellsServed)
	})
	expectAnnounced(t, pod, 2)
	require.False(t, watcher.tell(announcements.TellsServed), "it is asked for still")
}

func TestAPodAnnouncesAllTheTimeWhereNothingCanBeTold(t *testing.T) {
	_, pod := listeningPod(t, &teller{cannot: true, told: map[uint32]chan<- uint32{}})
	expectAnnounced(t, pod, 2)
}

func TestAnAgentThatEndsHasAllPodsAnnounceTheirAddresses(t *testing.T) {
	watcher := &teller{told: map[uint32]chan<- uint32{}}
	p, pod := listeningPod(t, watcher)
	testutil.Eventually(t, 10*time.Second, "what comes is told", func() bool { return watcher.tell(announcements.TellsArrival) })
	expectAnnounced(t, pod, 0)
	require.NoError(t, p.Close())
	expectAnnounced(t, pod, 2)
}

func TestAPodThatNoPolicySelectsAnyMoreAnnouncesNothing(t *testing.T) {
	p, pod := listeningPod(t, &teller{cannot: true, told: map[uint32]chan<- uint32{}})
	expectAnnounced(t, pod, 2)
	var status unix.Stat_t
	require.NoError(t, unix.Stat(pod.Path(), &status))
	opened := p.managed[status.Ino]
	require.NoError(t, opened.Restore(t.Context()))
	require.NoError(t, opened.Leave())
	expectAnnounced(t, pod, 0)
}
