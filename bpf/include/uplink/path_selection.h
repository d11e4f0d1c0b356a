/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which path a subflow gets. Only the initiator's node places new subflows; the
 * responder's follows.
 *
 * Counts and weights are packed, a byte for each path, and the functions that
 * choose are global with nothing but numbers for arguments: the verifier then
 * checks each once and not once for every way that leads to it.
 */
#ifndef BRAID_UPLINK_PATH_SELECTION_H
#define BRAID_UPLINK_PATH_SELECTION_H

#include "flow.h"

enum {
	USED = 1 << 22,    /* lifts every used path above every free one */
	NO_RANK = 1 << 30, /* higher than all ranks */
};

static __always_inline __u32 byte_of(__u64 packed, __u32 path)
{
	return packed >> (path * 8) & 0xff;
}

/*
 * The best place for one more subflow: a free path before a used one, then the
 * one that has least for its weight. NO_PATH when none is usable. Without branches, for the
 * verifier: a path that is not usable has bits set above all ranks.
 */
__noinline __u32 best_path(__u64 subflows, __u64 weights, __u32 usable)
{
	__u64 best = NO_RANK;
	__u32 path;

#pragma clang loop unroll(full)
	for (path = 0; path < MAX_PATHS; path++) {
		__u32 weight = byte_of(weights, path), on = byte_of(subflows, path), cannot;
		__u64 rank, better;

		cannot = (is_any(weight) ^ 1) | (~usable >> path & 1);
		rank = (on + 1) * 4096 / (weight | cannot) + USED * is_any(on);
		rank = (rank << 3 | path) + NO_RANK * cannot;
		better = -((rank - best) >> 63);
		barrier_var(better);
		best ^= (best ^ rank) & better;
	}
	return best & NO_RANK ? NO_PATH : best & (MAX_PATHS - 1);
}

/*
 * The path that stands in for a dead one: another for each flow, so that the
 * living paths share its load.
 */
__noinline __u32 path_by_hash(__u32 usable, __u32 hash)
{
	__u32 living = 0, path;

	for (path = 0; path < MAX_PATHS; path++)
		living += usable >> path & 1;
	if (!living)
		return NO_PATH;
	hash %= living;
	for (path = 0; path < MAX_PATHS; path++)
		if ((usable >> path & 1) && !hash--)
			return path;
	return NO_PATH;
}

/*
 * Where most subflows of a connection are, if that path is usable: their own path
 * where all joined on the first one's. Else all that are usable.
 */
__noinline __u32 most_used(__u64 subflows, __u32 usable)
{
	__u32 most = 0, found = 0, path;

	for (path = 0; path < MAX_PATHS; path++) {
		__u32 on = byte_of(subflows, path);

		if (on <= most)
			continue;
		most = on;
		found = 1 << path;
	}
	return found & usable ? found : usable;
}

/*
 * Where a connection has a subflow on each path that is usable, one more may have a path of its own
 * that is down now: another carries it until that one is back. Else a connection that begins
 * while a path is down would not use it for as long as it lasts.
 */
__noinline __u32 or_one_that_is_down(__u64 subflows, __u32 usable, __u32 known)
{
	__u32 path, free = 0;

	for (path = 0; path < MAX_PATHS; path++)
		free |= (__u32)!byte_of(subflows, path) << path;
	return !usable || usable & free ? usable : usable | (known & free);
}

/* Where there is one path alone, as most often, it is found without a call. */
static __always_inline __u32 one_of(__u32 paths, __u32 hash)
{
	if (paths & (paths - 1))
		return path_by_hash(paths, hash);
	if (!paths)
		return NO_PATH;
	return !!(paths & 0xf0) << 2 | !!(paths & 0xcc) << 1 | !!(paths & 0xaa);
}

/* Finds the best path for one more subflow and counts it there. */
static __always_inline __u8 take_place(__u64 *subflows, __u64 weights, __u8 usable)
{
	__u32 path = NO_PATH;
	int i;

	for (i = 0; i < TRIES; i++) {
		__u64 before = *subflows, after = before;

		path = best_path(before, weights, usable);
		if (path >= MAX_PATHS)
			return NO_PATH;
		/* Up to 0xff, without a branch: the verifier would follow both ways of each try. */
		after += (__u64)((byte_of(before, path) + 1) >> 8 ^ 1) << (path * 8);
		if (__sync_val_compare_and_swap(subflows, before, after) == before)
			break;
	}
	return path;
}

static __always_inline struct preference *preference_of(__u32 endpoint)
{
	struct preference *preference = bpf_map_lookup_elem(&preferences, &endpoint);

	return preference && preference->flags & PREFERENCE_SET ? preference : 0;
}

/* Backup paths get new subflows only while no other path is usable. */
static __always_inline __u8 without_backup(const struct preference *preference, __u8 usable)
{
	__u8 others = usable & ~preference->backup;

	return others ? others : usable;
}

/*
 * The paths that a packet of the flow may leave by: those that its endpoint
 * prefers, as far as they are usable and good, or else all but the backup paths.
 */
static __always_inline __u8 wanted_paths(const struct preference *preference, const struct flow *flow,
					 __u8 usable)
{
	__u32 index = flow->peer;
	__u8 preferred = preference->preferred & usable;
	struct health *known;

	if (preferred && flow->turn < preference->share) {
		known = bpf_map_lookup_elem(&health, &index);
		/* The index after the call: the verifier of Linux 6.1 forgets its bounds. */
		if (known)
			preferred &= ~known->bad[preference->class & (MAX_CLASSES - 1)];
		if (preferred)
			return preferred;
	}
	return without_backup(preference, usable);
}

/* Whether each usable path had as many turns as its weight says. */
__noinline __u32 round_is_over(__u64 begun, __u64 weights, __u32 usable)
{
	__u32 path;

	for (path = 0; path < MAX_PATHS; path++)
		if ((usable >> path & 1) && byte_of(begun, path) < byte_of(weights, path))
			return 0;
	return 1;
}

/*
 * The path of a connection's first subflow: the paths take turns by weight, so
 * that many connections, however short, share the NICs fairly.
 */
static __always_inline __u8 round_robin_path(struct endpoint *endpoint, __u8 usable)
{
	__u8 path = take_place(&endpoint->begun, endpoint->weights, usable);

	if (round_is_over(endpoint->begun, endpoint->weights, usable))
		endpoint->begun = 0;
	return path;
}

#endif
