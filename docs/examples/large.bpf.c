// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* A selector: packets with at least `value` bytes of payload. */
#include "braid_program.h"

BRAID_BLOCK(large)
{
	return packet->payload >= value ? BRAID_MATCH : BRAID_NO_MATCH;
}

char _license[] SEC("license") = "Dual BSD/GPL";
