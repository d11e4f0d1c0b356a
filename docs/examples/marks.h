/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What count_marks.bpf.c measures and yield.bpf.c decides by: both declare it alike. */
#ifndef MARKS_H
#define MARKS_H

#include "braid_ends.h"

enum {
	MARKED_SUBFLOWS = 16384,
};

/* Of the packets that came to a subflow since its schedule looked last. */
struct marks {
	__u32 packets;
	__u32 marked;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MARKED_SUBFLOWS);
	__type(key, struct braid_ends);
	__type(value, struct marks);
} marks SEC(".maps");

#endif
