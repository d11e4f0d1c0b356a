// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Asks for a map that is pinned by its name, and so shared. */
#include "braid_program.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__uint(pinning, 1);
	__type(key, __u32);
	__type(value, __u32);
} shared SEC(".maps");

BRAID_BLOCK(pinned)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&shared, &zero) ? BRAID_DROP : BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
