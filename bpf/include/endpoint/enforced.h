/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the cluster's rules asked for and rules of tenants do not undo. It lasts as
 * long as the effect itself: also beyond a change of rules, if the cluster's still
 * ask for it.
 */
#ifndef BRAID_ENFORCED_H
#define BRAID_ENFORCED_H

#include "subflow.h"

/* Bits of subflow.bound. Those of rates are shifted by the direction. */
enum enforced {
	ENFORCED_BACKUP = 1 << 0,
	ENFORCED_SUPPRESSION = 1 << 1,  /* addresses announced on this subflow */
	ENFORCED_RELEASE = 1 << 2,  /* they are given back */
	ENFORCED_SUPPRESSED = 1 << 3,  /* what the cluster's rules hid of the connection stays so */
	ENFORCED_RATE = 1 << 4,    /* a rule of the cluster limits it */
	EXCLUSIVE_RATE = 1 << 6,   /* and no rule of a tenant may take its place */
	TIGHTENED_RATE = 1 << 8,     /* the limit is a tenant's lower one */
};

static __always_inline void enforce(struct subflow *subflow, __u32 kinds)
{
	if ((subflow->bound & kinds) != kinds)
		__sync_fetch_and_or(&subflow->bound, kinds);
}

static __always_inline void stop_enforcing(struct subflow *subflow, __u32 kinds)
{
	if (subflow->bound & kinds)
		__sync_fetch_and_and(&subflow->bound, ~kinds);
}

static __always_inline int is_enforced(const struct action *action)
{
	return action->flag & FLAG_ENFORCED;
}

/* enum rule_enforces of all of these rules. */
__noinline int enforced_by(struct chain *chain, __u64 rules)
{
	__u32 i, kinds = 0;

	if (!chain)
		return 0;
	for (i = 0; i < MAX_RULES; i++)
		if (rules >> i & 1)
			kinds |= chain->rule[i].enforces;
	return kinds;
}

/* When a subflow was classified anew: what is no longer asked for binds no more. */
static __always_inline void keep_enforced(struct chain *chain, struct subflow *subflow)
{
	__u32 asked = enforced_by(chain, subflow->sure[0] | subflow->sure[1] | subflow->maybe[0] | subflow->maybe[1]);
	__u32 kept = 0;

	if (asked & ENFORCES_BACKUP)
		kept |= ENFORCED_BACKUP;
	if (asked & ENFORCES_SUPPRESSION)
		kept |= ENFORCED_SUPPRESSION;
	if (asked & ENFORCES_RELEASE)
		kept |= ENFORCED_RELEASE;
	if (asked & ENFORCES_RATE)
		kept |= (ENFORCED_RATE | EXCLUSIVE_RATE | TIGHTENED_RATE) * 3; /* of both directions */
	stop_enforcing(subflow, ~kept);
	if (enforced_by(chain, ~0ULL) & ENFORCES_SUPPRESSION)
		enforce(subflow, ENFORCED_SUPPRESSED);
}

#endif
