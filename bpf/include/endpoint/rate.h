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
#ifndef BRAID_RATE_H
#define BRAID_RATE_H

#include "asked.h"
#include "bond.h"
#include "hold.h"

enum {
	MAX_BUCKETS = 16384,
	SECOND = 1000000000,
	MILLISECOND = 1000000,
	MICROSECONDS = 1000000,     /* in a second */
	WINDOW_RTT_MINIMUM = 2000,  /* us: shorter ones make windows too coarse */
	WINDOW_RTT_LEAVE = 1500,    /* us: a window in use stays until then */
	SEGMENT_BYTES = 1460,
	WINDOW_BYTES_MINIMUM = 2 * SEGMENT_BYTES, /* one alone waits for a delayed ACK */
	WINDOW_BYTES_SMALL = 8 * SEGMENT_BYTES,
	WINDOW_BYTES_LARGE = 32 * SEGMENT_BYTES,
	WINDOW_BYTES_HUGE = 256 * SEGMENT_BYTES,
	LOSS_SHOWS_AFTER = 2,       /* round trips, until the sender has less in flight */
	LOSSES_APART = 3,           /* round trips */
	/* What a sender may have in flight whose acknowledgements are held back. */
	ROOM_IN_HOLD = 2,           /* times what the limit lets be */
	ROOM_IN_HOLD_LEAST = 8 * SEGMENT_BYTES,
	ROOM_IN_HOLD_LATER = 2,     /* times more, when its slow start is over, */
	ROOM_IN_HOLD_LASTS = 75 * MILLISECOND, /* and what the limit lets pass in this time */
	ROOM_IN_HOLD_MOST = 1 << 26,
	COARSE_TICK = 4 * MILLISECOND, /* of the coarse clock */
	LOOP_INTERVAL = 100 * MILLISECOND,
	LOOP_INTERVAL_SHORT = 20 * MILLISECOND,
	FACTOR_ONE = 1 << 16,
	FACTOR_LOWEST = FACTOR_ONE / 64,
	FACTOR_SHARED = FACTOR_ONE * 5 / 8, /* lowest, of one that shares the connection's */
	FACTOR_HIGHEST = FACTOR_ONE * 64, /* where the RTT is assumed */
	FACTOR_MEASURED = FACTOR_ONE, /* times three more than the sharers, where it is not */
	ASSUMED_RTT = 10000,        /* us, until one was measured */
	RECOUNT_TICKS = 15,         /* after as many, subflows may have joined */
	SHARERS = 8,                /* subflows of a connection that are told apart */
	REPAID_IN = 4,              /* what is owed is at most a second's bytes through this */
	BURST_BYTES = 65536,        /* one packet of GSO */
	LARGEST_PACKET = 1 << 20,   /* more than BIG TCP makes */
	BURSTS_A_SECOND = 50,       /* at high rates a burst lasts this part of a second */
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

	if (binds(action))
		return is_free || is_lower || !(bound & BOUND_RATE) || (bound & LENT_RATE && !is_open(action));
	if (bound & BOUND_RATE && limit->rate)
		return is_lower && !(bound & CLOSED_RATE);
	return is_free || is_lower;
}

