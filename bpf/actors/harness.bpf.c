//go:build ignore
// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Runs one actor on each packet of one subflow after another: what the chain does
 * around it, without rules. The record's part is done by the tests, or by the
 * endpoint half's own code where the programs are attached to an interface.
 */
#include "endpoint/settle.h"

/* What to do with each packet, bits of order.steps. */
enum {
	STEP_ACT = 1,
	STEP_SETTLE = 2,
	STEP_UNSETTLE = 4,
};

struct order {
	__u32 steps;
	__u32 endpoint;
	__u64 ahead; /* ns, added to the clock */
	struct action action[2]; /* by direction; kind 0: none */
};

/* How often which enum result came out, and of the last packet. */
struct outcome {
	__u64 results[3];
	__u64 unparsed;
	__u32 last_act;
	__u32 last_settle;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct order);
} orders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct outcome);
} outcomes SEC(".maps");

static __always_inline int run_action(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
				      const struct action *action)
{
	switch (action->kind) {
	case ACTION_RATE_LIMIT:
		return act_rate_limit(skb, context, subflow, action);
	case ACTION_SET_BACKUP:
		return act_set_backup(skb, context, subflow, action);
	case ACTION_BLOCK_SUBFLOW:
		return act_block_subflow(skb, context, subflow, action);
	case ACTION_ADD_SUBFLOW:
		return act_add_subflow(skb, context, subflow, action);
	case ACTION_DROP:
	case ACTION_RESET:
		return act_refuse(skb, context, subflow, action);
	}
	return UNTOUCHED;
}

static __always_inline void count(struct outcome *outcome, __u32 result)
{
	if (result <= DROPPED)
		__sync_fetch_and_add(&outcome->results[result], 1);
}

static __always_inline int run(struct __sk_buff *skb, __u32 direction)
{
	struct context context = { .direction = direction };
	struct outcome *outcome;
	struct subflow *subflow;
	struct order *order;
	__u32 zero = 0;
	int result;

	order = bpf_map_lookup_elem(&orders, &zero);
	outcome = bpf_map_lookup_elem(&outcomes, &zero);
	if (!order || !outcome)
		return TCX_NEXT;
	context.key.endpoint = order->endpoint;
	if (!parse(skb, &context)) {
		__sync_fetch_and_add(&outcome->unparsed, 1);
		return TCX_NEXT;
	}
	context.segments = segments_of(skb);
	context.now = bpf_ktime_get_coarse_ns() + order->ahead;
	subflow = bpf_map_lookup_elem(&subflows, &context.key);
	if (!subflow)
		return TCX_NEXT;
	if (order->steps & STEP_UNSETTLE)
		unsettle(&context, subflow);
	if (order->steps & STEP_ACT) {
		result = run_action(skb, &context, subflow, &order->action[direction]);
		outcome->last_act = result;
		count(outcome, result);
		if (result == DROPPED)
			return TC_ACT_SHOT;
	}
	if (order->steps & STEP_SETTLE && subflow->engaged) {
		result = settle(skb, &context, subflow);
		outcome->last_settle = result;
		count(outcome, result);
		if (result == DROPPED)
			return TC_ACT_SHOT;
	}
	return TCX_NEXT;
}

SEC("tc")
int from_harness(struct __sk_buff *skb)
{
	return run(skb, FROM_ENDPOINT);
}

SEC("tc")
int to_harness(struct __sk_buff *skb)
{
	return run(skb, TO_ENDPOINT);
}

char _license[] SEC("license") = "Dual BSD/GPL";
