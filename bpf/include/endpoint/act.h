/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The actions of rules, by their kinds. */
#ifndef BRAID_ACT_H
#define BRAID_ACT_H

#include "report.h"
#include "run_program.h"
#include "settle.h"

static __always_inline int report_for(struct context *context, struct subflow *subflow, __u8 due)
{
	ask_for_report(subflow, due, context->rule);
	return UNTOUCHED;
}

static __always_inline int act_record(struct subflow *subflow)
{
	subflow->recorded = 1;
	return UNTOUCHED;
}

/* For the programs at the sockets, which know the rules by their numbers. */
static __always_inline int act_stack(const struct context *context, struct subflow *subflow)
{
	subflow->stack |= 1ULL << (context->rule & (MAX_RULES - 1));
	return UNTOUCHED;
}

/* enum result, or NOT_SELECTED. */
static __always_inline int act(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
			       const struct action *action)
{
	switch ((enum action_kind)action->kind) { /* the compiler refuses one that is missing */
	case ACTION_RATE_LIMIT:
		return act_rate_limit(skb, context, subflow, action);
	case ACTION_SET_BACKUP:
		return act_set_backup(skb, context, subflow, action);
	case ACTION_SUPPRESS_ADD_ADDR:
		return act_suppress_add_addr(skb, context, subflow, action);
	case ACTION_RELEASE_ADD_ADDR:
		return act_release_add_addr(skb, context, subflow, action);
	case ACTION_REPORT_CONNECTION:
		return report_for(context, subflow, DUE_CONNECTION);
	case ACTION_REPORT_SUBFLOW:
		return report_for(context, subflow, DUE_SUBFLOW);
	case ACTION_RECORD:
		return act_record(subflow);
	case ACTION_DROP:
		return DROPPED;
	case ACTION_RESET:
		return act_refuse(skb, context, subflow, action);
	case ACTION_RUN_PROGRAM:
		return act_run_program(skb, context, subflow, action);
	case ACTION_STACK:
		return act_stack(context, subflow);
	}
	return UNTOUCHED;
}

#endif
