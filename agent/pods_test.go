// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
)

func TestAPlanSaysHowAndWhenSubflowsAreOpened(t *testing.T) {
	wanted := &v1alpha1.PlanEndpoint{
		Addresses: []string{"10.0.0.1", "fd00::1"},
		Paths:     []v1alpha1.PathWeight{{Path: "blue"}, {Path: "green"}},
		Subflows: v1alpha1.PlanSubflows{
			Manager: v1alpha1.SubflowManagerAgent, Count: 8, Mode: v1alpha1.SubflowModeFullMesh,
			OpenAfterBytes: 256 << 10, OpenAfterMillis: 500, Reopen: v1alpha1.ReopenNever,
		},
	}
	want := pathmanager.Settings{
		Manager: v1alpha1.SubflowManagerAgent, Count: 8, Mode: v1alpha1.SubflowModeFullMesh, EachPair: 2,
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
		OpenAfter: pathmanager.OpenAfter{Bytes: 256 << 10, Time: 500 * time.Millisecond},
		Reopen:    v1alpha1.ReopenNever,
	}
	if got := settingsOf(wanted); !reflect.DeepEqual(got, want) {
		t.Errorf("settings are %+v, want %+v", got, want)
	}
}
