/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows that began before this node had their end, as a virtual machine brings along that
 * moves here. As with a handshake both ends must show that they know of each other: what
 * comes in alone may be forged, and begins nothing.
 *
 * Nobody saw who began the flow. Who did has a port from the range that kernels take them from for
 * that, where the other has not: announced ones are above it. Else who did has the higher port:
 * servers have the low ones. What the other end began leaves where it comes in, since the other node still sends each by its
 * own path. For the rest the other node follows, and it has its path by turn.
 */
#ifndef BRAID_UPLINK_PICK_UP_H
#define BRAID_UPLINK_PICK_UP_H

#include "handshake.h"
#include "../suboption.h"

enum {
	ACKNOWLEDGED_STEP = 1 << 17, /* what this end acknowledges is so near to what came in last */
	SENT_AHEAD = 1 << 20,        /* and it may have sent so much more than the other end had */
	FIRST_EPHEMERAL = 32768,     /* net.ipv4.ip_local_port_range, as it is if nobody sets it */
	LAST_EPHEMERAL = 60999,
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

static __always_inline int is_ephemeral(__u16 port)
{
	return port >= FIRST_EPHEMERAL && port <= LAST_EPHEMERAL;
}

static __always_inline int seems_begun_here(const struct flow_key *key)
{
	__u16 local = bpf_ntohs(key->local_port), remote = bpf_ntohs(key->remote_port);

	if (is_ephemeral(local) != is_ephemeral(remote))
		return is_ephemeral(local);
	return local > remote;
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
	if (!preference || !(preference->flags & PREFERENCE_PICK_UP) || !is_of_mptcp(skb, packet))
		return 0;
	flow->peer = peer_of(skb, packet, key, flow->endpoint, 0);
	if (flow->peer == NO_PEER)
		return 0;
	flow->role = seems_begun_here(key) ? ROLE_INITIATOR : ROLE_RESPONDER;
	flow->allowed = 0xff;
	flow->last = NO_PATH;
	flow->turn = flow_hash(key);
	flow->subtype = SUBTYPE_JOIN;
	if (!has_room(beginner(flow, key)))
		return 0;
	return begin_handshake(key, handshake, node);
}

/* What this end sends acknowledges what came in, and comes after what that acknowledges. */
static __always_inline int goes_on_from(const struct handshake *handshake, const struct packet *packet)
{
	return is_within(bpf_ntohl(packet->acknowledgement), bpf_ntohl(handshake->answer), ACKNOWLEDGED_STEP, ACKNOWLEDGED_STEP) &&
	       is_within(bpf_ntohl(packet->sequence), handshake->flow.sent, SENT_AHEAD, SENT_AHEAD);
}

#endif
