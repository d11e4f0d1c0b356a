/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Paths to a peer whose round trip is much longer than that of others, as the agents' probes say. A
 * connection that moves little waits for round trips and for nothing else, and while nothing is under way the
 * kernel has its first subflow carry what is sent. So the first subflow of one whose turn it is on a distant path
 * rests on another one until it moves more. Its place in the connection is where it rests: a further subflow that
 * joins begins on the distant path, and TCP finds at once how long that is. Only where none has by then does the
 * first one go there. While the agent is away paths stay as distant as they were.
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
 * The path on which a connection begins whose turn it is on this one; in the byte above it the bits of
 * flow_subtype, where it rests. Global, with nothing but numbers, as in path_selection.h.
 */
__noinline __u32 begins_on(__u32 peer, __u32 path, __u32 usable, __u32 hash)
{
	struct health *known = bpf_map_lookup_elem(&health, &peer);
	__u32 near;

	if (likely(!known || !(known->distant >> (path & (MAX_PATHS - 1)) & 1)))
		return path;
	near = one_of(usable & ~known->distant, hash);
	return near < MAX_PATHS ? near | (TOGETHER | path << TOGETHER_PATH) << 8 : path;
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

/* The paths on which a flow may be. */
static __always_inline __u32 paths_of(const struct flow *flow, const struct packet *packet)
{
	struct node *node = this_node();
	struct preference *preference;
	__u32 index = flow->peer;
	struct peer *peer;
	__u8 usable;

	peer = bpf_map_lookup_elem(&peers, &index);
	if (!node || !peer)
		return 0;
	usable = flow->allowed & paths_to(peer, node, packet);
	preference = preference_of(flow->endpoint);
	return preference ? usable & ~preference->backup : usable;
}

/*
 * A first subflow gets its place on another path. There it counts among the connections that began, and where it was
 * among those that ended; how long it lasts tells nothing of either.
 */
__noinline int move_place(struct flow *flow, __u32 path)
{
	struct lasting *known;

	if (!flow || path >= MAX_PATHS)
		return 0;
	known = lasting_of(flow);
	if (known) {
		__sync_fetch_and_add(&known->ended[flow->path & (MAX_PATHS - 1)], 1);
		__sync_fetch_and_add(&known->begun[path & (MAX_PATHS - 1)], 1);
	}
	flow->avoided_at &= ~BEGAN;
	give_place_back(flow);
	flow->path = path;
	count_place(flow, 1);
	return 1;
}

/*
 * Whether a first subflow that moves much is to go to this path: not where a further one is there. Where all are to
 * be on one path it is the other way round.
 */
__noinline int is_to_move_to(const struct flow *flow, __u32 path)
{
	struct preference *preference;
	struct connection_key key;
	struct connection *connection;

	if (!flow)
		return 0;
	key.endpoint = flow->endpoint;
	key.token = flow->token;
	connection = bpf_map_lookup_elem(&connections, &key);
	if (!connection || connection->subflows == 1ULL << ((flow->path & (MAX_PATHS - 1)) * 8))
		return 1;
	preference = preference_of(flow->endpoint);
	return !byte_of(connection->subflows, path & (MAX_PATHS - 1)) != (preference && preference->flags & PREFERENCE_SAME);
}

/* A flow that rests has its turn where it was to be; not while that cannot be used. */
static __always_inline int take_turn(struct flow *flow, const struct packet *packet)
{
	__u32 path = together_path(flow);

	flow->subtype &= ~SENDS_MUCH;
	if (!(paths_of(flow, packet) >> path & 1))
		return 0;
	flow->subtype &= ~TOGETHER_BITS;
	return is_to_move_to(flow, path) && move_place(flow, path);
}

/*
 * Has the first subflow of a connection that moves little rest, or no longer where that is for nothing or it moves
 * much. It is asked for with the first packets of a slice of time that the flow sends, before an answer has it counted.
 * The agent's word goes before it.
 */
__noinline int rest_or_not(struct flow *flow, const struct packet *packet)
{
	struct health *known;
	__u32 index, turn, path;
	__u8 distant;

	if (!flow || !packet || !is_first(flow) || flow->path >= MAX_PATHS || flow->avoided || flow->ended)
		return 0;
	index = flow->peer;
	known = bpf_map_lookup_elem(&health, &index);
	distant = known ? known->distant : 0;
	turn = rests(flow) ? together_path(flow) : flow->path;
	if (rests(flow) && (flow->subtype & SENDS_MUCH || !(distant >> turn & 1)))
		return take_turn(flow, packet);
	if (likely(!(distant >> flow->path & 1)) || (flow->subtype & TOGETHER && !rests(flow)) || !moves_little(flow))
		return 0;
	path = one_of(heard_of_late(flow->peer, paths_of(flow, packet) & ~distant), flow->turn);
	if (path >= MAX_PATHS)
		return 0;
	flow->subtype = (flow->subtype & ~(TOGETHER_BITS | NOTED | SENDS_MUCH)) | TOGETHER | turn << TOGETHER_PATH;
	return move_place(flow, path);
}

#endif
