/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What ask_pace.bpf.c says, heed_pace.bpf.c notes and keep_pace.bpf.c does. */
#ifndef PACES_H
#define PACES_H

#include "braid_ends.h"

enum {
	PACE_TYPE = 128, /* of one's own */
	PACE_UNIT = 10000, /* the number is in units of so many bytes a second */
	PACED_SUBFLOWS = 16384,
};

struct asked_pace {
	__u64 at; /* ns: when it was said last */
	__u32 number;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PACED_SUBFLOWS);
	__type(key, struct braid_ends);
	__type(value, struct asked_pace);
} asked_paces SEC(".maps");

#endif
