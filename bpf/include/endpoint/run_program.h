/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Actions of type RunProgram: run a block of one's own on a packet of a subflow. */
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
 * enum result or NOT_SELECTED, which leaves out the remaining actions of the rule.
 * What a block leaves of the packet is read again, the options too when next asked
 * for: pointers into the packet are void.
 */
__noinline int act_run_program(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
			  const struct action *action)
{
	struct block_input *copies;

	if (!context || !subflow || !action)
		return UNTOUCHED;
	copies = block_copies();
	if (!copies)
		return UNTOUCHED;
	copies->packet = *context;
	copies->value = action->value;
	facts_of(&copies->subflow, subflow);
	return run_block(skb, context, action->limit);
}

#endif
