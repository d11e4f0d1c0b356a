/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows that began before this node had their end, as a virtual machine brings along that
 * moves here. The other end's node still sends each by its own path: where it comes in, its
 * answers leave. As with a handshake both ends must show that they know of each other: what
 * comes in alone may be forged, and begins nothing.
 */
#ifndef BRAID_UPLINK_PICK_UP_H
#define BRAID_UPLINK_PICK_UP_H

#include "handshake.h"
#include "../suboption.h"

enum {
	ACKNOWLEDGED_STEP = 1 << 17, /* what this end acknowledges is so near to what came in last */
	SENT_AHEAD = 1 << 20,        /* and it may have sent so much more than the other end had */
};

static __always_inline int picks_up(void)
{
	const struct node *node = this_node();

	return node && node->picks_up;
}

/* Of all that MPTCP sends once a subflow is established, only its ends lack this option. */
static __always_inline int is_of_mptcp(struct __sk_buff *skb, const struct packet *packet)
{
	struct suboption found;

	return find_suboption(skb, packet->options, packet->options_length, 1 << SUBTYPE_DSS, &found);
}

static __always_inline int begin_midstream(struct __sk_buff *skb, const struct packet *packet,
					   const struct flow_key *key, struct handshake *handshake,
					   const struct node *node)
{
	struct endpoint *endpoint = bpf_map_lookup_elem(&endpoints, &key->local);
	struct flow *flow = &handshake->flow;
	struct preference *preference;

	if (!endpoint)
		return 0;
	flow->endpoint = endpoint->id;
	preference = bpf_map_lookup_elem(&preferences, &flow->endpoint);
	if (!preference || !(preference->flags & PREFERENCE_PICK_UP) || !has_room(&key->remote) || !is_of_mptcp(skb, packet))
		return 0;
	flow->peer = peer_of(skb, packet, key, flow->endpoint, 0);
	if (flow->peer == NO_PEER)
		return 0;
	flow->allowed = 0xff;
	flow->last = NO_PATH;
	flow->turn = flow_hash(key);
	flow->subtype = SUBTYPE_JOIN;
	return begin_handshake(key, handshake, node);
}

/* What this end sends acknowledges what came in, and comes after what that acknowledges. */
static __always_inline int goes_on_from(const struct handshake *handshake, const struct packet *packet)
{
	return is_within(bpf_ntohl(packet->acknowledgement), bpf_ntohl(handshake->answer), ACKNOWLEDGED_STEP, ACKNOWLEDGED_STEP) &&
	       is_within(bpf_ntohl(packet->sequence), handshake->flow.token, SENT_AHEAD, SENT_AHEAD);
}

/* This end's packet shows that the flow is its own: it begins here as an answered one does. */
static __always_inline int pick_up(struct __sk_buff *skb, struct handshake *handshake, const struct packet *packet,
				   const struct flow_key *key)
{
	if ((packet->flags & (TCP_SYN | TCP_FIN | TCP_ACK)) != TCP_ACK || !goes_on_from(handshake, packet))
		return 0;
	handshake->flow.sequence = bpf_htonl(bpf_ntohl(packet->acknowledgement) - 1);
	handshake->answer = packet->sequence;
	handshake->flow.from = origin_of(skb);
	if (is_in_tunnel(packet))
		handshake->flow.peer = peer_of_tunnel(skb, packet, BPF_FIB_LOOKUP_OUTPUT);
	return agree(handshake, key) != 0;
}

#endif
