// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

const (
	talkPort = 5002
	// Each pod that dies has so many connections of which it says nothing.
	talks = 20
)

const closeTimeout = "net.mptcp.close_timeout"

// soonNoticed are settings by which the kernel finds out in seconds, and not in minutes,
// that nobody is there: it keeps a pod's network namespace as long as connections of it
// wait for an answer, after all processes are gone.
var soonNoticed = [][2]string{
	{"net.ipv4.tcp_orphan_retries", "1"}, {"net.ipv4.tcp_retries2", "4"}, {closeTimeout, "2"},
}

func noticeSoon(t *testing.T, pod *network.Pod) {
	t.Helper()
	for _, setting := range soonNoticed {
		if err := pod.Sysctl(setting[0], setting[1]); err != nil {
			t.Fatal(err)
		}
	}
}

// answerMortals has a pod send back what the mortals send it.
func (s *soak) answerMortals(t *testing.T) {
	t.Helper()
	pod := s.Network.Pod("echo")
	before, err := pod.Run("sysctl", "-n", closeTimeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pod.Sysctl(closeTimeout, strings.TrimSpace(before)); err != nil {
			t.Error(err)
		}
	})
	noticeSoon(t, pod)
	listener, err := pod.Listen(t.Context(), "tcp", fmt.Sprint(pod.IPv4, ":", talkPort))
	if err != nil {
		t.Fatal(err)
	}
	stop := context.AfterFunc(t.Context(), func() { _ = listener.Close() })
	var running sync.WaitGroup
	running.Go(func() {
		defer stop()
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { echo(t.Context(), connection.(*net.TCPConn)) })
		}
	})
	t.Cleanup(running.Wait)
}

// echo ends by itself where the other end is silent.
func echo(ctx context.Context, connection *net.TCPConn) {
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	defer stop()
	defer connection.Close()
	if err := connection.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3}); err != nil {
		return
	}
	_, _ = io.Copy(connection, connection)
}

// mortal is a pod that will die.
type mortal struct {
	*network.Pod
	talker *process
}

// addDying adds two pods to each node, which talk.
func (s *soak) addDying(t *testing.T) (all []mortal) {
	t.Helper()
	for i := range 2 * len(s.Network.Nodes) {
		s.added++
		pod, err := s.AddPod(t.Context(), lab.Pod{Namespace: crowd, Name: fmt.Sprint("mortal-", s.added), Node: 1 + i/2, Labels: app("crowd")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.RemovePod(context.Background(), crowd, pod) }) // it may be dead
		noticeSoon(t, pod)
		all = append(all, mortal{Pod: pod})
	}
	s.awaitProgrammed(t, resident+len(all))
	for i := range all {
		all[i].talker = start(t, all[i].Pod, roleHold, job{To: fmt.Sprint(s.Network.Pod("echo").IPv4, ":", talkPort), Count: talks, PerSecond: 10 * talks, Talk: true})
	}
	for _, mortal := range all {
		if open := mortal.talker.ready(t); open < talks*3/4 {
			t.Errorf("%s has %d connections of %d, which shows less than it should", mortal.PodName, open, talks)
		}
	}
	return all
}

// die has pods end without a word: their interfaces go before their processes do. Of every
// other one the API server hears only later.
func (s *soak) die(t *testing.T, all []mortal) {
	t.Helper()
	for late := range 2 {
		for i, mortal := range all {
			if i%2 == late {
				continue
			}
			if err := s.deletePod(t, mortal.PodName); err != nil {
				t.Error(err)
			}
		}
		if late > 0 {
			break
		}
		for _, mortal := range all {
			mortal.cut(t)
			s.dead[netip.MustParseAddr(mortal.IPv4)] = true
		}
		time.Sleep(time.Second)
	}
}

// cut takes the pod's interface, its processes and its name away.
func (m mortal) cut(t *testing.T) {
	t.Helper()
	handle, err := m.Node.Handle()
	if err != nil {
		t.Fatal(err)
	}
	host, err := handle.LinkByName(m.HostInterface)
	if err == nil {
		err = handle.LinkDel(host)
	}
	m.talker.kill()
	if err := errors.Join(err, m.Remove()); err != nil {
		t.Errorf("taking %s away: %v", m.PodName, err)
	}
}

func (s *soak) deletePod(t *testing.T, name string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: crowd, Name: name}}
	return s.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0))
}
