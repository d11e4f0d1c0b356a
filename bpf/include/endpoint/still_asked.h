/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whether a rule that concerns a subflow may still ask for an action. A new chain
 * lets go of what the old one asked for; what the new one asks for as well must
 * not be undone in between, although the packet that says so may be long in
 * coming (a repeated ADD_ADDR takes minutes).
 */
#ifndef BRAID_STILL_ASKED_H
#define BRAID_STILL_ASKED_H

#include "subflow.h"

enum {
	ACTIONS_LOOKED_AT = 8,   /* of each rule, which the API gives no more */
	GRACE = 100 * 1000000,   /* ns in which both directions are classified anew */
};

/* 1 when the rule has an action of this kind. A function of its own: the verifier would follow
 * its turns for each rule. */
__noinline int rule_asks(struct chain *chain, __u32 index, __u32 kind)
{
	__u32 first, actions, i;

	if (!chain || index >= MAX_RULES)
		return 0;
	first = chain->rule[index].first_action;
	actions = chain->rule[index].actions;
	for (i = 0; i < ACTIONS_LOOKED_AT; i++)
		if (i < actions && chain->action[(first + i) & (MAX_ACTIONS - 1)].kind == kind)
			return 1;
	return 0;
}

/* 1 when one of these rules of the chain has an action of this kind. */
__noinline int chain_asks(struct chain *chain, __u64 rules, __u32 kind)
{
	__u32 i;

	if (!chain)
		return 0;
	for (i = 0; i < MAX_RULES; i++)
		if (rules >> i & 1 && rule_asks(chain, i, kind))
			return 1;
	return 0;
}

static __always_inline int rules_ask(__u64 word, __u64 rules, __u32 kind)
{
	__u32 slot = CHAIN_SLOT(word), zero = 0;
	void *holder = bpf_map_lookup_elem(&chains, &slot);
	struct chain *chain = holder ? bpf_map_lookup_elem(holder, &zero) : 0;

	return chain ? chain_asks(chain, rules, kind) : 0;
}

enum asked {
	ASKED_PERHAPS, /* too early to tell */
	ASKED_STILL,
	ASKED_NO_MORE,
};

/* since: when the rules were asked anew. */
static __always_inline enum asked is_asked(const struct context *context, const struct subflow *subflow, __u64 since,
					   __u32 kind)
{
	__u64 rules = subflow->sure[0] | subflow->sure[1] | subflow->maybe[0] | subflow->maybe[1];

	if (context->now - since <= GRACE)
		return ASKED_PERHAPS;
	return rules_ask(subflow->word, rules, kind) ? ASKED_STILL : ASKED_NO_MORE;
}

#endif
