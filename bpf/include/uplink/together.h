/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Subflows of a connection whose receiver's window is too small for paths that differ: what
 * came early on the good path fills it until the other one has delivered what belongs
 * before. All of them go by the good path then, for as long as that gives more.
 *
 * Who decides is the agent: see agent/narrow. The program tells it of flows that send much or
 * share a path, once in a slice of time, and takes over then what the agent says of them. A flow
 * keeps what was said of it last, also while the agent is away.
 */
#ifndef BRAID_UPLINK_TOGETHER_H
#define BRAID_UPLINK_TOGETHER_H

#include "silence.h"

/* Whether the node has flows share paths. As it is fixed before the verifier looks, a program
 * that has none share does nothing for it. */
const volatile __u8 may_share = 1;

enum busy_limit {
	MAX_BUSY_FLOWS = 4096,
};

/*
 * A flow that sends much, and has done so for longer than a slice of time. It stays one while it
 * sends BUSY_BYTES again within the slices that the agent takes for recent.
 */
struct busy_flow {
	__u32 slice;    /* the last one at whose beginning it had done so */
	__u8 path;      /* of what it sent last */
	__u8 together;  /* the agent's word: its bits of flow_subtype */
	__u16 pad;
	__u32 sent;     /* flow.sent as it was then */
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
	__u8 now = 0;

	if (!flow || !ends)
		return 0;
	key = *ends;
	busy = bpf_map_lookup_elem(&busy_flows, &key);
	if (busy) {
		now = NOTED | (busy->together & TOGETHER_BITS);
		busy->path = flow->last;
		if (flow->sent - busy->sent >= BUSY_BYTES) {
			busy->sent = flow->sent;
			busy->slice = ticks() >> SLICE;
		}
	} else if (!(flow->subtype & NOTED)) { /* else it was forgotten, and may send little */
		now = NOTED;
		begun.path = flow->last;
		begun.slice = ticks() >> SLICE;
		begun.sent = flow->sent;
		bpf_map_update_elem(&busy_flows, &key, &begun, BPF_ANY);
	}
	flow->subtype = (flow->subtype & ~(TOGETHER_BITS | NOTED | SENDS_MUCH)) | now;
	return 1;
}

/*
 * On a path that lets nothing through no slice of time ends for a flow: it may be told to leave
 * it. One that shares none has answers in each slice, unless it stands still.
 */
static __always_inline int is_to_be_told(const struct flow *flow)
{
	__u32 slices;

	if (likely(!(flow->subtype & (SENDS_MUCH | NOTED))))
		return 0;
	slices = (ticks() >> SLICE) - flow->counted;
	return flow->subtype & SENDS_MUCH || slices > 1 || (slices && flow->subtype & TOGETHER);
}

/* Notes what this end sends, and tells of a flow that sends much; true where it waits for an answer for long. */
static __always_inline int note_leaving(struct __sk_buff *skb, struct flow *flow, const struct flow_key *key,
					const struct packet *packet)
{
	if (may_share && unlikely(is_to_be_told(flow)) && likely(origin_of(skb) == flow->from))
		note_busy(flow, key);
	return note_sent(skb, flow, packet);
}

/* Of the paths that a flow may take the one that its connection's subflows share, if they do. */
static __always_inline __u8 shared_path(const struct flow *flow, __u8 paths)
{
	__u8 shared;

	if (!may_share || likely(!(flow->subtype & TOGETHER)) || rests(flow))
		return paths;
	shared = paths & 1 << together_path(flow);
	return shared ? shared : paths;
}

#endif
