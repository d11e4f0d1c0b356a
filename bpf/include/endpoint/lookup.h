/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a run looks up: the subflow's record, the endpoint's chain and its counters. */
#ifndef BRAID_LOOKUP_H
#define BRAID_LOOKUP_H

#include "bypass_cache.h"

static __always_inline void count_visit(struct context *context, struct subflow *subflow)
{
	__u32 visits = subflow->visits[context->direction & 1]++;

	context->visits = visits & 0x7f;
	context->differs = 0;
	context->stirred = 0;
	context->progress.counted = 0;
}

/*
 * What selectors and actors find in the context besides the headers. The coarse
 * clock moves on with the jiffies, which cost nothing to read.
 */
static __always_inline void complete_context(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	__u64 tick = bpf_jiffies64();

	context->segments = segments_of(skb);
	context->types = types_of_header(context);
	context->data_known = 0;
	context->connection_sent = 0;
	forget_options(context);
	context->tick = tick;
	context->fresh_tick = subflow->tick != tick;
	if (unlikely(context->fresh_tick)) {
		subflow->tick = tick;
		subflow->last_seen = bpf_ktime_get_coarse_ns();
		if (!subflow->first_seen)
			subflow->first_seen = subflow->last_seen;
	}
	context->now = subflow->last_seen;
	context->fresh_way = subflow->visited[context->direction & 1] != (__u32)tick;
	if (unlikely(context->fresh_way)) {
		subflow->visited[context->direction & 1] = tick;
		subflow->visits[context->direction & 1] = 0;
	}
	count_visit(context, subflow);
}

/* A record of its own, where another subflow may have been. */
static __noinline struct subflow *new_subflow(struct __sk_buff *skb, struct context *context, int is_known)
{
	if (is_known)
		invalidate_bypass_of(skb);
	if (bpf_map_update_elem(&subflows, &context->key, &fresh_subflow, BPF_ANY))
		return 0;
	return bpf_map_lookup_elem(&subflows, &context->key);
}

/* A SYN that is not a repetition begins a subflow. */
static __always_inline struct subflow *find_subflow(struct __sk_buff *skb, struct context *context)
{
	struct subflow *subflow = bpf_map_lookup_elem(&subflows, &context->key);

	if (unlikely(!subflow))
		return new_subflow(skb, context, 0);
	if (unlikely(asks(context)) && (!(subflow->known & KNOWN_SYN) || subflow->syn_sequence != context->sequence))
		return new_subflow(skb, context, 1);
	return subflow;
}

static __always_inline struct chain *chain_of(const struct context *context)
{
	__u32 slot = CHAIN_SLOT(context->chain), zero = 0;
	void *map = bpf_map_lookup_elem(&chains, &slot);

	return map ? bpf_map_lookup_elem(map, &zero) : 0;
}

static __always_inline struct counters *counters_of(const struct context *context)
{
	__u32 row = CHAIN_ROW(context->chain);

	return bpf_map_lookup_elem(&chain_counters, &row);
}

#endif
