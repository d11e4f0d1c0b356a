// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Writes the packet's mark, by which other programs go. */
#include "braid_program.h"

BRAID_BLOCK(marking)
{
	skb->mark = 0xdead;
	skb->priority = 7;
	return BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
