/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What actors have left to do on packets that no rule need match: a limit keeps
 * the windows of the other direction, an end is told or an address given back in
 * the next pure ACK.
 */
#ifndef BRAID_SETTLE_H
#define BRAID_SETTLE_H

#include "address.h"
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

/*
 * Called when a subflow is classified anew, before its rules act again: lets go of
 * what they asked for. What is not asked for again is undone by settle().
 */
static __always_inline void unsettle(struct context *context, struct subflow *subflow)
{
	unsettle_rates(subflow);
	unsettle_backup(context, subflow);
	unsettle_addresses(context, subflow);
}

#endif
