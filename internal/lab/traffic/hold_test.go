// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"net"
	"testing"
	"time"

	"braid.dev/braid/internal/testutil"
)

// echo answers on loopback until the returned function is called.
func echo(t *testing.T) (address string, end func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Echo(ctx, listener) }()
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	return listener.Addr().String(), end
}

func TestConnectionsThatAreHeldAreCountedWhenTheyBreak(t *testing.T) {
	address, end := echo(t)
	ctx, cancel := context.WithCancel(context.Background())
	holder, err := Hold(ctx, Dial(address), HoldOptions{Connections: 3, Every: time.Millisecond, Patience: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		holder.Run(ctx)
	}()
	testutil.Eventually(t, 30*time.Second, "something is exchanged", func() bool { return holder.Held().Exchanges > 20 })
	if held := holder.Held(); held.Lost != 0 || held.Connections != 3 || held.LongestMs == 0 {
		t.Errorf("while all is well: %+v", held)
	}
	end()
	testutil.Eventually(t, 30*time.Second, "the end of the other side is noticed", func() bool { return holder.Held().Lost == 3 })
	if held := holder.Held(); len(held.Errors) != 3 {
		t.Errorf("the reasons are missing: %+v", held)
	}
	cancel()
	<-done
}

func TestConnectionsThatAreGivenUpAreNotLost(t *testing.T) {
	address, _ := echo(t)
	ctx, cancel := context.WithCancel(context.Background())
	holder, err := Hold(ctx, DialPlain(address), HoldOptions{Connections: 2, Every: time.Millisecond, Patience: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if holder.Held().Multipath {
		t.Error("plain connections are called MPTCP")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		holder.Run(ctx)
	}()
	testutil.Eventually(t, 30*time.Second, "something is exchanged", func() bool { return holder.Held().Exchanges > 5 })
	cancel()
	<-done
	if held := holder.Held(); held.Lost != 0 {
		t.Errorf("what was given up is lost: %+v", held)
	}
}
