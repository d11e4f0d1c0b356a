/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Paths to a peer whose round trip is much longer than that of others, as the agents' probes say. A
 * connection that moves little waits for round trips and for nothing else, and while nothing is under way the
 * kernel has its first subflow carry what is sent. So one whose path is distant rests by another one until it moves
 * more. Its place stays its own: what moves much has all paths. While the agent is away they stay
 * as distant as they were.
 */
#ifndef BRAID_UPLINK_DISTANT_H
#define BRAID_UPLINK_DISTANT_H

#include "path_selection.h"
#include "silence.h"
#include "slow.h"

enum {
	HEARD_OF_LATE = 1024, /* ticks: a flow rests by no path on which the peer has answered nobody for longer */
};

/*
 * The bits of flow_subtype for a connection that begins on a distant path: it rests by another one of these, if
 * there are any. Global, with nothing but numbers, as in path_selection.h.
 */
__noinline __u32 begins_at_rest(__u32 peer, __u32 path, __u32 usable, __u32 hash)
{
	struct health *known = bpf_map_lookup_elem(&health, &peer);

	if (likely(!known || !(known->distant >> (path & (MAX_PATHS - 1)) & 1)))
		return 0;
	path = one_of(usable & ~known->distant, hash);
	return path < MAX_PATHS ? TOGETHER | path << TOGETHER_PATH : 0;
}

/* No more than a flow that rests, in the slices of time since it was counted last. */
static __always_inline int moves_little(const struct flow *flow)
{
	__s32 slices = (ticks() >> SLICE) - flow->counted; /* another processor's clock may be behind */

	return slices > 0 && moved_most(flow) < RESTING_BYTES / LOAD_UNIT * (__u64)slices;
}

/* The paths that are left, without those on which the peer may be silent. */
__noinline __u32 heard_of_late(__u32 peer, __u32 paths)
{
	__u32 index = peer * MAX_PATHS, path, heard = 0, now = ticks(), *answer;

	for (path = 0; path < MAX_PATHS; path++, index++) {
		answer = bpf_map_lookup_elem(&answered, &index);
		if (answer && *answer && (__s32)(now - *answer) <= HEARD_OF_LATE)
			heard |= 1U << path;
	}
	return paths & heard;
}

/* The paths by which a flow may rest. */
static __always_inline __u32 resting_paths(const struct flow *flow, const struct packet *packet, __u8 distant)
{
	struct node *node = this_node();
	struct preference *preference;
	__u32 index = flow->peer;
	struct peer *peer;
	__u8 usable;

	peer = bpf_map_lookup_elem(&peers, &index);
	if (!node || !peer)
		return 0;
	usable = flow->allowed & paths_to(peer, node, packet) & ~distant;
	preference = preference_of(flow->endpoint);
	return preference ? usable & ~preference->backup : usable;
}

/*
 * Has the first subflow of a connection that moves little rest, or no longer where that is for nothing. It is asked for
 * with the first packets of a slice of time that the flow sends, before an answer has it counted. The agent's word goes
 * before it.
 */
__noinline int leave_distant(struct flow *flow, const struct packet *packet)
{
	struct health *known;
	__u32 index, path;
	__u8 distant;

	if (!flow || !packet || !is_first(flow) || flow->path >= MAX_PATHS || flow->avoided || flow->ended)
		return 0;
	index = flow->peer;
	known = bpf_map_lookup_elem(&health, &index);
	distant = known ? known->distant : 0;
	if (rests(flow) && (!(distant >> flow->path & 1) || distant >> together_path(flow) & 1))
		flow->subtype &= ~TOGETHER_BITS;
	if (likely(!(distant >> flow->path & 1)) || flow->subtype & TOGETHER || !moves_little(flow))
		return 0;
	path = one_of(heard_of_late(flow->peer, resting_paths(flow, packet, distant)), flow->turn);
	if (path >= MAX_PATHS)
		return 0;
	flow->subtype = (flow->subtype & ~(TOGETHER_BITS | NOTED | SENDS_MUCH)) | TOGETHER | path << TOGETHER_PATH;
	return 1;
}

#endif
