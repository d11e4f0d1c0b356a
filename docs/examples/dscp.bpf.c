// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* A selector: packets whose differentiated services code point is `value`. */
#include "braid_program.h"

BRAID_BLOCK(dscp)
{
	return braid_dscp(skb, packet) == value ? BRAID_MATCH : BRAID_NO_MATCH;
}

char _license[] SEC("license") = "Dual BSD/GPL";
