/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Handshakes: what only said SYN, in a small table of its own. A flow begins with the
 * third packet, by which the initiator shows that it knows the number of the SYN/ACK. A
 * forger does not see that, so its SYNs charge nobody and end no living flow.
 */
#ifndef BRAID_UPLINK_HANDSHAKE_H
#define BRAID_UPLINK_HANDSHAKE_H

#include "flow.h"

enum {
	HANDSHAKE_SLOTS = 4096,
	FAST_OPEN = 1 << 16, /* a SYN has less data than that */
};

/*
 * The handshakes that began last, by a hash of their ends. It spares all packets of no
 * flow the look-up; a slot that another handshake took costs one and nothing else.
 */
struct recent_handshakes {
	__u32 begun; /* so many, ever */
	__u32 pad[15];
	__u32 slot[HANDSHAKE_SLOTS]; /* the number of the last one */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct recent_handshakes);
} recent_handshakes SEC(".maps");

static __always_inline struct recent_handshakes *handshakes_of_late(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&recent_handshakes, &zero);
}

static __always_inline __u32 handshake_slot(const struct flow_key *key)
{
	return mix_ends(key) >> 20 & (HANDSHAKE_SLOTS - 1);
}

static __always_inline int may_shake_hands(const struct flow_key *key)
{
	struct recent_handshakes *recent = handshakes_of_late();
	__u32 last;

	if (!recent)
		return 0;
	last = recent->slot[handshake_slot(key)];
	return last && recent->begun - last < MAX_HANDSHAKES;
}

static __always_inline int begin_handshake(const struct flow_key *key, struct handshake *handshake,
					   const struct node *node)
{
	struct recent_handshakes *recent = handshakes_of_late();

	handshake->flow.used = node->clock;
	if (!recent || bpf_map_update_elem(&handshakes, key, handshake, BPF_ANY))
		return 0;
	recent->slot[handshake_slot(key)] = __sync_fetch_and_add(&recent->begun, 1) + 1;
	return 1;
}

static __always_inline int give_up(const struct handshake *handshake, const struct flow_key *key)
{
	if (handshake->flow.role == ROLE_INITIATOR)
		give_place_back(&handshake->flow);
	bpf_map_delete_elem(&handshakes, key);
	return 0;
}

/* From here on, joining subflows find the connection. */
static __always_inline void begin_connection(const struct flow *flow)
{
	struct connection connection = { 1ULL << ((flow->path & (MAX_PATHS - 1)) * 8) };
	struct connection_key key = { flow->endpoint, flow->token };

	if (flow->role == ROLE_INITIATOR && !(flow->subtype & SUBTYPE_JOIN) && flow->token)
		bpf_map_update_elem(&connections, &key, &connection, BPF_NOEXIST);
}

/* The other end has sent what comes after this SYN. */
static __always_inline int continues(const struct handshake *handshake, const struct packet *packet)
{
	return is_within(bpf_ntohl(packet->sequence), bpf_ntohl(handshake->flow.sequence) + 1, 0, FAST_OPEN);
}

/*
 * Both ends have agreed: a flow begins, in place of one that nobody ended. Returns 0
 * where its owner has too many.
 */
static __always_inline struct flow *agree(const struct handshake *handshake, const struct flow_key *key)
{
	struct flow *before = bpf_map_lookup_elem(&flows, key), flow = handshake->flow;

	if (before)
		forget_flow(before, key);
	else
		forget_hot(key);
	if (!take_room(beginner(&flow, key))) {
		give_up(handshake, key);
		return 0;
	}
	if (flow.role == ROLE_RESPONDER) {
		flow.sequence = bpf_htonl(bpf_ntohl(flow.sequence) + 1);
		flow.token = bpf_ntohl(handshake->answer);
		flow.subtype |= ANSWERED;
	}
	if (bpf_map_update_elem(&flows, key, &flow, BPF_ANY)) {
		give_room(beginner(&flow, key));
		give_up(handshake, key);
		return 0;
	}
	begin_connection(&flow);
	bpf_map_delete_elem(&handshakes, key);
	return bpf_map_lookup_elem(&flows, key);
}

#endif
