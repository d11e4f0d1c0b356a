// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Has a map of the name of one of Braid's. */
#include "braid_program.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u32);
} subflows SEC(".maps");

BRAID_BLOCK(named)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&subflows, &zero) ? BRAID_DROP : BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
