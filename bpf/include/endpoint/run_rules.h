/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The rules that concern a packet, in their order.
 *
 * The functions are global where the verifier would otherwise check them once for
 * each rule, and their frames are small: the deepest chain of calls, into a program
 * of one's own or into an edit of options, shares 512 bytes of stack.
 */
#ifndef BRAID_RUN_RULES_H
#define BRAID_RUN_RULES_H

#include "act.h"
#include "count.h"
#include "lookup.h"

enum {
	FIRST_RULES = 8,           /* are looked at before the loop that can do all */
	STEADY_RULES = 32,         /* those behind are no part of what steady.h keeps */
	MUST_ASK = 16,             /* besides enum result: a program decides whether a rule matches */
};

/* What the rules asked for has changed: each may have to ask again. */
static __always_inline void unlatch(struct subflow *subflow)
{
	subflow->latched[FROM_ENDPOINT] = 0;
	subflow->latched[TO_ENDPOINT] = 0;
}

/*
 * The number of the lowest bit of a word that is not 0. The compiler looks it up in
 * a table, whose values the verifier does not know.
 */
static __always_inline __u32 lowest_bit(__u64 word)
{
	__u32 bit = __builtin_ctzll(word);

	barrier_var(bit);
	return bit & (MAX_RULES - 1);
}

/*
 * As matches_packet(). Looks at what differs between packets; what does not was decided by
 * the memo.
 */
static __always_inline int is_selected(struct chain *chain, struct context *context, struct subflow *subflow, __u32 rule)
{
	__u32 direction = context->direction & 1, at = chain->rule[rule].first_selector;

	if (rule < REMEMBERED_RULES)
		at = subflow->begin[direction][rule & (REMEMBERED_RULES - 1)];
	return matches_packet(chain, context, subflow, at);
}

/*
 * Rules whose actions last are done with once they have been noted, and then only
 * counted, but for an announcement of an address, which is hidden where it is seen.
 * Once in a tick they are asked all the same: two processors may have noted
 * the opposite at once.
 */
static __always_inline int is_latched(const struct context *context, const struct subflow *subflow, __u32 rule)
{
	return (subflow->latched[context->direction & 1] >> rule & 1) && !context->fresh_way &&
	       !(context->options.types & TYPE_ADD_ADDR);
}

static __always_inline int lasts(const struct subflow *subflow, __u32 kind)
{
	return (LASTING_ACTIONS >> (kind & 31) & 1) && !(kind == ACTION_SUPPRESS_ADD_ADDR && subflow->addresses.releasing);
}

/*
 * Begins with the rule's actions, or with a program that its match asks, in the place of
 * one: progress.outcome has which. Without a branch, for the verifier.
 */
static __always_inline void begin_actions(const struct rule *rule, struct context *context, struct progress *at)
{
	__u32 question, asks;

	barrier(); /* reads it again also where it was set just now */
	question = at->outcome;
	asks = is_any(question);
	barrier_var(asks);
	context->rule = at->rule;
	at->lasting = 1;
	at->action = (rule->first_action & (asks - 1)) + question;
	at->actions = (rule->actions & (asks - 1)) + asks;
	at->outcome = UNTOUCHED;
}

/* Goes on to the next rule; one that does not match has no actions left. */
static __always_inline void next_rule(struct chain *chain, struct context *context, struct subflow *subflow,
				     struct progress *at)
{
	const struct rule *rule;

	at->rule = lowest_bit(at->left);
	at->left &= at->left - 1;
	at->outcome = 0;
	rule = &chain->rule[at->rule];
	if (!(at->sure >> at->rule & 1) && !is_selected(chain, context, subflow, at->rule))
		return;
	begin_actions(rule, context, at);
}

/* A lasting action that changed something changes what the others do. */
static __always_inline void note_lasting(struct context *context, struct subflow *subflow, struct progress *at,
					 __u32 kind, int result)
{
	int is_lasting = lasts(subflow, kind);

	if (!is_lasting || result != UNTOUCHED)
		at->lasting = 0;
	if (is_lasting && result != UNTOUCHED) {
		unlatch(subflow);
		context->stirred = 1;
	}
}

/* A rule's actions are done. */
static __always_inline void end_rule(struct counters *counters, struct context *context, struct subflow *subflow,
				     const struct progress *at)
{
	count(counters, context, at->rule, at->outcome);
	subflow->latched[context->direction & 1] |= (__u64)(at->lasting & 1) << (at->rule & (MAX_RULES - 1));
}

/*
 * Asks the program for which a match waits, in the place of an action, and goes on from
 * there. Such a rule is never latched: its program is asked of each packet. What does not match
 * is no rule's whose end is noted.
 */
__noinline int ask_program(struct __sk_buff *skb, struct chain *chain, struct counters *counters, struct context *context,
			   struct subflow *subflow)
{
	struct progress *at;
	__u32 index, leads, rule;

