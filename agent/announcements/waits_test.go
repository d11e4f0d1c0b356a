// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/announcements"
)

func TestEachPodOfThePlanHasTheProgramAndVMsHaveNot(t *testing.T) {
	endpoint := func(manager v1alpha1.SubflowManager, millis int64, guest *v1alpha1.PlanGuest, interfaces ...int) node.Endpoint {
		return node.Endpoint{HostInterface: interfaces[0], Others: interfaces[1:], PlanEndpoint: &v1alpha1.PlanEndpoint{
			Guest: guest, Subflows: v1alpha1.PlanSubflows{Manager: manager, AnnounceAfterMillis: millis},
		}}
	}
	holder := endpoint(v1alpha1.SubflowManagerHost, 0, nil, 6)
	holder.VirtualMachine = &v1alpha1.PlanVirtualMachine{Held: true}
	none := endpoint(v1alpha1.SubflowManagerNone, 0, nil, 7)
	none.VirtualMachine = &v1alpha1.PlanVirtualMachine{}
	agents := endpoint(v1alpha1.SubflowManagerAgent, 0, nil, 8)
	agents.Subflows.OpenAfterMillis, agents.Subflows.OpenAfterBytes = 500, 1000
	joined, alone, closed := endpoint(v1alpha1.SubflowManagerKernel, 500, nil, 11), endpoint(v1alpha1.SubflowManagerKernel, 500, nil, 12), endpoint(v1alpha1.SubflowManagerNone, 0, nil, 13)
	joined.Subflows.Count, alone.Subflows.Count, closed.Subflows.Count = 2, 1, 2
	agents.Subflows.Count = 3
	waits := waitsOf(&node.Model{Endpoints: []node.Endpoint{
		holder, none, agents, joined, alone, closed,
		endpoint(v1alpha1.SubflowManagerKernel, 500, nil, 1, 10),
		endpoint(v1alpha1.SubflowManagerKernel, 0, nil, 2),
		endpoint(v1alpha1.SubflowManagerAgent, 0, nil, 3, 10),
		endpoint(v1alpha1.SubflowManagerNone, 0, nil, 4),
		endpoint(v1alpha1.SubflowManagerNone, 0, &v1alpha1.PlanGuest{}, 5),
		endpoint(v1alpha1.SubflowManagerKernel, 0, nil, 0), // not found yet
	}})
	held := announcements.HoldWait{Time: uint64(500 * time.Millisecond)}
	opened := announcements.HoldWait{Time: uint64(500 * time.Millisecond), Bytes: 1000, Tells: announcements.AgentOpens | announcements.MayBeJoined}
	several := held
	several.Tells = announcements.MayBeJoined
	got := map[uint32]announcements.HoldWait{}
	for index, one := range waits {
		got[index] = one.HoldWait
	}
	require.Equal(t, map[uint32]announcements.HoldWait{1: held, 2: {}, 3: {}, 4: {}, 7: {}, 8: opened, 10: held, 11: several, 12: held, 13: {}}, got)
}

func TestWhatIsToldOfAPodStaysAndWhetherItMayBeJoinedFollowsItsPolicy(t *testing.T) {
	const index = 4711
	l := newLab(t, usual)
	waits := l.holder.loaded.Value.Waits
	require.NoError(t, waits.Put(uint32(index), &announcements.HoldWait{Tells: announcements.TellsLasting | announcements.MayBeJoined}))
	for _, may := range []uint32{0, announcements.MayBeJoined} {
		wait := announcements.HoldWait{Tells: may}
		l.holder.keepTells(index, &wait)
		require.Equal(t, announcements.TellsLasting|may, wait.Tells)
	}
}
