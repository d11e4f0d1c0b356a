/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How long connections last by the path that they began on, and the paths on which new ones do
 * not begin, as they last much longer there: a link somewhere is slower than any NIC tells. As
 * first subflows take turns, nothing but the path tells those of one pod to one peer apart.
 * Now and then one begins there all the same, which shows whether that is still so.
 *
 * Who decides is the agent: see agent/slow. While it is away the paths stay slow.
 */
#ifndef BRAID_UPLINK_SLOW_H
#define BRAID_UPLINK_SLOW_H

#include "load.h"

enum slow_limit {
	MAX_LASTING = 4096,
	TRY_AGAIN = 1024,   /* ticks after one began on a slow path the next one does */
	LASTING_UNIT = 4,   /* bits: times are told as 16 times the logarithm to the base of 2 */
	LASTING_TICK = 16,  /* bits of a nanosecond clock: most connections end within one of the kernel's timer */
	LONGEST_LASTING = 1 << 16, /* such ticks: what counts of a longer one in the sum of times */
};

struct lasting_key {
	__u32 endpoint; /* its id */
	__u32 peer;
};

/* Of each path, connections whose first flow this node placed there. */
struct lasting {
	__u32 until[MAX_PATHS];   /* ticks; before that none begins there; 0: it is not slow */
	__u32 begun[MAX_PATHS];
	__u32 ended[MAX_PATHS];
	__u32 timed[MAX_PATHS];   /* of these, of which it is known how long they lasted: */
	__u64 times[MAX_PATHS];   /* the sum, of logarithms of LASTING_TICKs in LASTING_UNITs */
	__u64 squares[MAX_PATHS]; /* and that of their squares */
	__u64 total[MAX_PATHS];   /* the sum of LASTING_TICKs, which tells of the few that lasted very long */
	__u64 total_squares[MAX_PATHS];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_LASTING);
	__type(key, struct lasting_key);
	__type(value, struct lasting);
} lasting SEC(".maps");

/* Not on the stack, which is small. */
static const struct lasting nothing_lasted SEC(".rodata") = {};

/* Of the paths on which a new connection may begin those that are not slow, if there are any. One
 * on which another try is due is the only one. */
__noinline __u32 without_slow(__u32 endpoint, __u32 peer, __u32 usable, __u32 now)
{
	struct lasting_key key = { endpoint, peer };
	struct lasting *known = bpf_map_lookup_elem(&lasting, &key);
	__u32 path, others = usable;

	if (!known)
		return usable;
	for (path = 0; path < MAX_PATHS; path++) {
		__u32 until = known->until[path];

		if (likely(!until) || !(usable >> path & 1))
			continue;
		if ((__s32)(now - until) >= 0) {
			known->until[path] = (now + TRY_AGAIN) | 1;
			return 1U << path;
		}
		others &= ~(1U << path);
	}
	return others ? others : usable;
}

/* 16 times the logarithm to the base of 2, by straight lines between the powers. */
static __always_inline __u32 logarithm(__u32 number)
{
	__u32 power = 0, bits;

#pragma clang loop unroll(full)
	for (bits = 16; bits; bits >>= 1) {
		__u32 more = number >> (power + bits) != 0;

		power += bits * more;
	}
	return power << LASTING_UNIT | ((__u64)number << LASTING_UNIT >> power & ((1 << LASTING_UNIT) - 1));
}

static __always_inline struct lasting *lasting_of(const struct flow *flow)
{
	struct lasting_key key = { flow->endpoint, flow->peer };

	return bpf_map_lookup_elem(&lasting, &key);
}

static __always_inline int is_first(const struct flow *flow)
{
	return flow->role == ROLE_INITIATOR && !(flow->subtype & SUBTYPE_JOIN);
}

/* Both ends have agreed on a flow. */
__noinline int note_begun(const struct flow *flow)
{
	struct lasting_key key = {};
	struct lasting *known;

	if (!flow || !is_first(flow))
		return 0;
	known = lasting_of(flow);
	if (!known) {
		key.endpoint = flow->endpoint;
		key.peer = flow->peer;
		bpf_map_update_elem(&lasting, &key, &nothing_lasted, BPF_NOEXIST);
		known = lasting_of(flow);
	}
	if (!known)
		return 0;
	__sync_fetch_and_add(&known->begun[flow->path & (MAX_PATHS - 1)], 1);
	return 1;
}

/* Never 0; it begins anew after 281 s: what lasts longer counts as if it had begun later. */
static __always_inline __u32 lasting_clock(void)
{
	return bpf_ktime_get_ns() >> LASTING_TICK | BEGAN;
}

/*
 * The connection of a first flow lasted from when that began until now, or longer; counted once, as it is not known
 * when it began once the flow has avoided its path.
 */
__noinline int note_time(const struct flow *flow)
{
	struct lasting *known;
	__u32 path, time;
	__u64 told;

	if (!flow || !(flow->avoided_at & BEGAN))
		return 0;
	known = lasting_of(flow);
	if (!known)
		return 0;
	path = flow->path & (MAX_PATHS - 1);
	time = lasting_clock() - flow->avoided_at + 1;
	told = logarithm(time);
	__sync_fetch_and_add(&known->timed[path], 1);
	__sync_fetch_and_add(&known->times[path], told);
	__sync_fetch_and_add(&known->squares[path], told * told);
	told = time < LONGEST_LASTING ? time : LONGEST_LASTING;
	__sync_fetch_and_add(&known->total[path], told);
	__sync_fetch_and_add(&known->total_squares[path], told * told);
	return 1;
}

/* A flow has ended, by a reset or not: that does not tell how long the connection would have lasted. */
__noinline int note_lasted(const struct flow *flow, int reset)
{
	struct lasting *known;

	if (!flow || !is_first(flow))
		return 0;
	known = lasting_of(flow);
	if (!known)
		return 0;
	__sync_fetch_and_add(&known->ended[flow->path & (MAX_PATHS - 1)], 1);
	return !reset && note_time(flow);
}

#endif
