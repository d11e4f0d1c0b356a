// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Little to verify, much to run. */
#include "braid_program.h"

static long (*const bpf_loop)(__u32 times, void *callback, void *context, __u64 flags) = (void *)181;

static long step(__u32 index, __u64 *sum)
{
	*sum += index ^ *sum >> 3;
	return 0;
}

BRAID_BLOCK(costly)
{
	__u64 sum = value;

	bpf_loop(100000, step, &sum, 0);
	return sum == 12345 ? BRAID_NO_MATCH : BRAID_MATCH;
}

char _license[] SEC("license") = "Dual BSD/GPL";
