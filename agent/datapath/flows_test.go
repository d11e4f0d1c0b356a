// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

func TestFlowsCanBeReadByTheirPinsAlone(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	r := start(t, client, server, 4, traffic.Options{Duration: time.Second})
	l.awaitSubflows(t, 0, 3)
	r.wait(t)
	// What ended a moment ago may still change; it is compared when it does not.
	testutil.Retry(t, 10*time.Second, func() error {
		pinned, err := Open(l.datapaths[0].options).PinnedFlows()
		require.NoError(t, err)
		flows := l.flows(t, 0)
		if len(flows) >= 3 && reflect.DeepEqual(byEnds(pinned), byEnds(flows)) {
			return nil
		}
		return fmt.Errorf("by the pins there are%s\nby the datapath%s", describe(pinned), describe(flows))
	})
}

func TestAFlowIsFoundByItsEnds(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	r := start(t, client, server, 4, traffic.Options{Duration: time.Second})
	l.awaitSubflows(t, 0, 3)
	r.wait(t)
	table, err := Open(l.datapaths[0].options).OpenFlows()
	require.NoError(t, err)
	defer table.Close()
	flows := l.flows(t, 0)
	require.NotEmpty(t, flows)
	for _, flow := range flows {
		found, err := table.Find(flow.Local, flow.Remote)
		require.NoError(t, err)
		require.NotNil(t, found)
		require.Equal(t, flow.Path, found.Path)
		found, err = table.Find(flow.Remote, flow.Local)
		require.NoError(t, err)
		require.Nil(t, found, "a flow of the other end's node")
	}
}

func TestWhereNothingIsPinnedThereAreNoFlows(t *testing.T) {
	flows, err := Open(Options{PinPath: filepath.Join(t.TempDir(), "pins")}).PinnedFlows()
	if len(flows) > 0 || err != nil {
		t.Errorf("there are %v, %v", flows, err)
	}
}
