//go:build ignore
// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Runs one actor on each packet, without rules; what is known of the subflow is
 * the test's to say.
 */
#include "endpoint/parse.h"
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

/* By direction: a reset that goes back passes the other one meanwhile. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct context);
} contexts SEC(".maps");

static __always_inline int act_alone(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
				      const struct action *action)
{
	switch (action->kind) {
	case ACTION_RATE_LIMIT:
		return act_rate_limit(skb, context, subflow, action);
	case ACTION_SET_BACKUP:
		return act_set_backup(skb, context, subflow, action);
	case ACTION_SUPPRESS_ADD_ADDR:
		return act_suppress_add_addr(skb, context, subflow, action);
	case ACTION_RELEASE_ADD_ADDR:
		return act_release_add_addr(skb, context, subflow, action);
	case ACTION_DROP:
	case ACTION_RESET:
		return act_refuse(skb, context, subflow, action);
	}
	return UNTOUCHED;
}

/* The packet's headers in its direction's context, as the chain has them; or 0. */
static __noinline struct context *parsed(struct __sk_buff *skb, __u32 direction, __u32 endpoint)
{
	struct context seen = { .direction = direction }, *context;

	seen.key.endpoint = endpoint;
	if (!parse(skb, &seen))
		return 0;
	context = bpf_map_lookup_elem(&contexts, &direction);
	if (context)
		__builtin_memcpy(context, &seen, sizeof(seen));
	return context;
}

static __always_inline void count_result(struct outcome *outcome, __u32 result)
{
	barrier_var(result); /* the verifier does not know what the functions return */
	if (result <= DROPPED)
		__sync_fetch_and_add(&outcome->results[result], 1);
}

static __always_inline int run_alone(struct __sk_buff *skb, __u32 direction)
{
	struct outcome *outcome;
	struct context *context;
	struct subflow *subflow;
	struct order *order;
	__u32 zero = 0;
	int result;

	order = bpf_map_lookup_elem(&orders, &zero);
	outcome = bpf_map_lookup_elem(&outcomes, &zero);
	if (!order || !outcome)
		return TCX_NEXT;
	context = parsed(skb, direction, order->endpoint);
	if (!context) {
		__sync_fetch_and_add(&outcome->unparsed, 1);
		return TCX_NEXT;
	}
	context->segments = segments_of(skb);
	context->now = bpf_ktime_get_coarse_ns() + order->ahead;
	forget_options(context);
	subflow = bpf_map_lookup_elem(&subflows, &context->key);
	if (!subflow)
		return TCX_NEXT;
	if (order->steps & STEP_UNSETTLE)
		unsettle(context, subflow);
	if (order->steps & STEP_ACT) {
		result = act_alone(skb, context, subflow, &order->action[direction]);
		outcome->last_act = result;
		count_result(outcome, result);
		if (result == DROPPED)
			return TC_ACT_SHOT;
	}
	if (order->steps & STEP_SETTLE && subflow->engaged) {
		result = settle(skb, context, subflow);
		outcome->last_settle = result;
		count_result(outcome, result);
		if (result == DROPPED)
			return TC_ACT_SHOT;
	}
	return TCX_NEXT;
}

SEC("tc")
int from_harness(struct __sk_buff *skb)
{
	return run_alone(skb, FROM_ENDPOINT);
}

SEC("tc")
int to_harness(struct __sk_buff *skb)
{
	return run_alone(skb, TO_ENDPOINT);
}

char _license[] SEC("license") = "Dual BSD/GPL";
