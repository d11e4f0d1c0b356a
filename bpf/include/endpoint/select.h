/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which rules match a packet. A rule's selectors form a graph without cycles;
 * each says where to go on. What differs between the packets of a subflow is
 * asked for each packet; the rest once, in classify.h.
 */
#ifndef BRAID_SELECT_H
#define BRAID_SELECT_H

#include "subflow.h"

/* How to take selectors that differ between packets. */
enum assume {
	ASSUME_FALSE = 0,
	ASSUME_TRUE,
	ASSUME_NOTHING, /* look at the packet */
};

/* What a selector says; unknown is false, negated or not. */
enum verdict {
	SAYS_FALSE = 0,
	SAYS_TRUE,
	SAYS_UNKNOWN,
};

static __always_inline int is_in(const struct selector *selector, const struct address *address)
{
	const __u64 *is = (const void *)address, *expected = (const void *)&selector->address;
	const __u64 *mask = (const void *)&selector->netmask;

	return (is[0] & mask[0]) == expected[0] && (is[1] & mask[1]) == expected[1];
}

static __always_inline int is_within(const struct selector *selector, __u64 value)
{
	return value >= selector->from && value <= selector->to;
}

static __always_inline __u32 token_verdict(const struct selector *selector, const struct subflow *subflow)
{
	if (!subflow->token)
		return subflow->known & KNOWN_HANDSHAKE ? SAYS_FALSE : SAYS_UNKNOWN;
	return subflow->token == selector->mask || (subflow->initiator_token && subflow->initiator_token == selector->mask);
}

static __always_inline __u32 path_verdict(const struct selector *selector, const struct subflow *subflow)
{
	if (!subflow->ingress)
		return SAYS_UNKNOWN;
	return subflow->path < PATHS && (selector->mask >> (subflow->path & (PATHS - 1)) & 1);
}

/* What is the same for all packets of one direction of the subflow. */
static __always_inline __u32 subflow_verdict(const struct selector *selector, const struct context *context,
					     const struct subflow *subflow, __u32 direction)
{
	const struct subflow_key *key = &context->key;
	int sends = direction == FROM_ENDPOINT;

	switch (selector->kind) {
	case SELECT_ANYTHING:
		return SAYS_TRUE;
	case SELECT_TOKEN:
		return token_verdict(selector, subflow);
	case SELECT_LOCAL_ADDRESS:
		return is_in(selector, &key->local);
	case SELECT_REMOTE_ADDRESS:
		return is_in(selector, &key->remote);
	case SELECT_SOURCE_ADDRESS:
		return is_in(selector, sends ? &key->local : &key->remote);
	case SELECT_DESTINATION_ADDRESS:
		return is_in(selector, sends ? &key->remote : &key->local);
	case SELECT_LOCAL_PORT:
		return is_within(selector, bpf_ntohs(key->local_port));
	case SELECT_REMOTE_PORT:
		return is_within(selector, bpf_ntohs(key->remote_port));
	case SELECT_SOURCE_PORT:
		return is_within(selector, bpf_ntohs(sends ? key->local_port : key->remote_port));
	case SELECT_DESTINATION_PORT:
		return is_within(selector, bpf_ntohs(sends ? key->remote_port : key->local_port));
	case SELECT_DIRECTION:
		return selector->mask >> direction & 1;
	case SELECT_PATH:
		return path_verdict(selector, subflow);
	}
	return SAYS_UNKNOWN; /* of a newer agent */
}

static __always_inline int knows_beginning(const struct context *context, const struct subflow *subflow)
{
	__u32 from_syn = subflow->role == ENDPOINT_INITIATED ? FROM_ENDPOINT : TO_ENDPOINT;

	return !!(subflow->known & (context->direction == from_syn ? KNOWN_SYN : KNOWN_SYN_ACK));
}

/* What differs between packets. */
static __always_inline __u32 packet_verdict(const struct selector *selector, const struct context *context,
					    const struct subflow *subflow)
{
	switch (selector->kind) {
	case SELECT_TYPES:
		return !!(selector->mask & (context->types | context->options.types));
	case SELECT_DATA_SEQUENCE:
		return context->data_known && is_within(selector, context->data_position);
	case SELECT_SUBFLOW_SEQUENCE:
		return context->payload && knows_beginning(context, subflow) && is_within(selector, context->position);
	case SELECT_SUBFLOW_SENT:
		return is_within(selector, context->sent);
	case SELECT_CONNECTION_SENT:
		return is_within(selector, context->connection_sent);
	case SELECT_BACKUP:
		return !!subflow->backup == !!selector->mask;
	}
	return SAYS_UNKNOWN;
}

