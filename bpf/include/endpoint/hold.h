/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Holding acknowledgements back. An MPTCP sender takes the connection's window for
 * that of a subflow whenever it gives it data, so that a lowered window does not hold
 * a subflow that has others beside it. And its scheduler gives each subflow as much as
 * congestion window over round trip promises: what then waits for a slow subflow keeps
 * all others waiting, the more so the more its congestion window swings.
 *
 * So the sender is told of what has arrived no sooner than the limit would have let it
 * arrive: acknowledgement numbers are lowered, never below one that it was told before.
 * To the sender this is a queue at the limit's rate: its round trip grows, its
 * scheduler knows the rate, and nothing need be lost. The data itself waits nowhere,
 * and what MPTCP acknowledges for the connection stays as it is.
 */
#ifndef BRAID_HOLD_H
#define BRAID_HOLD_H

#include "edit.h"
#include "record.h"

enum {
	HOLD_SEGMENT = 1460,
	HOLD_LEAST = 2 * HOLD_SEGMENT,   /* one alone waits for a delayed ACK */
	HOLD_SECOND = 1000000000,
	HOLD_DEBT = HOLD_SECOND / 2,     /* ns: more is not owed */
	HOLD_PATIENCE = 20000000,        /* ns, with a sender that is ahead */
	HOLD_PAUSE = 250000000,          /* ns: after as long without an acknowledgement it begins anew */
	HOLD_UNUSED = 50000000,          /* ns: what was not used so long may be later */
	TCP_ACKNOWLEDGEMENT_AT = 8,
};

static __always_inline void begin_hold(struct window_state *state, __u32 acknowledgement)
{
	state->begun |= WINDOW_HOLDS;
	state->marked = acknowledgement; /* with it the sender knows all */
	state->congestion = acknowledgement;
}

/* Nobody knows what the sender was told while no rule looked on. */
static __always_inline int is_held(const struct window_state *state, __u64 now, __u32 rtt)
{
	__s64 since = now - state->marked_at;

	return state->begun & WINDOW_HOLDS && since <= HOLD_PAUSE + 2000LL * rtt;
}

/* The sender learns all with the next acknowledgement. */
static __always_inline void hold_no_more(struct window_state *state)
{
	if (unlikely(state->begun & WINDOW_HOLDS)) {
		state->begun &= ~WINDOW_HOLDS;
		state->congestion = 0;
		state->marked = state->acknowledged;
	}
}

/* Lowers the acknowledgement number. */
__noinline int set_acknowledgement(struct __sk_buff *skb, struct context *context, __u32 number)
{
	__be32 from, to = bpf_htonl(number);

	if (!context)
		return 0;
	if (bpf_skb_load_bytes(skb, context->transport + TCP_ACKNOWLEDGEMENT_AT, &from, sizeof(from)))
		return 0;
	if (bpf_l4_csum_replace(skb, context->transport + TCP_CHECKSUM_AT, from, to, sizeof(to)))
		return 0;
	return !bpf_skb_store_bytes(skb, context->transport + TCP_ACKNOWLEDGEMENT_AT, &to, sizeof(to), 0);
}

/*
 * Whether the sender learns all at once: of losses it must know everything, until it
 * has been told of all that it knew by SACK. Of an end nothing is gained by its waiting.
 */
static __always_inline int tells_all(const struct context *context, const struct subflow *subflow,
				     const struct window_state *state)
{
	if (subflow->ended || context->flags & (TCP_FIN | TCP_RST))
		return 1;
	return is_after(state->congestion, state->marked);
}

/*
 * How far the sender is behind the limit, in ns; negative: ahead, for it was told more
 * than the limit lets arrive. loop->until is when it was neither.
 */
static __always_inline __s64 behind(struct rate_loop *loop, __u64 now, __u64 unused)
{
	__s64 since = now - loop->until;

	if (since <= (__s64)unused && since >= -(__s64)HOLD_DEBT)
		return since;
	since = since > 0 ? (__s64)unused : -(__s64)HOLD_DEBT;
	loop->until = now - since;
	return since;
}

/*
 * How much of what is newly acknowledged the sender is told. When nothing else is
 * under way it is told something in any case: no other acknowledgement would come. A
 * single segment then makes its receiver wait with the next one.
 */
static __always_inline __u32 to_be_told(const struct context *context, const struct subflow *subflow, __u32 limited,
					__u32 newly, __s64 since)
{
	__s32 left = subflow->traffic[limited & 1].highest - context->acknowledgement;
	__u64 credit = since > 0 ? since * subflow->limit[limited & 1].rate / HOLD_SECOND : 0;
	__u32 least = since < -(__s64)HOLD_PATIENCE ? HOLD_SEGMENT : HOLD_LEAST;

	if (newly <= credit)
		return newly;
	if (credit >= HOLD_LEAST)
		return credit;
	if (left >= HOLD_LEAST)
		return 0;
	return newly < least ? newly : least;
}

/* A pure ACK that would tell nothing, but for the connection's acknowledgement, is left out. */
static __always_inline int tells_nothing(const struct context *context)
{
	return is_pure_ack(context) && !context->options.mptcp;
}

/* Lets the sender know of as much as the limit lets arrive. */
static __always_inline int hold_acknowledgement(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
						struct rate_loop *loop, __u32 limited, __u32 rtt)
{
	struct window_state *state = &subflow->window[limited & 1];
	__u64 rate = subflow->limit[limited & 1].rate, now;
	__u32 newly, told;

	if (!is_held(state, context->now, rtt))
		begin_hold(state, context->acknowledgement);
	state->marked_at = context->now;
	read_options(skb, context);
	if (context->options.sack)
		state->congestion = subflow->traffic[limited & 1].highest;
	newly = context->acknowledgement - state->marked;
	if (!rate || !newly || newly >> 31)
		return UNTOUCHED;
	now = bpf_ktime_get_ns();
	told = to_be_told(context, subflow, limited, newly, behind(loop, now, HOLD_UNUSED + 1000ULL * rtt));
	if (tells_all(context, subflow, state))
		told = newly;
	state->marked += told;
	if (!is_after(state->congestion, state->marked))
		state->congestion = state->marked;
	__sync_fetch_and_add(&loop->until, told * (__u64)HOLD_SECOND / rate);
	if (told == newly)
		return UNTOUCHED;
	if (!told && tells_nothing(context))
		return DROPPED;
	return set_acknowledgement(skb, context, state->marked) ? ACTED : UNTOUCHED;
}

#endif
