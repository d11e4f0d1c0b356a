// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Too slow, and declares what it shares otherwise than shared.bpf.c. */
#include "braid_program.h"

static long (*const bpf_loop)(__u32 times, void *callback, void *context, __u64 flags) = (void *)181;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u64);
} shared_counts SEC(".maps");

static long step(__u32 index, __u64 *sum)
{
	*sum += index ^ *sum >> 3;
	return 0;
}

BRAID_BLOCK(costly)
{
	__u64 sum = value, *shared;
	__u32 zero = 0;

	bpf_loop(100000, step, &sum, 0);
	shared = bpf_map_lookup_elem(&shared_counts, &zero);
	if (shared)
		*shared = sum;
	return BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
