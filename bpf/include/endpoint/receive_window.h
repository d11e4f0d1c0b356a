/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rates that are kept by the receive window in acknowledgements: MECHANISM_WINDOW.
 */
#ifndef BRAID_RECEIVE_WINDOW_H
#define BRAID_RECEIVE_WINDOW_H

#include "rate_controller.h"

enum {
	WINDOW_BYTES_MINIMUM = 2 * SEGMENT_BYTES, /* one alone waits for a delayed ACK */
	/* What a sender may have in flight whose acknowledgements are held back. */
	ROOM_IN_HOLD = 2,           /* times what the limit lets be */
	ROOM_IN_HOLD_LEAST = 8 * SEGMENT_BYTES,
	ROOM_IN_HOLD_MOST = 1 << 26,
	ASSUMED_RTT = 10000,        /* us, until one was measured */
	RECOUNT_TICKS = 15,         /* after as many, subflows may have joined */
	SHARERS = 8,                /* subflows of a connection that are told apart */
};

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

/*
 * Counts what this packet acknowledges anew. A receiver acknowledges on two processors
 * at once, as packets arrive and as its program reads: only one of them counts a byte.
 * By itself, since lower_window's place on the stack is all that Linux 6.1 has for it.
 */
static __noinline void count_delivered(struct context *context, struct subflow *subflow, struct rate_loop *loop,
					    __u32 limited)
{
	struct window_state *state = &subflow->window[limited & 1];
	__u32 before = state->acknowledged, newly = context->acknowledgement - before;

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
	if (__sync_val_compare_and_swap(&state->acknowledged, before, context->acknowledgement) == before)
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

#endif
