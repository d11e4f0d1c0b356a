/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What actors have left to do on packets that no rule need match: a limit keeps
 * the windows of the other direction, an end is told or an address given back in
 * the next pure ACK.
 */
#ifndef BRAID_SETTLE_H
#define BRAID_SETTLE_H

#include "add_addr.h"
#include "backup.h"
#include "rate.h"
#include "refuse.h"

static __always_inline int is_settled(const struct subflow *subflow)
{
	return !subflow->limit[FROM_ENDPOINT].rate && !subflow->limit[TO_ENDPOINT].rate &&
	       backup_is_settled(subflow) && addresses_are_settled(subflow);
}

/* Called on each packet of an engaged subflow, after the rules. */
__noinline int settle(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	int result = UNTOUCHED, rates;

	if (!context || !subflow)
		return UNTOUCHED;
	rates = settle_rates(skb, context, subflow);
	if (rates == DROPPED)
		return DROPPED;
	if (!backup_is_settled(subflow) || !addresses_are_settled(subflow)) {
		context->stirred = 1;
		read_options(skb, context);
		result = settle_backup(skb, context, subflow);
		if (result == UNTOUCHED)
			result = settle_addresses(skb, context, subflow);
		close_backup(context, subflow);
	}
	if (is_settled(subflow))
		subflow->engaged = 0;
	return result == UNTOUCHED ? rates : result;
}

/* Most packets neither say nor could carry anything about priorities. */
static __always_inline int backup_is_quiet(const struct context *context, const struct subflow *subflow)
{
	const struct backup_state *state = &subflow->backup_state;
	__u32 told = ~context->direction & 1;

	if (backup_is_settled(subflow))
		return 1;
	if (context->options.types & TYPE_MP_PRIO)
		return 0;
	if (is_pure_ack(context))
		return state->wanted && state->told[0] == state->wanted && state->told[1] == state->wanted &&
		       state->arrived == (1 << FROM_ENDPOINT | 1 << TO_ENDPOINT);
	/* Its timestamp may show what has arrived. */
	return !state->told[told] || state->arrived >> told & 1;
}

static __always_inline int addresses_are_quiet(const struct context *context, const struct subflow *subflow)
{
	const struct address_state *state = &subflow->addresses;
	__u32 direction = context->direction & 1;

	if (addresses_are_settled(subflow))
		return 1;
	if (context->options.types & TYPE_ADD_ADDR_ECHO)
		return 0;
	if ((context->options.types & TYPE_DSS) && !(state->signalled >> direction & 1))
		return 0;
	return !is_pure_ack(context) || (state->blocking && !state->releasing && !state->echo_due[direction]);
}

/*
 * A window that was granted in this tick holds for packets that acknowledge nothing
 * new; what only the sender's socket or the other direction enforces is no work here.
 */
static __always_inline int rates_are_quiet(const struct context *context, const struct subflow *subflow)
{
	__u32 direction = context->direction & 1, limited = opposite(direction) & 1;
	const struct limit *sent = &subflow->limit[direction], *other = &subflow->limit[limited];
	const struct window_state *state = &subflow->window[limited];

	if (sent->rate && sent->in_use == MECHANISM_POLICE)
		return 0;
	if (!other->rate || other->in_use != MECHANISM_WINDOW)
		return 1;
	if (state->begun & WINDOW_HOLDS && (state->marked != context->acknowledgement || context->options.sack))
		return 0;
	return state->begun && state->window && state->acknowledged == context->acknowledgement &&
	       scale_of(subflow, limited);
}

/* Writes the window that was granted last. */
static __always_inline int keep_window(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	__u32 limited = opposite(context->direction) & 1;
	__u32 granted = subflow->window[limited].window, window;
	__u8 shift = (scale_of(subflow, limited) - 1) & 15;

	if (!subflow->limit[limited].rate || subflow->limit[limited].in_use != MECHANISM_WINDOW)
		return UNTOUCHED;
	if (subflow->window[limited].begun & WINDOW_HOLDS)
		return UNTOUCHED;
	if ((context->flags & (TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK)
		return UNTOUCHED;
	window = (granted + (1U << shift) - 1) >> shift;
	if (window >= context->window)
		return UNTOUCHED;
	if (likely(set_window_in_place(skb, context, bpf_htons(window)))) {
		context->window = window;
		return ACTED;
	}
	return set_window(skb, context, window) ? ACTED : UNTOUCHED;
}

/* settle(), but for the packets that bring nothing new; once in a tick they are all looked at. */
static __always_inline int settle_quickly(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	if (likely(!context->fresh_way && rates_are_quiet(context, subflow) && backup_is_quiet(context, subflow) &&
		   addresses_are_quiet(context, subflow)))
		return keep_window(skb, context, subflow);
	return settle(skb, context, subflow);
}

/*
 * Called when a subflow is classified anew, before its rules act again: lets go of
 * what they asked for, but for what the cluster's still do. What is not asked for again is undone by settle().
 */
static __always_inline void unsettle(struct context *context, struct subflow *subflow)
{
	unsettle_rates(subflow);
	unsettle_backup(context, subflow);
	unsettle_addresses(context, subflow);
}

#endif