/* how is 2 * enum assume + direction. */
static __always_inline int holds(const struct selector *selector, const struct context *context,
				 const struct subflow *subflow, __u32 how)
{
	__u32 verdict;

	if (selector->kind < SELECT_TYPES)
		verdict = subflow_verdict(selector, context, subflow, how & 1);
	else if (how >> 1 != ASSUME_NOTHING)
		return how >> 1;
	else
		verdict = packet_verdict(selector, context, subflow);
	if (verdict == SAYS_UNKNOWN)
		return 0;
	return verdict != !!selector->negated;
}

/*
 * The index of the next selector, MATCHED, NOT_MATCHED or ASKS: a program cannot be
 * called from here. A function of its own: the verifier checks it once and not for
 * each step.
 */
__noinline __u32 next_selector(const struct selector *selector, struct context *context, struct subflow *subflow,
			       __u32 how)
{
	if (!selector || !context || !subflow)
		return NOT_MATCHED;
	if (how >> 1 == ASSUME_NOTHING && selector->kind > SELECT_TYPES) {
		context->differs = 1;
		if (selector->kind == SELECT_PROGRAM)
			return ASKS + (selector->index & (MAX_SELECTORS - 1));
	}
	return holds(selector, context, subflow, how) ? selector->if_true : selector->if_false;
}

/* Whether the graph that begins at a selector leads to MATCHED, as far as is assumed. */
__noinline int matches(struct chain *chain, struct context *context, struct subflow *subflow, __u32 at, __u32 how)
{
	int i;

	if (!chain || !context || !subflow)
		return 0;
	for (i = 0; i < MAX_SELECTORS; i++) {
		if (at >= MAX_SELECTORS)
			break;
		at = next_selector(&chain->selector[at], context, subflow, how);
	}
	return at == MATCHED;
}

static __always_inline __u32 follow_type(const struct selector *selector, const struct context *context)
{
	const __u16 *ways = &selector->if_true;
	__u32 fails = is_any(selector->mask & (context->types | context->options.types)) ^ 1 ^ (selector->negated & 1);

	barrier_var(fails);
	return ways[fails & 1];
}

/* What to ask for at progress.outcome; 0 for MATCHED and NOT_MATCHED, which both have this bit. */
static __always_inline __u32 question_at(__u32 at)
{
	__u32 asks = ~at >> 14 & 1;

	barrier_var(asks); /* without a branch, for the verifier */
	return -asks & (MAX_ACTIONS + (at & (MAX_SELECTORS - 1)));
}

/*
 * Whether it leads there for this packet, or to a program that decides: which one is in
 * progress.outcome, else that is 0. The commonest selector is asked without a call.
 */
__noinline int matches_packet(struct chain *chain, struct context *context, struct subflow *subflow, __u32 at)
{
	__u32 how;
	int i;

	if (!chain || !context || !subflow)
		return 0;
	how = 2 * ASSUME_NOTHING + (context->direction & 1);
	for (i = 0; i < MAX_SELECTORS; i++) {
		struct selector *selector;

		if (at >= MAX_SELECTORS)
			break;
		selector = &chain->selector[at];
		at = selector->kind == SELECT_TYPES ? follow_type(selector, context) :
						      0xffff & next_selector(selector, context, subflow, how);
		barrier_var(at);
	}
	context->progress.outcome = question_at(at);
	return at != NOT_MATCHED;
}

/* The first selector on the way that only a packet can answer. */
__noinline __u32 first_in_question(struct chain *chain, struct context *context, struct subflow *subflow, __u32 at,
				   __u32 direction)
{
	int i;

	if (!chain || !context || !subflow)
		return NOT_MATCHED;
	for (i = 0; i < MAX_SELECTORS; i++) {
		if (at >= MAX_SELECTORS || chain->selector[at].kind >= SELECT_TYPES)
			break;
		at = next_selector(&chain->selector[at], context, subflow, direction & 1);
		barrier_var(at);
	}
	return at;
}

#endif
