// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	hosts "braid.dev/braid/internal/lab/pair"
	"braid.dev/braid/internal/mptcpnl"
)

// heard are the events of a host that pass its filter.
func heard(t *testing.T, host *hosts.Host, after time.Duration) (*adolescents, <-chan mptcpnl.Event) {
	t.Helper()
	file := host.Open()
	defer file.Close()
	subscription, err := mptcpnl.Subscribe(int(file.Fd()))
	require.NoError(t, err)
	y, err := theYoung()
	require.NoError(t, err)
	a, err := y.follow(subscription, after)
	require.NoError(t, err)
	events, done := make(chan mptcpnl.Event, 1000), make(chan struct{})
	go func() {
		defer close(done)
		for {
			list, err := subscription.Receive()
			if err != nil {
				return
			}
			for _, event := range list {
				if began, ok := event.(mptcpnl.ConnectionEvent); ok && began.Kind == mptcpnl.ConnectionEstablished {
					a.isKept(began.Token) // as the follower does
				}
				events <- event
			}
		}
	}()
	t.Cleanup(func() {
		a.close()
		require.NoError(t, subscription.Close())
		<-done
	})
	return a, events
}

func TestOfConnectionsThatStayShortNobodyIsTold(t *testing.T) {
	const short, old = 100, 2 * time.Second
	client, server := hosts.New(t)
	for name, host := range map[string]*hosts.Host{"client": client, "server": server} {
		t.Run(name, func(t *testing.T) {
			a, events := heard(t, host, old)
			address := server.Serve(4).String()
			for range short {
				connection := openMany(t, client, address, 1)[0]
				_, err := connection.Read(make([]byte, 1))
				require.NoError(t, err)
				require.NoError(t, connection.Close())
			}
			time.Sleep(old + 500*time.Millisecond) // what is not to come
			require.Empty(t, a.take())
			connections := 0
			for len(events) > 0 {
				if _, ok := (<-events).(mptcpnl.ConnectionEvent); ok {
					connections++
				}
			}
			// One wakes the agent each time that it slept.
			require.LessOrEqual(t, connections, short/10, "events of connections")
		})
	}
}

func TestAConnectionThatLastsIsHandedOverAndItsEndIsTold(t *testing.T) {
	const old = 300 * time.Millisecond
	client, server := hosts.New(t)
	a, events := heard(t, client, old)
	began := time.Now()
	connection := openMany(t, client, server.Serve(6).String(), 1)[0]
	select {
	case <-a.hasGrown():
	case <-time.After(hosts.Wait):
		t.Fatal("a connection that lasts is not handed over")
	}
	grown := a.take()
	require.Len(t, grown, 1)
	require.GreaterOrEqual(t, time.Since(began), old)
	require.Equal(t, connection.LocalAddr().String(), grown[0].event.Local.String())
	require.WithinDuration(t, began, grown[0].began, old)
	_, kept := a.adopt(grown[0].event.Token)
	require.False(t, kept, "it is kept although it was handed over")
	require.NoError(t, connection.Close())
	expectEnd(t, events, grown[0].event.Token)
}

func expectEnd(t *testing.T, events <-chan mptcpnl.Event, token uint32) {
	t.Helper()
	for {
		select {
		case event := <-events:
			if closed, ok := event.(mptcpnl.ConnectionEvent); ok && closed.Kind == mptcpnl.ConnectionClosed {
				require.Equal(t, token, closed.Token)
				return
			}
		case <-time.After(hosts.Wait):
			t.Fatal("nothing tells of a connection's end")
		}
	}
}

func TestAYoungConnectionThatSomethingHappensToIsTakenOver(t *testing.T) {
	client, server := hosts.New(t)
	a, _ := heard(t, client, time.Hour)
	connection := openMany(t, client, server.Serve(4).String(), 1)[0]
	token, found := client.Token(connection.LocalAddr())
	require.True(t, found)
	hosts.Eventually(t, func() bool { return a.isKept(token) }, func() string { return fmt.Sprintf("connection %08x is not kept", token) })
	g, kept := a.adopt(token)
	require.True(t, kept)
	require.Equal(t, connection.LocalAddr().String(), g.event.Local.String())
	require.False(t, a.isKept(token))
}
