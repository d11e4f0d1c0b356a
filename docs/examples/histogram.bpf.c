// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * An actor: counts packets by the size of their payload, in powers of two, in a
 * map of its own: bpftool map dump name payload_sizes.
 */
#include "braid_program.h"

enum {
	SIZES = 18,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SIZES);
	__type(key, __u32);
	__type(value, __u64);
} payload_sizes SEC(".maps");

static __always_inline __u32 size_class(__u32 bytes)
{
	__u32 class = 0;

#pragma clang loop unroll(full)
	for (int i = 0; i < SIZES - 1; i++)
		class += bytes >> i != 0;
	return class;
}

BRAID_BLOCK(histogram)
{
	__u32 class = size_class(packet->payload);
	__u64 *count = bpf_map_lookup_elem(&payload_sizes, &class);

	if (count)
		++*count;
	return BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
