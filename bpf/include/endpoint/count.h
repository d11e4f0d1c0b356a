/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the rules of a chain did, counted alike wherever the chain runs. */
#ifndef BRAID_COUNT_H
#define BRAID_COUNT_H

#include "context.h"

static __always_inline void count_hit(struct counters *counters, const struct context *context, __u32 index)
{
	barrier_var(index);
	index &= MAX_RULES - 1;
	__sync_fetch_and_add(&counters->rule[index].hits, 1);
	if (context->payload)
		__sync_fetch_and_add(&counters->rule[index].bytes, context->payload);
}

/* A function of its own: the verifier would follow its ways for each turn of the loop. */
__noinline int count(struct counters *counters, struct context *context, __u32 index, __u32 result)
{
	if (!counters || !context || index >= MAX_RULES)
		return 0;
	count_hit(counters, context, index);
	if (result != UNTOUCHED)
		__sync_fetch_and_add(&counters->rule[index].acted, 1);
	return 0;
}

#endif
