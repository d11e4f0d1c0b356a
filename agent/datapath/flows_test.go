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

func TestWhereNothingIsPinnedThereAreNoFlows(t *testing.T) {
	flows, err := Open(Options{PinPath: filepath.Join(t.TempDir(), "pins")}).PinnedFlows()
	if len(flows) > 0 || err != nil {
		t.Errorf("there are %v, %v", flows, err)
	}
}
