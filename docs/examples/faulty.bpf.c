// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A faulty block: it reads the packet without asking whether the byte is there.
 * The node refuses it, and the policy's status says what the verifier said.
 */
#include "braid_program.h"

BRAID_BLOCK(faulty)
{
	const __u8 *byte = (void *)(unsigned long)skb->data;

	return byte[packet->transport] ? BRAID_MATCH : BRAID_NO_MATCH;
}

char _license[] SEC("license") = "Dual BSD/GPL";
