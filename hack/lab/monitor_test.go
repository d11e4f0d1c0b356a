// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// answering is a hypervisor that greets, and says these lines to each order in turn.
func answering(t *testing.T, answers ...string) *monitor {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qmp")
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		line, err := listener.Accept()
		if err != nil {
			return
		}
		defer line.Close()
		fmt.Fprintln(line, `{"QMP": {"version": {}}}`)
		orders := bufio.NewScanner(line)
		for _, answer := range append([]string{`{"return": {}}`}, answers...) {
			if !orders.Scan() {
				return
			}
			fmt.Fprintln(line, answer)
		}
		orders.Scan() // until the line ends
	}()
	q, err := dialMonitor(t.Context(), path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = q.close() })
	return q
}

func TestAnEventThatComesBeforeAnAnswerIsNotLost(t *testing.T) {
	q := answering(t, `{"event": "STOP", "data": {}}`+"\n"+`{"return": {"downtime": 7}}`)
	var told struct{ Downtime int }
	require.NoError(t, q.ask(t.Context(), "query-migrate", nil, &told))
	require.Equal(t, 7, told.Downtime)
	require.NoError(t, q.wait(t.Context(), "STOP", ""))
}

func TestAnErrorOfTheHypervisorIsTold(t *testing.T) {
	q := answering(t, `{"error": {"class": "GenericError", "desc": "no such file"}}`)
	require.ErrorContains(t, q.ask(t.Context(), "migrate", map[string]string{"uri": "unix:/none"}, nil), "migrate: no such file")
}

func TestNobodyWaitsForAMigrationThatFailed(t *testing.T) {
	q := answering(t, `{"return": {}}`+"\n"+`{"event": "MIGRATION", "data": {"status": "failed"}}`)
	require.NoError(t, q.ask(t.Context(), "migrate", nil, nil))
	require.ErrorContains(t, q.wait(t.Context(), "STOP", ""), "failed")
}
