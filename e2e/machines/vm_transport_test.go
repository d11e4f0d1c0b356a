// SPDX-License-Identifier: Apache-2.0

package machines_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/testutil"
)

// What the policy and the rules of a VM ask of peers stands in acknowledgements of the guest,
// and the peer's own node heeds it as it does a pod's.
func TestThePeerOfAVMDoesWhatTheVMsPolicyAsksFor(t *testing.T) {
	c := use(t)
	vm := c.addGuest(t)
	accepts := testlab.NewPolicy("tenant", "server")
	accepts.Name = "accepts"
	accepts.Spec.Transport = &v1alpha1.Transport{Accept: &v1alpha1.TransportAcceptance{
		From: []v1alpha1.CIDR{"10.244.0.0/16"}, CongestionControls: []string{"cubic"}, MaxUserTimeout: &metav1.Duration{Duration: time.Minute},
		MinRate: resource.NewQuantity(1e6, resource.DecimalSI),
	}}
	asks := testlab.NewPolicy("tenant", "client")
	asks.Name = "asks"
	asks.Spec.Transport = &v1alpha1.Transport{Request: &v1alpha1.TransportRequest{
		CongestionControl: "cubic", Rates: []v1alpha1.PathRate{{Path: "green", Rate: resource.MustParse("20M")}},
	}}
	c.CreatePaths(t)
	c.Create(t, accepts, asks)
	guest := endpointOf(vm, "vm", append([]string{vm.IPv4, vm.IPv6}, guestAddresses...)...)
	c.Create(t, guest)
	c.WaitProgrammed(t, asks, 2)
	c.WaitProgrammed(t, accepts, 1)
	c.expectEndpoint(t, guest, v1alpha1.ReasonAccepted, v1alpha1.ReasonProgrammed)
	require.Empty(t, guest.Status.NotApplied)

	server := c.Network.Pod("tenant-server")
	const choice = "net.ipv4.tcp_congestion_control"
	before, err := server.Run("sysctl", "-n", choice)
	require.NoError(t, err)
	testlab.RunIn(t, server, "sysctl", "-qw", choice+"=reno") // another than is asked for
	t.Cleanup(func() { testlab.RunIn(t, server, "sysctl", "-qw", choice+"="+strings.TrimSpace(before)) })
	listener, err := server.Listen(t.Context(), "tcp", net.JoinHostPort(server.IPv4, "7799"))
	require.NoError(t, err)
	defer listener.Close()
	connection, err := vm.Dial(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	defer connection.Close()
	sends, err := listener.Accept()
	require.NoError(t, err)
	defer sends.Close()
	go func() { _, _ = io.Copy(io.Discard, connection) }()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		for data := make([]byte, 64<<10); ctx.Err() == nil; {
			if _, err := sends.Write(data); err != nil {
				return
			}
		}
	}()
	shown := func() (string, error) {
		return server.Run("ss", "-tinHO", "state", "established", "sport", "=", "7799")
	}
	t.Run("all subflows what is asked of all, and that of one path its rate", func(t *testing.T) {
		testutil.Retry(t, 20*time.Second, func() error {
			sockets, err := shown()
			if err == nil && (strings.Count(sockets, " cubic ") != len(paths) || strings.Count(sockets, "/20000000bps") != 1) {
				err = errors.New("the server has " + sockets)
			}
			return err
		})
	})
	t.Run("and what a rule asks for on one path", func(t *testing.T) {
		c.Update(t, asks, func() {
			asks.Spec.Transport = nil
			asks.Spec.Rules = []v1alpha1.Rule{{
				Name: "metered", Match: &v1alpha1.Match{Selectors: v1alpha1.Selectors{Paths: []v1alpha1.PathName{"blue"}, Direction: v1alpha1.DirectionToEndpoint}},
				Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRateLimit, At: v1alpha1.ActionAtPeer, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("10M")}}},
			}}
		})
		c.expectEndpoint(t, guest, v1alpha1.ReasonAccepted, v1alpha1.ReasonProgrammed)
		testutil.Retry(t, 30*time.Second, func() error {
			sockets, err := shown()
			if err == nil && (strings.Contains(sockets, " cubic ") || strings.Contains(sockets, "/20000000bps") || strings.Count(sockets, "/10000000bps") != 1) {
				err = fmt.Errorf("the server has %s", sockets)
			}
			return err
		})
	})
}

// A virtual machine with Debian's kernel and nothing of Braid's in it.
func TestThePeerOfAGuestWithAKernelOfItsOwnDoesWhatItsPolicyAsksFor(t *testing.T) {
	c := use(t)
	require.NoError(t, lab.FetchMachines(t.Context(), machineSuite))
	m, err := c.Boot(t.Context(), lab.MachineSpec{Name: "vm", Node: 1, Suite: machineSuite, MemoryMiB: 128})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.RemoveMachine(m)) })
	guest := endpointOf(m.Pod, "vm", m.IPv4)
	guest.Labels["app"] = "vm"
	accepts, asks := testlab.NewPolicy("tenant", "server"), testlab.NewPolicy("tenant", "vm")
	accepts.Name, asks.Name = "accepts", "asks"
	accepts.Spec.Transport = &v1alpha1.Transport{Accept: &v1alpha1.TransportAcceptance{
		From: []v1alpha1.CIDR{v1alpha1.CIDR(m.IPv4 + "/32")}, CongestionControls: []string{"bbr"}, MinRate: resource.NewQuantity(1e6, resource.DecimalSI),
	}}
	asks.Spec.Subflows.Manager = v1alpha1.SubflowManagerHost
	asks.Spec.Transport = &v1alpha1.Transport{Request: &v1alpha1.TransportRequest{CongestionControl: "bbr"}}
	c.CreatePaths(t)
	c.Create(t, accepts, asks, guest)
	c.WaitProgrammed(t, asks, 1)
	c.WaitProgrammed(t, accepts, 1)
	c.expectEndpoint(t, guest, v1alpha1.ReasonAccepted, v1alpha1.ReasonProgrammed)
	done := make(chan error, 1)
	server := c.Network.Pod("tenant-server")
	go func() {
		_, err := m.Traffic(t.Context(), "run", net.JoinHostPort(server.IPv4, strconv.Itoa(lab.TrafficPort)), "--direction", "down", "--duration", "20s", "--warmup", "0s")
		done <- err
	}()
	testutil.Retry(t, 30*time.Second, func() error {
		sockets, err := server.Run("ss", "-tinHO", "state", "established", "dst", m.IPv4)
		if err == nil && (sockets == "" || strings.Count(sockets, " bbr ") != strings.Count(sockets, "\n")) {
			err = errors.New("the server has " + sockets)
		}
		return err
	})
	require.NoError(t, <-done)
}
