/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a chain hands to a block of one's own: copies, filled anew for each call.
 * Nothing that a block writes here is read back; its verdict is what it returns.
 */
#ifndef BRAID_PROGRAM_CONTEXT_H
#define BRAID_PROGRAM_CONTEXT_H

#include "context.h"

/* What a block returns. Anything else counts as BRAID_NEXT. */
enum braid_verdict {
	BRAID_NEXT = 0,     /* go on; also: the packet matches */
	BRAID_MATCH = 0,
	BRAID_ACTED = 1,    /* go on; the packet was changed, and is counted as such */
	BRAID_DROP = 2,     /* the packet ends here */
	BRAID_NO_MATCH = 3, /* leave out the remaining actions of the rule */
};

enum {
	BRAID_NO_PATH = 0xff,
};

/* One direction of a subflow. */
struct braid_traffic {
	__u64 bytes;   /* of payload, before this packet */
	__u64 packets;
	__u64 retransmitted; /* packets */
};

/* The record of the packet's subflow; what is not known is 0. */
struct braid_subflow {
	__u32 token;           /* of the connection's responder */
	__u32 initiator_token;
	__u32 rtt;             /* smoothed, in microseconds */
	__u8 path;             /* or BRAID_NO_PATH */
	__u8 backup;           /* 1 when it is a backup */
	__u8 window_scale[2];  /* 1 + shift, of what FROM_ENDPOINT and TO_ENDPOINT carry */
	struct braid_traffic traffic[2]; /* FROM_ENDPOINT, TO_ENDPOINT */
};

struct block_input {
	struct context packet;
	struct braid_subflow subflow;
	__s64 value; /* the action's parameter */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct block_input);
} block_context SEC(".maps");

#endif
