/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How many flows share each path, and whose they are. What a flow moved in a slice of time
 * is added up, and so is its square: the square of the sum to the sum of squares is how
 * many equal flows would have moved that. Those that move little beside others count for
 * little, and those that rest for nothing.
 *
 * A flow is counted with the first answer or the first data of a slice that comes in for
 * it: all other packets pay a comparison. The agent reads how much the sums grow.
 */
#ifndef BRAID_UPLINK_LOAD_H
#define BRAID_UPLINK_LOAD_H

#include "flow.h"

enum load_limit {
	SLICE_BITS = 26, /* a slice is 2^26 ns, some 67 ms */
	LOAD_UNIT = 256, /* bytes */
	BUSY_BYTES = 4 << 10, /* that a flow which sends much has sent in a slice */
	RESTING_BYTES = 32 << 10, /* at most, that one which rests has sent or received in a slice */
};

enum {
	SLICE = 6,              /* bits: in ticks */
	MOST_MOVED = 1 << 30,   /* bytes in a slice; more is a number that nobody sent */
};

/* What flows moved since the maps were made: sent by this node, and received. */
struct load {
	__u64 moved[2];   /* in LOAD_UNITs */
	__u64 squares[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PATHS);
	__type(key, __u32);
	__type(value, struct load);
} path_loads SEC(".maps");

/* By an endpoint's id; 0 for all that belong to none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ENDPOINTS);
	__type(key, __u32);
	__type(value, struct load);
} endpoint_loads SEC(".maps");

static __always_inline __u64 moved_since(__u32 now, __u32 before)
{
	__u32 moved = now - before;

	return before && moved < MOST_MOVED ? moved / LOAD_UNIT : 0;
}

static __always_inline void add_moved(struct load *load, int direction, __u64 moved)
{
	if (!moved)
		return;
	__sync_fetch_and_add(&load->moved[direction], moved);
	__sync_fetch_and_add(&load->squares[direction], moved * moved);
}

static __always_inline void add_load(struct load *load, const struct flow *flow)
{
	if (!load)
		return;
	add_moved(load, 0, moved_since(flow->sent, flow->counted_sent));
	add_moved(load, 1, moved_since(flow->received, flow->counted_received));
}

/* The path that a flow takes which has TOGETHER, or whose turn it is of one that rests. */
static __always_inline __u32 together_path(const struct flow *flow)
{
	return flow->subtype >> TOGETHER_PATH & (MAX_PATHS - 1);
}

/* Whether the flow is on another path than that whose turn it is, because it moves little (distant.h). */
static __always_inline int rests(const struct flow *flow)
{
	return (flow->subtype & (NOTED | TOGETHER)) == TOGETHER;
}

static __always_inline __u64 moved_most(const struct flow *flow)
{
	__u64 sent = moved_since(flow->sent, flow->counted_sent), received = moved_since(flow->received, flow->counted_received);

	return sent > received ? sent : received;
}

/* Counts what the flow has moved since it was counted last. */
__noinline int count_load(struct flow *flow, __u32 slice)
{
	__u32 path, endpoint;

	if (!flow)
		return 0;
	path = flow->last < MAX_PATHS ? flow->last : flow->path;
	endpoint = flow->endpoint;
	if (flow->counted && path < MAX_PATHS) {
		add_load(bpf_map_lookup_elem(&path_loads, &path), flow);
		add_load(bpf_map_lookup_elem(&endpoint_loads, &endpoint), flow);
	}
	if (rests(flow) && flow->counted && moved_most(flow) >= RESTING_BYTES / LOAD_UNIT)
		flow->subtype |= SENDS_MUCH;
	if (flow->subtype & NOTED ||
	    (!rests(flow) && flow->counted && moved_since(flow->sent, flow->counted_sent) >= BUSY_BYTES / LOAD_UNIT))
		flow->subtype |= SENDS_MUCH;
	flow->counted = slice;
	flow->counted_sent = flow->sent;
	flow->counted_received = flow->received;
	return 1;
}

static __always_inline int is_to_take_turn(const struct flow *flow)
{
	return rests(flow) && flow->subtype & SENDS_MUCH;
}

static __always_inline void note_load(struct flow *flow, __u32 now)
{
	if (unlikely(flow->counted != now >> SLICE))
		count_load(flow, now >> SLICE);
}

#endif
