// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Two blocks in one object, with a map each. */
#include "braid_program.h"

struct counter {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
};

struct counter first_count SEC(".maps");
struct counter second_count SEC(".maps");

static __always_inline void count(void *map)
{
	__u32 zero = 0;
	__u64 *counter = bpf_map_lookup_elem(map, &zero);

	if (counter)
		__sync_fetch_and_add(counter, 1);
}

BRAID_BLOCK(first)
{
	count(&first_count);
	return BRAID_NEXT;
}

BRAID_BLOCK(second)
{
	count(&second_count);
	return BRAID_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
