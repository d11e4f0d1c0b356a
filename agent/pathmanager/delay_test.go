// SPDX-License-Identifier: Apache-2.0

package pathmanager_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/pair"
)

// manageWith configures a host until the test ends.
func manageWith(t *testing.T, host *pair.Host, wanted pathmanager.Settings) *pathmanager.Namespace {
	t.Helper()
	namespace := open(t, host, t.TempDir())
	t.Cleanup(func() { namespace.Close() })
	require.NoError(t, namespace.Configure(context.Background(), wanted))
	return namespace
}

// after is how connections of three subflows wait for the second one.
func after(host *pair.Host, openAfter pathmanager.OpenAfter) pathmanager.Settings {
	wanted := settings(host, agent, 3)
	wanted.OpenAfter = openAfter
	return wanted
}

// exchange sends bytes to a server that sends them back.
func exchange(t *testing.T, connection net.Conn, bytes int64) {
	t.Helper()
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(connection, zeroes{}, bytes)
		sent <- err
	}()
	_, err := io.CopyN(io.Discard, connection, bytes)
	require.NoError(t, err)
	require.NoError(t, <-sent)
}

// zeroes is endless.
type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// expectStays expects a number of subflows that does not change for a while.
func expectStays(t *testing.T, host *pair.Host, connection net.Conn, count int, span time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(span); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if subflows := host.Subflows(connection.LocalAddr()); len(subflows) != count {
			t.Fatalf("a connection has subflows %v, not %d", subflows, count)
		}
	}
}

func TestSubflowsAreOpenedAfterTheBytesThatTheyAreToWaitFor(t *testing.T) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) {
			client, server := pair.New(t)
			manage(t, server, agent, 3)
			manageWith(t, client, after(client, pathmanager.OpenAfter{Bytes: 256 << 10}))
			address := server.Serve(version)
			short, long := begin(t, client, address), begin(t, client, address)
			exchange(t, short, 100<<10) // both directions count
			exchange(t, long, 200<<10)
			client.ExpectSubflows(long, 3)
			expectStays(t, client, short, 1, time.Second)
			exchange(t, short, 100<<10)
			client.ExpectSubflows(short, 3)
		})
	}
}

func TestSubflowsAreOpenedAfterTheTimeThatTheyAreToWaitFor(t *testing.T) {
	client, server := pair.New(t)
	manage(t, server, agent, 3)
	manageWith(t, client, after(client, pathmanager.OpenAfter{Time: 2 * time.Second}))
	connection := begin(t, client, server.Serve(4))
	expectStays(t, client, connection, 1, time.Second)
	client.ExpectSubflows(connection, 3)
}

func TestTheFirstConditionOpensSubflows(t *testing.T) {
	client, server := pair.New(t)
	manage(t, server, agent, 3)
	manageWith(t, client, after(client, pathmanager.OpenAfter{Bytes: 64 << 10, Time: 2 * time.Second}))
	address := server.Serve(4)
	idle, busy := begin(t, client, address), begin(t, client, address)
	began := time.Now()
	exchange(t, busy, 64<<10)
	client.ExpectSubflows(busy, 3)
	if idled := client.Subflows(idle.LocalAddr()); time.Since(began) < time.Second && len(idled) != 1 {
		t.Errorf("an idle connection has subflows %v before its time", idled)
	}
	client.ExpectSubflows(idle, 3)
}

func TestConnectionsFromBeforeARestartOfTheAgentWaitAsWell(t *testing.T) {
	client, server := pair.New(t)
	manage(t, server, agent, 3)
	wanted := after(client, pathmanager.OpenAfter{Bytes: 256 << 10})
	require.NoError(t, manageWith(t, client, wanted).Close())
	address := server.Serve(4)
	small, large := begin(t, client, address), begin(t, client, address)
	exchange(t, large, 200<<10)
	manageWith(t, client, wanted)
	client.ExpectSubflows(large, 3)
	expectStays(t, client, small, 1, time.Second)
}

func TestAConnectionThatWaitsAndLosesItsSubflowGetsOthers(t *testing.T) {
	client, server := pair.New(t)
	manage(t, server, agent, 3)
	manageWith(t, client, after(client, pathmanager.OpenAfter{Time: time.Hour}))
	connection := client.Connect(server.Serve(4))
	expectStays(t, client, connection, 1, 300*time.Millisecond)
	client.Kill(client.Subflows(connection.LocalAddr())[0])
	client.ExpectSubflows(connection, 3)
}

func TestClosedSubflowsStayClosedWhereTheyAreTo(t *testing.T) {
	forEach(t, []int{3}, func(t *testing.T, manager v1alpha1.SubflowManager, version, count int) {
		if manager == kernel && version == 6 {
			return // the kernel goes on with addresses that were announced and not used yet
		}
		client, server := pair.New(t)
		manage(t, server, manager, count)
		wanted := settings(client, manager, count)
		wanted.Reopen = v1alpha1.ReopenNever
		manageWith(t, client, wanted)
		connection := client.Connect(server.Serve(version))
		client.ExpectSubflows(connection, count)
		killOne(t, client, connection)
		expectStays(t, client, connection, count-1, 2*time.Second)
	})
}

func TestAfterARestartOfTheAgentClosedSubflowsStayClosed(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	manage(t, server, agent, 3)
	wanted := settings(client, agent, 3)
	wanted.Reopen = v1alpha1.ReopenNever
	first := manageWith(t, client, wanted)
	connection := client.Connect(server.Serve(4))
	client.ExpectSubflows(connection, 3)
	killOne(t, client, connection)
	require.NoError(t, first.Close())
	manageWith(t, client, wanted)
	expectStays(t, client, connection, 2, 2*time.Second)
}
