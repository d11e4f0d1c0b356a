// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Where data is received: has the pod's acknowledgements ask the sender to send no more
 * than `value` * 10 kB a second over this subflow, by a number of one's own.
 */
#include "braid_option.h"
#include "paces.h"

BRAID_BLOCK(ask_pace)
{
	return braid_write_own(skb, packet, PACE_TYPE, value) ? BRAID_ACTED : BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
