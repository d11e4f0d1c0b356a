/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rate limits. A limit governs the packets of one direction, `limited`; a window
 * that keeps it is written on the acknowledgements, which go the other way. Where
 * that does not hold an MPTCP sender, the acknowledgements are held back.
 *
 * Of several limits on one direction of a subflow the lowest holds. A tenant's lower
 * one takes the place of the cluster's only where that is each subflow's own, and is
 * kept by the cluster's mechanism: many small limits, or one that nothing enforces,
 * would let more pass than a shared one.
 */
#ifndef BRAID_RATE_LIMIT_H
#define BRAID_RATE_LIMIT_H

#include "still_asked.h"
#include "enforced.h"
#include "hold.h"

enum {
	MAX_BUCKETS = 16384,
	SECOND = 1000000000,
	MILLISECOND = 1000000,
	MICROSECONDS = 1000000,     /* in a second */
	WINDOW_RTT_MINIMUM = 2000,  /* us: shorter ones make windows too coarse */
	WINDOW_RTT_LEAVE = 1500,    /* us: a window in use stays until then */
	SEGMENT_BYTES = 1460,
};

struct bucket_key {
	__u32 endpoint;
	__u32 limit;
	__u32 token; /* 0: the limit is the endpoint's */
	__u32 direction;
};

/* Limits that several subflows share. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_BUCKETS);
	__type(key, struct bucket_key);
	__type(value, struct rate_loop);
} buckets SEC(".maps");

static __always_inline __u32 opposite(__u32 direction)
{
	return direction ^ 1;
}

/*
 * us, from one end to the other and back; 0 while the far half is unknown, for that
 * of an endpoint says nothing. The shortest ones: the loop makes up for queues, and
 * would chase its own.
 */
static __always_inline __u32 end_to_end_rtt(const struct subflow *subflow)
{
	__u32 far = subflow->traffic[FROM_ENDPOINT].minimum_rtt, near = subflow->traffic[TO_ENDPOINT].minimum_rtt;

	/* Longer ones were none: no rule looked on when the answer passed. */
	if (!far || far > MICROSECONDS)
		return subflow->seeded_rtt;
	return near > MICROSECONDS ? far : far + near;
}

static __always_inline __u64 bytes_in_flight(__u64 rate, __u32 rtt)
{
	return rate * rtt / MICROSECONDS;
}

/* 1 + the shift of the windows that govern a direction; 0: unknown. */
static __always_inline __u8 scale_of(const struct subflow *subflow, __u32 limited)
{
	return subflow->traffic[opposite(limited) & 1].window_scale;
}

static __always_inline void use(struct limit *limit, __u8 mechanism, __u8 why)
{
	limit->in_use = mechanism;
	limit->why = why;
}

static __always_inline int has_others(const struct subflow *subflow, __u32 limited)
{
	return subflow->known & KNOWN_JOIN || subflow->window[limited & 1].subflows > 1;
}

/* A window can hold less neither than one of its units nor than a sender needs to go on. */
static __always_inline int is_too_coarse(const struct subflow *subflow, __u64 bytes, __u32 limited)
{
	__u8 shift = (scale_of(subflow, limited) - 1) & 15;

	return bytes >> shift == 0 || bytes < SEGMENT_BYTES * 3 / 2;
}

/* Whether a window alone would not hold the sender; see hold.h. */
static __always_inline int needs_holding(const struct subflow *subflow, __u32 limited)
{
	return subflow->known & KNOWN_MPTCP && has_others(subflow, limited);
}

/* What Auto uses where the sender's socket is a stranger's. */
static __always_inline void choose_for_strangers(struct subflow *subflow, struct limit *limit, __u32 limited)
{
	__u32 rtt = end_to_end_rtt(subflow);
	__u32 shortest = limit->in_use == MECHANISM_WINDOW ? WINDOW_RTT_LEAVE : WINDOW_RTT_MINIMUM;
	__u8 scale = scale_of(subflow, limited);

	if (!scale)
		use(limit, MECHANISM_POLICE, WHY_NO_SYN);
	else if (!rtt)
		use(limit, MECHANISM_WINDOW, WHY_NO_RTT);
	else if (rtt < shortest || is_too_coarse(subflow, bytes_in_flight(limit->rate, rtt), limited))
		use(limit, MECHANISM_POLICE, WHY_SHORT_RTT);
	else
		use(limit, MECHANISM_WINDOW, WHY_NO_SOCKET);
}

