/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Subflows of a connection whose receiver's window is too small for paths that differ: what
 * came early on the good path fills it until the other one has delivered what belongs
 * before. All of them go by the good path then, for as long as that gives more.
 *
 * Who decides is the agent: see agent/narrow. The program tells it of flows that send much,
 * once in a slice of time, and takes over then what the agent says of them. A flow keeps
 * what was said of it last, also while the agent is away.
 */
#ifndef BRAID_UPLINK_TOGETHER_H
#define BRAID_UPLINK_TOGETHER_H

#include "silence.h"

/* Whether the node has flows share paths. As it is fixed before the verifier looks, a program
 * that has none share does nothing for it. */
const volatile __u8 may_share = 1;

enum busy_limit {
	MAX_BUSY_FLOWS = 4096,
	BUSY_BYTES = 16 << 10, /* sent in a slice */
};

/* A flow that sends much. */
struct busy_flow {
	__u32 slice;    /* the last one in which it did */
	__u8 path;      /* of what it sent last */
	__u8 together;  /* the agent's word: its bits of flow_subtype */
	__u16 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_BUSY_FLOWS);
	__type(key, struct flow_key);
	__type(value, struct busy_flow);
} busy_flows SEC(".maps");

/* The verifier of Linux 6.1 takes no key for maps that is an argument. */
__noinline int note_busy(struct flow *flow, const struct flow_key *ends)
{
	struct busy_flow *busy, begun = {};
	struct flow_key key;
	__u8 together = 0;

	if (!flow || !ends)
		return 0;
	key = *ends;
	busy = bpf_map_lookup_elem(&busy_flows, &key);
	if (busy) {
		together = busy->together & TOGETHER_BITS;
		busy->path = flow->last;
		busy->slice = ticks() >> SLICE;
	} else {
		begun.path = flow->last;
		begun.slice = ticks() >> SLICE;
		bpf_map_update_elem(&busy_flows, &key, &begun, BPF_ANY);
	}
	if ((flow->subtype & TOGETHER_BITS) != together)
		flow->subtype = (flow->subtype & ~TOGETHER_BITS) | together;
	return 1;
}

/* Notes what this end sends, and whether that is much; true where it waits for an answer for long. */
static __always_inline int note_leaving(struct __sk_buff *skb, struct flow *flow, const struct flow_key *key,
					const struct packet *packet)
{
	__u32 counted = flow->counted_sent, before = flow->sent - counted;
	int waits = note_sent(skb, flow, packet);

	if (may_share && unlikely(before < BUSY_BYTES && flow->sent - counted >= BUSY_BYTES))
		note_busy(flow, key);
	return waits;
}

/* Of the paths that a flow may take the one that its connection's subflows share, if they do. */
static __always_inline __u8 shared_path(const struct flow *flow, __u8 paths)
{
	__u8 shared;

	if (!may_share || likely(!(flow->subtype & TOGETHER)))
		return paths;
	shared = paths & 1 << (flow->subtype >> TOGETHER_PATH & (MAX_PATHS - 1));
	return shared ? shared : paths;
}

#endif
