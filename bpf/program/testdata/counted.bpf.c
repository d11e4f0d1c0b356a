// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Counts its calls in a map of its own. */
#include "braid_program.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} counted_calls SEC(".maps");

BRAID_BLOCK(counted)
{
	__u32 zero = 0;
	__u64 *calls = bpf_map_lookup_elem(&counted_calls, &zero);

	if (calls)
		__sync_fetch_and_add(calls, 1);
	return BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
