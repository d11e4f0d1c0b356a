/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The limits on both directions of a subflow, kept on each of its packets. */
#ifndef BRAID_RATE_H
#define BRAID_RATE_H

#include "early_drop.h"
#include "policer.h"

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