static __always_inline void bind_rate(struct subflow *subflow, const struct action *action, __u32 direction)
{
	if (binds(action)) {
		bind(subflow, (is_open(action) ? BOUND_RATE : BOUND_RATE | CLOSED_RATE) << direction);
		unbind(subflow, LENT_RATE << direction);
	} else if (subflow->bound & BOUND_RATE << direction) {
		bind(subflow, LENT_RATE << direction);
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
	bind_rate(subflow, action, direction);
	subflow->window[direction].stale = 0;
	limit->rate = action->rate;
	limit->id = action->limit;
	if (!(subflow->bound & LENT_RATE << direction))
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

/*
 * Police: a bucket as the time when it is full again. A packet passes while that
 * is not further away than a burst takes; a large one may overdraw it.
 */
static __always_inline int passes(struct rate_loop *loop, __u64 rate, __u32 bytes)
{
	__u64 burst = rate / BURSTS_A_SECOND < BURST_BYTES ? BURST_BYTES * (__u64)SECOND / rate : SECOND / BURSTS_A_SECOND;
	__u64 now = bpf_ktime_get_ns(), cost = bytes * (__u64)SECOND / rate;
	__u64 overdrawn = burst + LARGEST_PACKET * (__u64)SECOND / rate;
	int i;

	for (i = 0; i < 4; i++) {
		__u64 until = loop->until, from = until > now ? until : now;

		/* So far in the future it was put by a lower rate. */
		if (until > now + overdrawn)
			from = now;
		else if (until > now + burst)
			return 0;
		if (__sync_val_compare_and_swap(&loop->until, until, from + cost) == until)
			return 1;
	}
	return 1;
}

/* Nothing but data is policed: the rest opens, closes and acknowledges. */
__noinline int police(struct context *context, struct subflow *subflow, __u32 limited)
{
	struct rate_loop *loop;
	__u64 rate;

	if (!context || !subflow)
		return UNTOUCHED;
	if (!context->payload || context->flags & (TCP_SYN | TCP_FIN | TCP_RST))
		return UNTOUCHED;
	rate = subflow->limit[limited & 1].rate;
	loop = loop_of(context, subflow, limited);
	if (!loop || !rate)
		return UNTOUCHED;
	return passes(loop, rate, context->payload) ? UNTOUCHED : DROPPED;
}

/*
 * How far a factor may go, and how much may be owed. Subflows that share a window are
 * kept close to it: data that waits for one of them keeps the others waiting too.
 */
struct bounds {
	__u32 lowest;
	__u32 highest;
	__u32 sharers;
};

/*
 * How much the factor changes: half way towards what was asked for over what was
 * delivered, for the effect comes late; at most to the double or half.
 */
static __always_inline __u32 next_factor(__u32 factor, __u64 wanted, __u64 delivered, __u8 was_bound,
					 const struct bounds *bounds)
{
	__u64 next;

	if (!delivered)
		return factor;
	next = factor * (wanted + delivered) / (2 * delivered);
	/* A sender that has nothing more to send needs no larger window. */
	if (next > factor && !was_bound)
		return factor;
	if (next > 2 * (__u64)factor)
		next = 2 * (__u64)factor;
	if (next < factor / 2)
		next = factor / 2;
	if (next < bounds->lowest)
		return bounds->lowest;
	return next > bounds->highest ? bounds->highest : next;
}

static __always_inline void begin_interval(struct rate_loop *loop, __u64 now)
{
	loop->began = now;
	loop->delivered = 0;
	loop->bound = 0;
}

/*
 * What an interval should have delivered, with a part of what is owed from before.
 * What a sender did not ask for is not owed to it.
 */
static __always_inline __u64 wanted_with_debt(struct rate_loop *loop, __u64 rate, __u64 elapsed, __u32 sharers)
{
	__s64 wanted = rate * (elapsed / 1000) / MICROSECONDS, most = rate / (REPAID_IN * sharers);
	__s64 owed = loop->owed + wanted - (__s64)loop->delivered;
	__u64 repaid;

	if (most > 1 << 30)
		most = 1 << 30;
	if (owed > most)
		owed = most;
	if (owed < -most)
		owed = -most;
	if (owed > 0 && !loop->bound)
		owed = 0;
	loop->owed = owed;
	repaid = (owed < 0 ? -owed : owed) * (elapsed / 1000) / MICROSECONDS;
	if (owed >= 0)
		return wanted + repaid;
	return repaid > (__u64)wanted / 2 ? (__u64)wanted / 2 : wanted - repaid;
}

/*
 * At the end of an interval, compares. One in which far too much was delivered
 * ends early.
 */
static __always_inline int run_loop(struct rate_loop *loop, __u64 rate, __u32 rtt, __u64 now,
				    const struct bounds *bounds)
{
	__u64 elapsed = now - loop->began, interval = LOOP_INTERVAL;

	if (!loop->factor || !loop->began || elapsed > 10 * (__u64)SECOND) {
		loop->factor = loop->factor ? loop->factor : FACTOR_ONE;
		loop->owed = 0;
		begin_interval(loop, now);
		return 1;
	}
	if (interval < 2000ULL * rtt)
		interval = 2000ULL * rtt;
	if (loop->delivered > rate * (interval / MILLISECOND) / 800 && elapsed > LOOP_INTERVAL_SHORT && elapsed > 1000ULL * rtt)
		interval = 0;
	if (elapsed < interval)
		return 0;
	loop->factor = next_factor(loop->factor, wanted_with_debt(loop, rate, elapsed, bounds->sharers),
				   loop->delivered, loop->bound, bounds);
	begin_interval(loop, now);
	return 1;
}

/*
 * How many subflows of the connection have lowered windows: the stack lets them
 * fill one window together.
 */
static __always_inline void count_sharers(const struct context *context, struct subflow *subflow, __u32 limited)
{
	struct mptcp_connection_key key = { context->key.endpoint, subflow->token };
	struct window_state *state = &subflow->window[limited & 1];
	struct mptcp_connection *connection;
	__u32 sharers = 1;

	connection = key.token ? bpf_map_lookup_elem(&mptcp_connections, &key) : 0;
	if (connection) {
		if (!state->sharers)
			__sync_fetch_and_add(&connection->clamped[limited & 1], 1);
		sharers = connection->clamped[limited & 1];
		state->subflows = connection->subflows;
	}
	if (sharers > SHARERS)
		sharers = SHARERS;
	state->sharers = sharers ? sharers : 1;
}

/*
 * Whether the sender fills the window, alone or with the other subflows. What an
 * acknowledgement lets go comes by after a round trip from here to the sender.
 */
static __always_inline void note_filling(const struct context *context, const struct subflow *subflow,
					 struct window_state *state, struct rate_loop *loop, __u32 limited)
{
	__u64 back = subflow->traffic[opposite(limited) & 1].minimum_rtt * 1000ULL;
	__u32 in_flight;
	int is_filled;

	if (back >= MILLISECOND && context->now - state->marked_at < back)
		return;
	in_flight = subflow->traffic[limited & 1].highest - (back >= MILLISECOND ? state->marked : state->acknowledged);
	if (state->sharers > 1)
		is_filled = (__u64)in_flight * 2 * (state->sharers & 15) >= state->window;
	else
		is_filled = in_flight + in_flight / 4 + SEGMENT_BYTES >= state->window;
	if (in_flight >> 31 == 0 && is_filled)
		loop->bound = 1;
	state->marked = context->acknowledgement;
	state->marked_at = context->now;
}

/* Counts what this packet acknowledges anew. */
static __always_inline void count_delivered(struct context *context, struct subflow *subflow, struct rate_loop *loop,
					    __u32 limited)
{
	struct window_state *state = &subflow->window[limited & 1];
	__u32 newly = context->acknowledgement - state->acknowledged;

	if (!state->begun) {
		state->begun = WINDOW_BEGUN;
		state->acknowledged = context->acknowledgement;
		state->marked = context->acknowledgement;
		state->marked_at = context->now;
		return;
	}
	if (!newly || newly >> 31)
		return;
	if (!(state->begun & WINDOW_HOLDS))
		note_filling(context, subflow, state, loop, limited);
	state->acknowledged = context->acknowledgement;
	__sync_fetch_and_add(&loop->delivered, newly);
}

/* The RTT; the first one measured rids a loop of what it learnt with an assumed one. */
static __always_inline __u32 rtt_for(struct subflow *subflow, struct rate_loop *loop, __u32 limited)
{
	struct window_state *state = &subflow->window[limited & 1];
	__u32 rtt = end_to_end_rtt(subflow);
	__u64 factor;

	if (!rtt) {
		state->assumed = 1;
		return ASSUMED_RTT;
	}
	if (state->assumed && loop == &state->loop) {
		factor = (__u64)loop->factor * ASSUMED_RTT / rtt;
		loop->factor = factor < FACTOR_LOWEST ? FACTOR_LOWEST : factor > FACTOR_HIGHEST ? FACTOR_HIGHEST : factor;
	}
	state->assumed = 0;
	return rtt;
}

static __always_inline void bounds_of(struct bounds *bounds, const struct window_state *state,
				      const struct rate_loop *loop)
{
	__u32 sharers = state->sharers & 15;

	bounds->sharers = sharers ? sharers : 1;
	bounds->highest = state->assumed ? FACTOR_HIGHEST : FACTOR_MEASURED * (bounds->sharers + 3);
	bounds->lowest = FACTOR_LOWEST;
	if (loop == &state->loop && bounds->sharers > 1 && !state->assumed)
		bounds->lowest = FACTOR_SHARED;
}

/* What a sender may have in flight whose acknowledgements are held back. */
static __always_inline __u32 room_of(const struct subflow *subflow, __u32 limited, __u32 rtt)
{
	__u64 room = ROOM_IN_HOLD * bytes_in_flight(subflow->limit[limited & 1].rate, rtt) + ROOM_IN_HOLD_LEAST;

	return room > ROOM_IN_HOLD_MOST ? ROOM_IN_HOLD_MOST : room;
}

/* What the limit lets be in flight, as the loop has found. */
static __always_inline __u64 granted_by_loop(struct context *context, struct subflow *subflow, struct rate_loop *loop,
					     __u32 limited, __u32 rtt)
{
	struct window_state *state = &subflow->window[limited & 1];
	__u64 rate = subflow->limit[limited & 1].rate, granted;
	struct bounds bounds;

	bounds_of(&bounds, state, loop);
	if (run_loop(loop, rate, rtt, context->now, &bounds))
		count_sharers(context, subflow, limited);
	granted = bytes_in_flight(rate, rtt) * loop->factor / FACTOR_ONE;
	return granted < WINDOW_BYTES_MINIMUM ? WINDOW_BYTES_MINIMUM : granted;
}

/* Lowers the window of an acknowledgement to what the limit lets be in flight. */
__noinline int lower_window(struct __sk_buff *skb, struct context *context, struct subflow *subflow, __u32 limited)
{
	struct window_state *state;
	struct rate_loop *loop;
	__u32 rtt, window;
	__u64 granted, rate;
	__u8 shift;

	if (!context || !subflow || (context->flags & (TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK)
		return UNTOUCHED;
	state = &subflow->window[limited & 1];
	shift = scale_of(subflow, limited);
	rate = subflow->limit[limited & 1].rate;
	loop = loop_of(context, subflow, limited);
	if (!loop || !shift || !rate)
		return UNTOUCHED;
	rtt = rtt_for(subflow, loop, limited);
	shift = (shift - 1) & 15;
	count_delivered(context, subflow, loop, limited);
	if (!state->sharers || (context->fresh_way && !(context->tick & RECOUNT_TICKS)))
		count_sharers(context, subflow, limited);
	if (needs_holding(subflow, limited)) {
		state->window = room_of(subflow, limited, rtt);
		return hold_acknowledgement(skb, context, subflow, loop, limited, rtt);
	}
	granted = granted_by_loop(context, subflow, loop, limited, rtt);
	if (granted > 1U << 30)
		granted = 1U << 30;
	/* Rounded up: what is between two steps is found by the loop, in time. */
	window = (granted + (1U << shift) - 1) >> shift;
	state->window = granted;
	if (window >= context->window)
		return UNTOUCHED;
	return set_window(skb, context, window) ? ACTED : UNTOUCHED;
}

/*
 * How large a sender's congestion window may be. A small one is kept close to the
 * window. A large one takes seconds to grow again after a loss, and is left some room.
 * The first loss ends its slow start; until the sender knows of it, it doubles.
 */
static __always_inline __u32 congestion_allowed(__u32 window, int is_first)
{
	if (window <= WINDOW_BYTES_LARGE)
		return is_first ? window / 8 * 5 : window + window / 4 + SEGMENT_BYTES;
	if (is_first)
		return window <= WINDOW_BYTES_HUGE ? window : window / 8 * 9;
	return window / 4 * 7;
}

/*
 * The window that losses follow: the loop's, for it keeps the rate also where the
 * sender takes no notice of windows; but not each swing of a large one.
 */
static __always_inline __u32 steady_window(const struct subflow *subflow, __u32 limited, __u32 rtt)
{
	__u64 least = bytes_in_flight(subflow->limit[limited & 1].rate, rtt) / 8 * 5;
	__u32 window = subflow->window[limited & 1].window;

	return least > WINDOW_BYTES_LARGE && least > window && least <= 1U << 30 ? least : window;
}

/*
 * Whether a sender whose acknowledgements are held back has far too much in flight.
 * The first loss ends its slow start, and others are rare.
 */
static __always_inline int is_hold_too_large(const struct context *context, const struct subflow *subflow,
					     __u32 limited, __u32 rtt)
{
	const struct window_state *state = &subflow->window[limited & 1];
	__u32 in_flight = subflow->traffic[limited & 1].highest - state->marked;
	__u64 room = state->window, rate = subflow->limit[limited & 1].rate | 1;
	__u64 apart = 1000ULL * rtt + in_flight * (__u64)SECOND / rate;

	if (in_flight >> 31)
		return 0;
	if (!state->lost_at)
		return in_flight > room;
	room = ROOM_IN_HOLD_LATER * room + rate * (ROOM_IN_HOLD_LASTS / 1000) / MICROSECONDS;
	return in_flight > room && context->now - state->lost_at > LOSSES_APART * apart;
}

/*
 * Whether this packet is to be lost, so that its sender's congestion window comes down
 * to what the limit allows. An MPTCP sender takes the connection's window for that of a
 * subflow whenever it gives it data, until the next acknowledgement: meanwhile nothing
 * but its congestion window holds it. And its scheduler gives a subflow as much as that
 * one promises: data that then waits for the limited subflow keeps all others waiting.
 *
 * What was in flight tells the congestion window; each loss lowers it to about 0.7. A
 * sender of few segments a round trip shows its own at once.
 */
static __always_inline int is_congestion_too_large(struct context *context, struct subflow *subflow, __u32 limited,
						   __u32 rtt)
{
	struct window_state *state = &subflow->window[limited & 1];
	__u32 in_flight = subflow->traffic[limited & 1].highest - state->acknowledged;
	__u64 since = context->now - state->lost_at;

	if (state->window <= WINDOW_BYTES_SMALL)
		return in_flight >> 31 == 0 && in_flight > state->window + state->window / 4 + SEGMENT_BYTES &&
		       since >= 1000ULL * rtt + COARSE_TICK;
	if (in_flight >> 31 == 0 && in_flight > state->congestion && since > LOSS_SHOWS_AFTER * 1000ULL * rtt)
		state->congestion = in_flight;
	if (since < LOSSES_APART * 1000ULL * rtt + COARSE_TICK)
		return 0;
	return state->congestion > congestion_allowed(steady_window(subflow, limited, rtt), !state->lost_at);
}

/* A repetition is not lost again: that would take a timeout. */
__noinline int lose(struct context *context, struct subflow *subflow, __u32 limited)
{
	struct window_state *state;
	__u32 rtt;

	if (!context || !subflow || !context->payload || context->flags & (TCP_SYN | TCP_FIN | TCP_RST))
		return UNTOUCHED;
	state = &subflow->window[limited & 1];
	rtt = end_to_end_rtt(subflow);
	if (!(subflow->known & KNOWN_MPTCP) || !rtt || !state->window || context->position < context->sent)
		return UNTOUCHED;
	if (state->begun & WINDOW_HOLDS ? !is_hold_too_large(context, subflow, limited, rtt)
					: !is_congestion_too_large(context, subflow, limited, rtt))
		return UNTOUCHED;
	if (!(state->begun & WINDOW_HOLDS))
		state->congestion = state->congestion / 10 * 7;
	state->lost_at = context->now;
	return DROPPED;
}

/*
 * Drops what is too much of what is limited. How much a far sender has in flight does
 * not show here, unless it is held back here.
 */
static __always_inline int hold_back(struct context *context, struct subflow *subflow, const struct limit *limit,
				     __u32 direction)
{
	if (limit->in_use == MECHANISM_POLICE)
		return police(context, subflow, direction);
	if (limit->in_use == MECHANISM_WINDOW &&
	    (direction == FROM_ENDPOINT || subflow->window[direction & 1].begun & WINDOW_HOLDS))
		return lose(context, subflow, direction);
	return UNTOUCHED;
}

/*
 * The limit on a direction, or 0. One of before the rules were asked anew holds until
 * they ask again, or it is clear that they will not: a change of rules opens no gap.
 */
static __always_inline struct limit *limit_on(const struct context *context, struct subflow *subflow, __u32 limited)
{
	struct limit *limit = &subflow->limit[limited & 1];
	__u8 *stale = &subflow->window[limited & 1].stale;
	enum asked asked;

	if (!limit->rate)
		return 0;
	if (unlikely(*stale)) {
		asked = is_asked(context, subflow, subflow->backup_state.lifted, ACTION_RATE_LIMIT);
		if (asked != ASKED_PERHAPS)
			*stale = 0;
		if (asked == ASKED_NO_MORE) {
			limit->rate = 0;
			hold_no_more(&subflow->window[limited & 1]);
			return 0;
		}
	}
	choose_mechanism(subflow, limit, limited);
	if (limit->in_use != MECHANISM_WINDOW)
		hold_no_more(&subflow->window[limited & 1]);
	return limit;
}

/* Keeps the limits on both directions that the packet has to do with. */
static __always_inline int settle_rates(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	__u32 direction = context->direction & 1, limited = opposite(direction) & 1;
	struct limit *limit = limit_on(context, subflow, direction);

	if (limit && hold_back(context, subflow, limit, direction) == DROPPED)
		return DROPPED;
	limit = limit_on(context, subflow, limited);
	return limit && limit->in_use == MECHANISM_WINDOW ? lower_window(skb, context, subflow, limited) : UNTOUCHED;
}

/* The limits are to be asked for again; what the loops have learnt stays. */
static __always_inline void unsettle_rates(struct subflow *subflow)
{
	subflow->window[FROM_ENDPOINT].stale = 1;
	subflow->window[TO_ENDPOINT].stale = 1;
}

#endif
