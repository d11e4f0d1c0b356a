/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What rules ask of a socket's peer (at: Peer), in the form of requests.h. The program that
 * knows which rules match a subflow notes it, and the one that writes requests asks for it.
 * They share the map through the agent (agent/pace/shared), and need no agent otherwise.
 */
#ifndef BRAID_ASKED_BY_RULES_H
#define BRAID_ASKED_BY_RULES_H

#include "tcp_sockets.h"

#define RULES_LOOK_AFTER 500000000ULL   /* ns: the rules are asked again */
#define RULES_STALE_AFTER 3000000000ULL /* ns: nobody asks them any more */

struct asked_by_rules {
	__u64 looked; /* when the rules were asked */
	__u32 rate;   /* 0: none */
	__u32 congestion_control; /* 0: none */
	__u32 schedule; /* 0: none */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct asked_by_rules);
} asked_by_rules SEC(".maps");

#endif