static __always_inline void choose_mechanism(struct subflow *subflow, struct limit *limit, __u32 limited)
{
	int is_paced = limited == FROM_ENDPOINT && subflow->paced;

	switch (limit->mechanism) {
	case MECHANISM_PACE:
		use(limit, is_paced ? MECHANISM_PACE : 0, is_paced ? WHY_ASKED : WHY_NO_SOCKET);
		break;
	case MECHANISM_WINDOW:
		if (scale_of(subflow, limited))
			use(limit, MECHANISM_WINDOW, WHY_ASKED);
		else
			use(limit, 0, WHY_NO_SYN);
		break;
	case MECHANISM_POLICE:
		use(limit, MECHANISM_POLICE, WHY_ASKED);
		break;
	default:
		if (is_paced)
			use(limit, MECHANISM_PACE, WHY_OWN_SOCKET);
		else
			choose_for_strangers(subflow, limit, limited);
	}
}

/* Whether a lower limit of a tenant does all that this one does. */
static __always_inline int is_open(const struct action *action)
{
	return action->scope == SCOPE_SUBFLOW || action->flag & FLAG_METERED;
}

static __always_inline int takes_over(const struct subflow *subflow, const struct action *action, __u32 direction)
{
	const struct limit *limit = &subflow->limit[direction & 1];
	int is_free = !limit->rate || subflow->window[direction & 1].stale, is_lower = action->rate < limit->rate;
	__u32 bound = subflow->bound >> (direction & 1);

	if (is_enforced(action))
		return is_free || is_lower || !(bound & ENFORCED_RATE) || (bound & TIGHTENED_RATE && !is_open(action));
	if (bound & ENFORCED_RATE && limit->rate)
		return is_lower && !(bound & EXCLUSIVE_RATE);
	return is_free || is_lower;
}

static __always_inline void enforce_rate(struct subflow *subflow, const struct action *action, __u32 direction)
{
	if (is_enforced(action)) {
		enforce(subflow, (is_open(action) ? ENFORCED_RATE : ENFORCED_RATE | EXCLUSIVE_RATE) << direction);
		stop_enforcing(subflow, TIGHTENED_RATE << direction);
	} else if (subflow->bound & ENFORCED_RATE << direction) {
		enforce(subflow, TIGHTENED_RATE << direction);
	}
}

/*
 * Notes the limit for the packet's direction; settle() keeps it. A limit that
 * follows another goes on with what the loop has learnt.
 */
__noinline int act_rate_limit(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
			      const struct action *action)
{
	struct limit *limit;
	__u32 direction;

	if (!skb || !context || !subflow || !action || !action->rate)
		return UNTOUCHED;
	direction = context->direction & 1;
	limit = &subflow->limit[direction];
	if (!takes_over(subflow, action, direction))
		return UNTOUCHED;
	enforce_rate(subflow, action, direction);
	subflow->window[direction].stale = 0;
	limit->rate = action->rate;
	limit->id = action->limit;
	if (!(subflow->bound & TIGHTENED_RATE << direction))
		limit->mechanism = action->mechanism;
	limit->scope = action->scope;
	choose_mechanism(subflow, limit, direction);
	subflow->engaged = 1;
	return ACTED;
}

/* The loop that governs a limit: the subflow's own, or one that is shared. */
static __always_inline struct rate_loop *loop_of(struct context *context, struct subflow *subflow, __u32 limited)
{
	struct limit *limit = &subflow->limit[limited & 1];
	struct bucket_key key = {
		.endpoint = context->key.endpoint,
		.limit = limit->id,
		.direction = limited,
	};
	struct rate_loop fresh = {}, *loop;

	if (limit->scope == SCOPE_CONNECTION)
		key.token = subflow->token;
	if (limit->scope == SCOPE_SUBFLOW || (limit->scope == SCOPE_CONNECTION && !key.token))
		return &subflow->window[limited & 1].loop;
	loop = bpf_map_lookup_elem(&buckets, &key);
	if (loop)
		return loop;
	bpf_map_update_elem(&buckets, &key, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&buckets, &key);
}

#endif
