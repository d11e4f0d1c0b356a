// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Programs each of which has a map that the others do not use. */
#include "braid_program.h"

enum {
	QUEUE = 22,
};

static long (*const bpf_map_push_elem)(void *map, const void *value, __u64 flags) = (void *)87;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} of_first SEC(".maps"), of_second SEC(".maps");

struct {
	__uint(type, QUEUE);
	__uint(max_entries, 4);
	__type(value, __u64);
} of_queued SEC(".maps");

BRAID_BLOCK(first)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&of_first, &zero) ? BRAID_NEXT : BRAID_DROP;
}

BRAID_BLOCK(second)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&of_second, &zero) ? BRAID_NEXT : BRAID_DROP;
}

BRAID_BLOCK(queued)
{
	__u64 one = 1;

	bpf_map_push_elem(&of_queued, &one, 0);
	return BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
