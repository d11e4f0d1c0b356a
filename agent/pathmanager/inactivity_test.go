// SPDX-License-Identifier: Apache-2.0

package pathmanager_test

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/pair"
)

// A connection without a subflow ends when the time that it is given is over, and not
// before. The server's end keeps its own.
func TestAConnectionWithoutASubflowWaitsAsLongAsItIsTold(t *testing.T) {
	const waiting = 3 * time.Second
	for name, test := range map[string]struct {
		timeout time.Duration
		ends    bool
	}{
		"a second":        {time.Second, true},
		"an hour":         {time.Hour, false},
		"what it was set": {0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, server := pair.New(t)
			namespace := open(t, client, t.TempDir())
			t.Cleanup(func() { namespace.Close() })
			wanted := settings(client, agent, 1)
			wanted.Reopen = v1alpha1.ReopenNever
			require.NoError(t, namespace.Configure(context.Background(), wanted))
			connection, err := client.Dial(context.Background(), "tcp", server.Serve(4).String())
			require.NoError(t, err)
			t.Cleanup(func() { connection.Close() })
			require.NoError(t, namespace.SetInactivityTimeout(test.timeout))
			client.Kill(client.Subflows(connection.LocalAddr())[0])
			ended := endsWithin(t, connection, map[bool]time.Duration{true: 20 * time.Second, false: waiting}[test.ends])
			if ended != test.ends {
				t.Errorf("the connection ended: %v", ended)
			}
		})
	}
}

// endsWithin waits for the end of a connection on which nothing arrives.
func endsWithin(t *testing.T, connection net.Conn, most time.Duration) bool {
	t.Helper()
	require.NoError(t, connection.SetReadDeadline(time.Now().Add(most)))
	_, err := connection.Read(make([]byte, 1))
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

func TestTheTimeoutOfANamespaceIsPutBack(t *testing.T) {
	t.Parallel()
	const setting = "net.mptcp.close_timeout"
	client, _ := pair.New(t)
	_, err := client.Run("sysctl", "-w", setting+"=77")
	require.NoError(t, err)
	expect := func(wanted string) {
		t.Helper()
		require.Equal(t, wanted, settingOf(t, client, setting))
	}
	statePath := t.TempDir()
	first := open(t, client, statePath)
	require.NoError(t, first.Configure(context.Background(), settings(client, kernel, 3)))
	require.NoError(t, first.SetInactivityTimeout(5*time.Minute))
	expect("300")
	require.NoError(t, first.SetInactivityTimeout(0))
	expect("77")
	require.NoError(t, first.SetInactivityTimeout(2*time.Second))
	require.NoError(t, first.Close())
	second := open(t, client, statePath)
	defer second.Close()
	require.NoError(t, second.Configure(context.Background(), settings(client, kernel, 3)))
	require.NoError(t, second.SetInactivityTimeout(0))
	expect("77")
	require.NoError(t, second.SetInactivityTimeout(time.Hour))
	require.NoError(t, second.Restore(context.Background()))
	expect("77")
}
