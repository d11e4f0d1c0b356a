/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The chain of an endpoint at a NIC's XDP hook, as far as a packet alone tells what becomes
 * of it there: of rules that only drop. The first rule of which more would have to be
 * known, or that does anything else, leaves the packet to to_endpoint, and with it all that
 * is learnt and counted of it.
 */
#ifndef BRAID_AT_NIC_H
#define BRAID_AT_NIC_H

#include "count.h"
#include "lookup.h"

enum {
	MAX_AT_NICS = 128,
	MAX_REACHED = 2 * MAX_ENDPOINTS, /* addresses */
	UNDECIDED = 0xfffd, /* in the place of enum selector_result */
};

/* A NIC that has the program; written by the agent, but for the count. */
struct hooked_nic {
	__u8 address[6]; /* what is for others is not for this node's endpoints */
	__u8 pad[2];
	__u64 dropped;   /* packets */
};

/* Where an address leads; written by the agent. */
struct reached {
	__u32 interface; /* the endpoint's, by which its chain is found */
	__u32 device;    /* to which the node's route leads: that interface, or a bridge that has it */
};

/* What a run knows. The subflow is none that is remembered: it has what this packet tells. */
struct nic_run {
	struct context context;
	struct subflow subflow;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_AT_NICS);
	__type(key, __u32); /* ifindex */
	__type(value, struct hooked_nic);
} hooked_nics SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_REACHED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, struct reached);
} reached_endpoints SEC(".maps");

/* Not run_context: what leaves an endpoint on this processor may run beside it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nic_run);
} nic_runs SEC(".maps");

/* Kinds of selectors, a bit each. */
#define KIND(selector) (1ULL << (selector))
#define TOLD_BY_ALL                                                                                                \
	(KIND(SELECT_ANYTHING) | KIND(SELECT_LOCAL_ADDRESS) | KIND(SELECT_DESTINATION_ADDRESS) | KIND(SELECT_LOCAL_PORT) | \
	 KIND(SELECT_DESTINATION_PORT) | KIND(SELECT_DIRECTION) | KIND(SELECT_PATH) | KIND(SELECT_TYPES))
#define TOLD_BY_SYN                                                                                                \
	(KIND(SELECT_REMOTE_ADDRESS) | KIND(SELECT_SOURCE_ADDRESS) | KIND(SELECT_REMOTE_PORT) | KIND(SELECT_SOURCE_PORT))

/*
 * The kinds of selectors of which a packet tells here what they say at to_endpoint. Who sent
 * it is known of the SYN that asks for a subflow alone: of what answers, the node's connection
 * tracking may have to put a Service's address in the place of a sender's first.
 */
static __always_inline __u64 told_at_nic(const struct context *context)
{
	return asks(context) ? TOLD_BY_ALL | TOLD_BY_SYN : TOLD_BY_ALL;
}

/* As matches(), with the packet: MATCHED, NOT_MATCHED or UNDECIDED. */
__noinline int decides(struct chain *chain, struct context *context, struct subflow *subflow, __u32 at)
{
	__u64 told;
	int i;

	if (!chain || !context || !subflow)
		return UNDECIDED;
	told = told_at_nic(context);
	barrier_var(told);
	for (i = 0; i < MAX_SELECTORS; i++) {
		if (at >= MAX_SELECTORS)
			break;
		if (!(told >> (chain->selector[at].kind & 63) & 1))
			return UNDECIDED;
		at = 0xffff & next_selector(&chain->selector[at], context, subflow, 2 * ASSUME_NOTHING + TO_ENDPOINT);
		barrier_var(at);
	}
	return at == MATCHED || at == NOT_MATCHED ? at : UNDECIDED;
}

static __always_inline int only_drops(const struct chain *chain, const struct rule *rule)
{
	__u32 action = rule->first_action;

	return rule->actions && action < MAX_ACTIONS && chain->action[action].kind == ACTION_DROP;
}

/* The number of the rule that drops the packet, from 1; 0: to_endpoint is to see it. */
__noinline int dropped_by(struct chain *chain, struct context *context, struct subflow *subflow)
{
	__u32 index;
	int decided;

	if (!chain || !context || !subflow)
		return 0;
	for (index = 0; index < MAX_RULES; index++) {
		if (index >= chain->rules)
			break;
		if (!(chain->rule[index].directions >> TO_ENDPOINT & 1))
			continue;
		decided = decides(chain, context, subflow, chain->rule[index].first_selector);
		if (decided == NOT_MATCHED)
			continue;
		return decided == MATCHED && only_drops(chain, &chain->rule[index]) ? index + 1 : 0;
	}
	return 0;
}

#endif
