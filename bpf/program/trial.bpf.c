//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * trial: runs blocks on sample packets as a chain does, and nothing else. What a
 * block costs and does is measured with it before any chain calls the block.
 */
#include "endpoint/program_call.h"
#include "endpoint/parse.h"

enum {
	TRIAL_BLOCKS = 8,
};

/* What to run, and on whose behalf. */
struct trial {
	__u32 direction;
	__u32 blocks;
	struct action action[TRIAL_BLOCKS];
	struct braid_subflow subflow;
};

/* What came of it: enum result or NOT_SELECTED of each block that was called. */
struct trial_result {
	__u32 called;
	__s32 result[TRIAL_BLOCKS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trial);
} trials SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trial_result);
} trial_results SEC(".maps");

/* The stack above a block is short. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct context);
} trial_context SEC(".maps");

__noinline int try_block(struct __sk_buff *skb, struct context *context, const struct trial *trial, __u32 number)
{
	struct block_input *copies = block_copies();
	const struct action *action;

	if (!copies || !context || !trial || number >= TRIAL_BLOCKS)
		return UNTOUCHED;
	action = &trial->action[number];
	copies->packet = *context;
	copies->subflow = trial->subflow;
	copies->value = action->value;
	return run_block(skb, context, action->limit);
}

/* Its frame is gone before a block is called. */
static __noinline int parse_sample(struct __sk_buff *skb, struct context *context, __u32 direction)
{
	struct context parsed = {};

	parsed.direction = direction;
	if (!parse(skb, &parsed))
		return 0;
	*context = parsed;
	return 1;
}

static __always_inline int run_trial(struct __sk_buff *skb, struct context *context, const struct trial *trial,
				     struct trial_result *results)
{
	__u32 i;

	results->called = 0;
	if (!parse_sample(skb, context, trial->direction))
		return TCX_NEXT;
	for (i = 0; i < TRIAL_BLOCKS; i++) {
		int result;

		if (i >= trial->blocks)
			break;
		result = try_block(skb, context, trial, i);
		results->result[i] = result;
		results->called++;
		if (result == DROPPED)
			return TC_ACT_SHOT;
		if (result == NOT_SELECTED)
			break;
	}
	return TCX_NEXT;
}

SEC("tc")
int trial(struct __sk_buff *skb)
{
	struct trial_result *results;
	struct context *context;
	struct trial *trial;
	__u32 zero = 0;

	trial = bpf_map_lookup_elem(&trials, &zero);
	results = bpf_map_lookup_elem(&trial_results, &zero);
	context = bpf_map_lookup_elem(&trial_context, &zero);
	return trial && results && context ? run_trial(skb, context, trial, results) : TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
