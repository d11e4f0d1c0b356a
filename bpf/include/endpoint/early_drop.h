/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets that are dropped so that a sender's congestion window comes down to what a
 * lowered receive window allows.
 */
#ifndef BRAID_EARLY_DROP_H
#define BRAID_EARLY_DROP_H

#include "receive_window.h"

enum {
	WINDOW_BYTES_SMALL = 8 * SEGMENT_BYTES,
	WINDOW_BYTES_LARGE = 32 * SEGMENT_BYTES,
	WINDOW_BYTES_HUGE = 256 * SEGMENT_BYTES,
	LOSS_SHOWS_AFTER = 2,       /* round trips, until the sender has less in flight */
	LOSSES_APART = 3,           /* round trips */
	ROOM_IN_HOLD_LATER = 2,     /* times more, when its slow start is over, */
	ROOM_IN_HOLD_LASTS = 75 * MILLISECOND, /* and what the limit lets pass in this time */
	COARSE_TICK = 4 * MILLISECOND, /* of the coarse clock */
};

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

#endif
