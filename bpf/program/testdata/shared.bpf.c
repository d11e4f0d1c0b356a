// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Programs on packets that share a map, whose declaration is a macro's to change. */
#include "braid_program.h"

#ifndef TYPE
#define TYPE BPF_MAP_TYPE_ARRAY
#endif
#ifndef ENTRIES
#define ENTRIES 4
#endif
#ifndef FLAGS
#define FLAGS 0
#endif
#ifndef KEY
#define KEY __u32
#endif
#ifndef MEMBER
#define MEMBER __u64 count
#endif
#ifndef NAME
#define NAME shared_counts
#endif

enum {
	SHARED_HASH = 1,
	SHARED_PERCPU_HASH = 5,
	SHARED_QUEUE = 22,
};

struct bpf_spin_lock {
	__u32 val;
};

struct shared_count {
	MEMBER;
	__u64 last;
};

struct {
	__uint(type, TYPE);
	__uint(max_entries, ENTRIES);
	__uint(map_flags, FLAGS);
	__type(key, KEY);
	__type(value, struct shared_count);
} NAME SEC(".maps");

BRAID_BLOCK(store)
{
	KEY zero = 0;
	struct shared_count *shared = bpf_map_lookup_elem(&NAME, &zero);

	if (shared)
		shared->last++;
	return BRAID_NEXT;
}

BRAID_BLOCK(add)
{
	KEY zero = 0;
	struct shared_count *shared = bpf_map_lookup_elem(&NAME, &zero);

	if (shared)
		__sync_fetch_and_add(&shared->last, 1);
	return BRAID_NEXT;
}

BRAID_BLOCK(load)
{
	KEY zero = 0;
	struct shared_count *shared = bpf_map_lookup_elem(&NAME, &zero);

	/* Into the value, by a helper. */
	if (shared)
		bpf_skb_load_bytes(skb, 0, &shared->last, sizeof(shared->last));
	return BRAID_NEXT;
}

BRAID_BLOCK(update)
{
	struct shared_count next = {};
	KEY zero = 0;

	next.last = 7;
	bpf_map_update_elem(&NAME, &zero, &next, BPF_ANY);
	return BRAID_NEXT;
}

BRAID_BLOCK(erase)
{
	KEY zero = 0;

	bpf_map_delete_elem(&NAME, &zero);
	return BRAID_NEXT;
}

/* Acts where another program has written. */
BRAID_BLOCK(look)
{
	KEY zero = 0;
	struct shared_count *shared = bpf_map_lookup_elem(&NAME, &zero);

	return shared && shared->last ? BRAID_ACTED : BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
