/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The run of a packet through its endpoint's chain. What concerns nobody leaves
 * first: without a chain, no TCP, or a subflow that no rule concerns.
 */
#ifndef BRAID_RUN_H
#define BRAID_RUN_H

#include "connection.h"
#include "steady.h"

/* Makes the memo anew for the chain that the endpoint has now. */
__noinline int classify(struct context *context, struct subflow *subflow)
{
	struct chain *chain;

	if (!context || !subflow)
		return 0;
	chain = chain_of(context);
	if (!chain)
		return 0;
	forget_asking_rule(subflow);
	subflow->recorded = 0;
	subflow->stack = 0;
	unlatch(subflow);
	classify_direction(chain, context, subflow, FROM_ENDPOINT);
	classify_direction(chain, context, subflow, TO_ENDPOINT);
	keep_enforced(chain, subflow);
	unsettle(context, subflow);
	context->stirred = 1;
	subflow->needs_connection = !!(chain->needs & NEEDS_CONNECTION);
	barrier();
	subflow->word = context->chain;
	return 1;
}

/* What is learnt from a packet before the chain is asked. */
static __always_inline void note_packet(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	__u32 ingress = arrival_of(skb);
	int in_handshake = (context->flags & TCP_SYN) || !(subflow->known & KNOWN_HANDSHAKE);

	if (context->direction == TO_ENDPOINT && unlikely(ingress != subflow->ingress) && ingress) {
		if (subflow->known & KNOWN_HANDSHAKE)
			invalidate_bypass_of(skb);
		learn_path(context, subflow, ingress);
	}
	if (unlikely(in_handshake)) {
		read_options(skb, context);
		learn(skb, context, subflow);
	}
}

/* A backup's, until an MP_PRIO ends that: the other end's may come when no rule here concerns the subflow any more. */
static __always_inline int wants_options(const struct context *context, const struct subflow *subflow)
{
	return (subflow->needs[context->direction & 1] & NEEDS_OPTIONS) || subflow->engaged || subflow->recorded ||
	       subflow->backup;
}

static __always_inline int run_chain(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	__u32 direction = context->direction & 1;
	int result = UNTOUCHED;

	if (subflow->sure[direction] | subflow->maybe[direction])
		result = run_rules(skb, context, subflow);
	if (result != DROPPED && subflow->engaged)
		result = settle_quickly(skb, context, subflow);
	note_end(context, subflow);
	if (subflow->due && is_report_ready(subflow, result == DROPPED))
		report_due(context, subflow);
	return result;
}

/* Brings the record of the packet's subflow up to date; 0 where there is no chain to go by. */
static __always_inline int note(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	note_packet(skb, context, subflow);
	if (unlikely(subflow->word != context->chain) && !classify(context, subflow))
		return 0;
	if (wants_options(context, subflow)) {
		if (likely(!context->options.read))
			read_first_options(skb, context);
		note_backup(subflow, context);
	}
	record(context, subflow);
	if (unlikely(subflow->needs_connection) && subflow->token)
		record_connection(context, subflow);
	return 1;
}

/*
 * Reads from where a packet's record will be read, so that all of it comes into the
 * cache at once: nothing waits for what is read here. A flow that rests finds its
 * record in no cache.
 */
static __always_inline void fetch(const struct subflow *subflow)
{
	(void)*(volatile const __u64 *)&subflow->last_seen;
	(void)*(volatile const __u64 *)&subflow->traffic[FROM_ENDPOINT].bytes;
	(void)*(volatile const __u64 *)&subflow->traffic[FROM_ENDPOINT].timed_at;
	(void)*(volatile const __u64 *)&subflow->traffic[TO_ENDPOINT].bytes;
	(void)*(volatile const __u64 *)&subflow->traffic[TO_ENDPOINT].timed_at;
	(void)*(volatile const __u64 *)&subflow->limit[TO_ENDPOINT].rate;
	(void)*(volatile const __u32 *)&subflow->window[TO_ENDPOINT].acknowledged;
	(void)*(volatile const __u64 *)&subflow->addresses.lifted;
}

/* What remains to be done once the packet is counted. */
static __always_inline int finish(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	__u32 direction = context->direction & 1;

	if (subflow->sure[direction] | subflow->maybe[direction] || subflow->engaged || subflow->due)
		return run_chain(skb, context, subflow);
	note_end(context, subflow);
	context->differs |= cache_bypass(skb, context, subflow);
	return UNTOUCHED;
}

static __always_inline int run_subflow(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
				       struct steady *steady)
{
	int result;

	fetch(subflow);
	complete_context(skb, context, subflow);
	if (is_steady(context, steady))
		begin_visit(context, subflow, steady);
	if (!note(skb, context, subflow))
		return UNTOUCHED;
	result = finish(skb, context, subflow);
	if (context->visits >= STEADY_AFTER - 1)
		end_visit(skb, context, subflow, steady);
	return result;
}

static __always_inline int run(struct __sk_buff *skb, __u32 direction)
{
	struct attachment *attachment = attachment_of(skb->ifindex);
	__u32 slot = direction, folded; /* the compiler does not know any more what a helper was given */
	struct context *context = bpf_map_lookup_elem(&run_context, &slot);
	struct subflow *subflow;
	struct steady *steady;

	if (!attachment || !context)
		return TCX_NEXT;
	context->chain = attachment->chain;
	if (!context->chain)
		return TCX_NEXT;
	context->direction = direction;
	context->key.endpoint = attachment->endpoint;
	if (!parse_in(skb, context, direction))
		return TCX_NEXT;
	folded = folded_key(&context->key);
	if (likely(may_bypass(skb, context, attachment, direction, folded)))
		return TCX_NEXT;
	steady = steady_slot(folded);
	if (!steady || passes_steadily(skb, context, steady, direction))
		return TCX_NEXT;
	subflow = find_subflow(skb, context);
	if (!subflow)
		return TCX_NEXT;
	return run_subflow(skb, context, subflow, steady) == DROPPED ? TC_ACT_SHOT : TCX_NEXT;
}

#endif