	if (!chain || !counters || !context || !subflow)
		return UNTOUCHED;
	at = &context->progress;
	rule = at->rule & (MAX_RULES - 1);
	index = (at->action++ - MAX_ACTIONS) & (MAX_SELECTORS - 1);
	at->actions--;
	barrier_var(rule);
	barrier_var(index);
	leads = answer_of(skb, context, subflow, &chain->selector[index]);
	if (matches_packet(chain, context, subflow, leads))
		begin_actions(&chain->rule[rule], context, at);
	else
		at->rule = MAX_RULES;
	at->lasting = 0;
	if (!at->actions)
		end_rule(counters, context, subflow, at);
	return UNTOUCHED;
}

static __always_inline int next_action(struct __sk_buff *skb, struct chain *chain, struct context *context,
				       struct subflow *subflow, struct progress *at)
{
	__u32 index = at->action++;
	int result;

	at->actions--;
	barrier_var(index);
	if (index >= MAX_ACTIONS)
		return UNTOUCHED;
	result = act(skb, context, subflow, &chain->action[index]);
	note_lasting(context, subflow, at, chain->action[index].kind, result);
	if (result == NOT_SELECTED)
		at->actions = 0;
	else if (result != UNTOUCHED)
		at->outcome = ACTED;
	return result;
}

/* As is_selected(); a selector of types that decides is asked without a call. */
static __always_inline int is_selected_first(struct chain *chain, struct context *context, struct subflow *subflow,
					     __u32 rule)
{
	__u32 at = subflow->begin[context->direction & 1][rule & (REMEMBERED_RULES - 1)];

	if (rule >= REMEMBERED_RULES)
		return is_selected(chain, context, subflow, rule);
	if (likely(at < MAX_SELECTORS) && chain->selector[at].kind == SELECT_TYPES)
		at = follow_type(&chain->selector[at], context);
	return at < MAX_SELECTORS ? matches_packet(chain, context, subflow, at) : at == MATCHED;
}

/* For steady.h. Without a branch: the verifier would follow both ways of each turn. */
static __always_inline void note_counted(struct context *context, __u32 rule)
{
	context->differs |= rule / STEADY_RULES;
	context->progress.counted |= 1U << (rule & (STEADY_RULES - 1));
}

/* Counts the first rules as long as they are latched or do not match, and gives those that are left. */
static __always_inline __u64 count_latched(struct chain *chain, struct counters *counters, struct context *context,
					   struct subflow *subflow, __u64 sure, __u64 left)
{
	int i;

	for (i = 0; i < FIRST_RULES; i++) {
		__u32 rule;

		if (!left)
			break;
		rule = lowest_bit(left);
		if (sure >> rule & 1 || is_selected_first(chain, context, subflow, rule)) {
			if (!is_latched(context, subflow, rule)) /* or it asks a program */
				break;
			count_hit(counters, context, rule);
			note_counted(context, rule);
		}
		left &= left - 1;
	}
	return left;
}

/*
 * Goes on to the next rule where the last one is done, and to an action of it, if it has any
 * left; MUST_ASK where ask_program() is to go on. A function of its own, which the verifier
 * follows once: it follows each turn of a loop.
 */
__noinline int take_turn(struct __sk_buff *skb, struct chain *chain, struct counters *counters, struct context *context,
			 struct subflow *subflow)
{
	struct progress *at;
	int result;

	if (!chain || !counters || !context || !subflow)
		return UNTOUCHED;
	at = &context->progress;
	if (!at->actions)
		next_rule(chain, context, subflow, at);
	if (!at->actions)
		return UNTOUCHED;
	if (at->action >= MAX_ACTIONS)
		return MUST_ASK;
	result = next_action(skb, chain, context, subflow, at);
	if (result == DROPPED || !at->actions)
		end_rule(counters, context, subflow, at);
	return result;
}

/*
 * The rules that concern the packet, in their order, until one drops it. One loop
 * over rules, the programs that their matches ask, and actions: where it is is kept in memory.
 */
static __always_inline int run_rules(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	struct progress *at;
	struct counters *counters;
	struct chain *chain;
	__u64 sure, left;
	int i, result;

	chain = chain_of(context);
	counters = counters_of(context);
	if (!chain || !counters)
		return UNTOUCHED;
	at = &context->progress;
	sure = subflow->sure[context->direction & 1];
	left = count_latched(chain, counters, context, subflow, sure, sure | subflow->maybe[context->direction & 1]);
	if (!left)
		return UNTOUCHED;
	context->differs = 1;
	at->sure = sure;
	at->left = left;
	at->actions = 0;
	for (i = 0; i < MAX_RULES + MAX_ACTIONS && (at->actions | at->left); i++) {
		result = take_turn(skb, chain, counters, context, subflow);
		if (result == DROPPED)
			return DROPPED;
		if (result == MUST_ASK) /* from here: the verifier limits what lies above a program's frame */
			ask_program(skb, chain, counters, context, subflow);
	}
	return UNTOUCHED;
}

#endif
