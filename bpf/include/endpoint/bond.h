/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the cluster's rules asked for and rules of tenants do not undo. It lasts as
 * long as the effect itself: also beyond a change of rules, if the cluster's still
 * ask for it.
 */
#ifndef BRAID_BOND_H
#define BRAID_BOND_H

#include "subflow.h"

/* Bits of subflow.bound. Those of rates are shifted by the direction. */
enum bond {
	BOUND_BACKUP = 1 << 0,
	BOUND_HIDING = 1 << 1,  /* addresses announced on this subflow */
	BOUND_GIVING = 1 << 2,  /* they are given back */
	BOUND_HIDDEN = 1 << 3,  /* what the cluster's rules hid of the connection stays so */
	BOUND_RATE = 1 << 4,    /* a rule of the cluster limits it */
	CLOSED_RATE = 1 << 6,   /* and no rule of a tenant may take its place */
	LENT_RATE = 1 << 8,     /* the limit is a tenant's lower one */
};

static __always_inline void bind(struct subflow *subflow, __u32 bonds)
{
	if ((subflow->bound & bonds) != bonds)
		__sync_fetch_and_or(&subflow->bound, bonds);
}

static __always_inline void unbind(struct subflow *subflow, __u32 bonds)
{
	if (subflow->bound & bonds)
		__sync_fetch_and_and(&subflow->bound, ~bonds);
}

static __always_inline int binds(const struct action *action)
{
	return action->flag & FLAG_BINDING;
}

/* enum rule_binds of all of these rules. */
__noinline int bonds_of(struct chain *chain, __u64 rules)
{
	__u32 i, bonds = 0;

	if (!chain)
		return 0;
	for (i = 0; i < MAX_RULES; i++)
		if (rules >> i & 1)
			bonds |= chain->rule[i].binds;
	return bonds;
}

/* When a subflow was classified anew: what is no longer asked for binds no more. */
static __always_inline void keep_bonds(struct chain *chain, struct subflow *subflow)
{
	__u32 asked = bonds_of(chain, subflow->sure[0] | subflow->sure[1] | subflow->maybe[0] | subflow->maybe[1]);
	__u32 kept = 0;

	if (asked & BINDS_BACKUP)
		kept |= BOUND_BACKUP;
	if (asked & BINDS_HIDING)
		kept |= BOUND_HIDING;
	if (asked & BINDS_GIVING)
		kept |= BOUND_GIVING;
	if (asked & BINDS_RATE)
		kept |= (BOUND_RATE | CLOSED_RATE | LENT_RATE) * 3; /* of both directions */
	unbind(subflow, ~kept);
	if (bonds_of(chain, ~0ULL) & BINDS_HIDING)
		bind(subflow, BOUND_HIDDEN);
}

#endif
