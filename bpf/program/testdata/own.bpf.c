// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Numbers of one's own: `value` has the type above its 16 bits. */
#include "braid_option.h"

BRAID_BLOCK(write_own)
{
	return braid_write_own(skb, packet, value >> 16, value & 0xffff) ? BRAID_ACTED : BRAID_NEXT;
}

/* Matches where the packet has the number. */
BRAID_BLOCK(read_own)
{
	__u16 number = 0;

	return braid_read_own(skb, packet, value >> 16, &number) && number == (value & 0xffff) ? BRAID_MATCH : BRAID_NO_MATCH;
}

char _license[] SEC("license") = "Dual BSD/GPL";
