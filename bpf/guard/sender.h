/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whose packet it is that leaves the node: the endpoint's row, by where the packet came
 * from, which nobody can forge, and else by its source address. 0 is nobody who is
 * guarded.
 */
#ifndef BRAID_GUARD_SENDER_H
#define BRAID_GUARD_SENDER_H

#include "guard.h"
#include "origin.h"

static __always_inline __u32 row_of_interface(__u32 from)
{
	__u32 *row = from ? bpf_map_lookup_elem(&interfaces, &from) : 0;

	return row ? *row : 0;
}

static __always_inline __u32 row_of_address(const struct address *source, enum source kind)
{
	__u32 *row;

	if (kind != FROM_IPV4 && kind != FROM_IPV6)
		return 0;
	row = bpf_map_lookup_elem(&addresses, source);
	return row ? *row : 0;
}

/* Whether the number of an endpoint, which all of them have, is that of a row in use. */
static __always_inline int is_guarded(__u32 number)
{
	struct allowance *allowance = bpf_map_lookup_elem(&allowances, &number);

	return allowance && (allowance->tenant || allowance->flags || allowance->price);
}

#endif
