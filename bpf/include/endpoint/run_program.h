/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Runs a block of one's own on a packet of a subflow, as an action or as a condition. */
#ifndef BRAID_RUN_PROGRAM_H
#define BRAID_RUN_PROGRAM_H

#include "program_call.h"
#include "subflow.h"

/* From one end to the other and back; both halves are measured from here. */
static __always_inline __u32 whole_rtt(const struct subflow *subflow)
{
	__u32 rtt = subflow->traffic[FROM_ENDPOINT].smoothed_rtt + subflow->traffic[TO_ENDPOINT].smoothed_rtt;

	return rtt ? rtt : subflow->seeded_rtt;
}

static __always_inline void copy_traffic(struct braid_traffic *to, const struct traffic *from)
{
	to->bytes = from->bytes;
	to->packets = from->packets;
	to->retransmitted = from->retransmitted;
}

static __always_inline void facts_of(struct braid_subflow *facts, const struct subflow *subflow)
{
	facts->token = subflow->token;
	facts->initiator_token = subflow->initiator_token;
	facts->rtt = whole_rtt(subflow);
	facts->path = subflow->path;
	facts->backup = !!subflow->backup;
	facts->window_scale[FROM_ENDPOINT] = subflow->traffic[FROM_ENDPOINT].window_scale;
	facts->window_scale[TO_ENDPOINT] = subflow->traffic[TO_ENDPOINT].window_scale;
	copy_traffic(&facts->traffic[FROM_ENDPOINT], &subflow->traffic[FROM_ENDPOINT]);
	copy_traffic(&facts->traffic[TO_ENDPOINT], &subflow->traffic[TO_ENDPOINT]);
}

/*
 * enum result, NOT_SELECTED or NO_ANSWER. What a block leaves of the packet is read again,
 * the options too when next asked for: pointers into the packet are void.
 */
__noinline int run_program(struct __sk_buff *skb, struct context *context, struct subflow *subflow, __u32 slot,
			   __s64 value)
{
	struct block_input *copies;

	if (!context || !subflow)
		return NO_ANSWER;
	copies = block_copies();
	if (!copies)
		return NO_ANSWER;
	copies->packet = *context;
	copies->value = value;
	facts_of(&copies->subflow, subflow);
	return ask_block(skb, context, slot);
}

/*
 * enum result or NOT_SELECTED, which leaves out the remaining actions of the rule. Without
 * a branch, for the verifier: NO_ANSWER becomes UNTOUCHED.
 */
static __always_inline int act_run_program(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
					   const struct action *action)
{
	return run_program(skb, context, subflow, action->limit, action->value) & ~NO_ANSWER;
}

/*
 * Asks the block of a selector, and gives where its answer leads. NO_MATCH is no, anything
 * else yes: a condition drops nothing. Without a block neither it nor its negation holds.
 */
static __always_inline __u32 answer_of(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
				       const struct selector *selector)
{
	int result = run_program(skb, context, subflow, selector->mask, selector->from);

	if (result == NO_ANSWER || (result != NOT_SELECTED) == !!selector->negated)
		return selector->if_false;
	return selector->if_true;
}

#endif
