// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Much to verify: every step is followed. */
#include "braid_program.h"

BRAID_BLOCK(long_winded)
{
	__u32 sum = packet->sequence;

#pragma clang loop unroll(disable)
	for (int i = 0; i < 16000; i++) {
		sum = sum * 31 + i;
		if (sum == 7)
			return BRAID_NO_MATCH;
	}
	return BRAID_MATCH;
}

char _license[] SEC("license") = "Dual BSD/GPL";
