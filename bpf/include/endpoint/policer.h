/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Rates that are kept by dropping what is beyond them: MECHANISM_POLICE. */
#ifndef BRAID_POLICER_H
#define BRAID_POLICER_H

#include "rate_limit.h"

enum {
	BURST_BYTES = 65536,        /* one packet of GSO */
	LARGEST_PACKET = 1 << 20,   /* more than BIG TCP makes */
	BURSTS_A_SECOND = 50,       /* at high rates a burst lasts this part of a second */
};

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

#endif
