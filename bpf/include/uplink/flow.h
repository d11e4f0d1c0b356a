/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Subflows and connections: whose packets they are, which peer they go to, and
 * when a subflow's place in its connection is free again.
 */
#ifndef BRAID_UPLINK_FLOW_H
#define BRAID_UPLINK_FLOW_H

#include "anti_spoofing.h"
#include "../mptcp.h"
#include "../tunnel.h"
#include "hot_flows.h"
#include "outside.h"
#include "quota.h"

enum {
	TRIES = 4, /* of a compare-and-swap that another CPU may win */
};

/* One subflow more of the flow's connection, if that is known, or one less, on the flow's path. */
static __always_inline void count_place(const struct flow *flow, int is_more)
{
	struct connection_key key = { flow->endpoint, flow->token };
	struct connection *connection = bpf_map_lookup_elem(&connections, &key);
	__u32 path = flow->path & (MAX_PATHS - 1);
	__u64 one = 1ULL << (path * 8);
	int i;

	if (!connection)
		return;
	for (i = 0; i < TRIES; i++) {
		__u64 before = connection->subflows;

		if ((before >> (path * 8) & 0xff) == (is_more ? 0xff : 0))
			return;
		if (__sync_val_compare_and_swap(&connection->subflows, before, is_more ? before + one : before - one) == before)
			return;
	}
}

static __always_inline void give_place_back(const struct flow *flow)
{
	count_place(flow, 0);
}

/* The flow needs its places no more. */
static __always_inline void give_back(const struct flow *flow, const struct flow_key *key)
{
	if (flow->role == ROLE_INITIATOR)
		give_place_back(flow);
	give_room(beginner(flow, key));
}

/* Makes way for a new flow where an older one had the same addresses and ports. */
static __always_inline void forget_flow(const struct flow *flow, const struct flow_key *key)
{
	if (flow->ended != ENDED_BOTH)
		give_back(flow, key);
	forget_hot(key);
	bpf_map_delete_elem(&flows, key);
}

/*
 * Notes the end of a flow, seen in this direction; when both directions have
 * ended its place in the connection is free for another subflow. Returns 1 where they have now.
 */
static __always_inline int note_end(struct flow *flow, struct flow_key *key, const struct packet *packet, __u8 direction)
{
	__u8 before = flow->ended, after;

	if (likely(!(packet->flags & (TCP_FIN | TCP_RST))))
		return 0;
	after = before | (packet->flags & TCP_RST ? ENDED_BOTH : direction);
	flow->ended = after;
	if (after != ENDED_BOTH || before == ENDED_BOTH)
		return 0;
	give_back(flow, key);
	forget_ended(key, flow);
	return 1;
}

static __always_inline __u8 flow_hash(const struct flow_key *key)
{
	return mix_ends(key) >> 24;
}

static __always_inline __u16 peer_of_address(const struct address *address)
{
	__u32 *peer = bpf_map_lookup_elem(&peer_addresses, address);

	return peer && *peer < MAX_PEERS ? *peer : NO_PEER;
}

static __always_inline int is_same(const struct address *a, const struct address *b)
{
	return !((a->word[0] ^ b->word[0]) | (a->word[1] ^ b->word[1]) | (a->word[2] ^ b->word[2]) |
		 (a->word[3] ^ b->word[3]));
}

/* The peer whose pods have this address, as far as packets for them are encapsulated (encapsulation.h). */
static __always_inline __u16 peer_of_pod(const struct address *pod)
{
	struct range_key key = { .bits = 8 * sizeof(*pod), .address = *pod };
	__u32 *peer = bpf_map_lookup_elem(&pod_ranges, &key);

	return peer && *peer < MAX_PEERS ? *peer : NO_PEER;
}

/*
 * The peer to which the node's own routes send this flow's packets, or whose pod they are for
 * behind a router, or that which leads the endpoint out of the cluster. Asked for once, at the
 * SYN. flags say whether skb's NIC is the egress or the ingress. What is on the NIC's own link is
 * not outside.
 */
static __always_inline __u16 peer_of_route(struct __sk_buff *skb, const struct flow_key *key, __u8 family,
					   __u32 endpoint, __u32 flags)
{
	struct bpf_fib_lookup route = {
		.family = family,
		.l4_protocol = IPPROTO_TCP,
		.ifindex = skb->ifindex,
	};
	struct address next_hop;
	__u16 peer;
	long result;

	if (family == AF_INET) {
		route.src[0] = key->local.word[3];
		route.dst[0] = key->remote.word[3];
	} else {
		__builtin_memcpy(route.src, &key->local, sizeof(route.src));
		__builtin_memcpy(route.dst, &key->remote, sizeof(route.dst));
	}
	result = bpf_fib_lookup(skb, &route, sizeof(route), flags);
	if (result != BPF_FIB_LKUP_RET_SUCCESS && result != BPF_FIB_LKUP_RET_NO_NEIGH)
		return NO_PEER;
	if (route.family == AF_INET)
		map_ipv4(&next_hop, route.dst[0]);
	else
		__builtin_memcpy(&next_hop, route.dst, sizeof(next_hop));
	peer = peer_of_address(&next_hop);
	if (peer != NO_PEER || is_same(&next_hop, &key->remote))
		return peer;
	peer = peer_of_pod(&key->remote);
	if (peer != NO_PEER)
		return peer;
	return outside_for(endpoint, &key->remote);
}

/*
 * The peer at the other end of a tunnel: the source of the outer header of what comes in,
 * the destination of what leaves.
 */
static __always_inline __u16 peer_of_tunnel(struct __sk_buff *skb, const struct packet *packet, __u32 flags)
{
	__u32 leaves = !!(flags & BPF_FIB_LOOKUP_OUTPUT);
	struct address other = {};
	__be32 ipv4 = 0;

	if (packet->carrier == AF_INET) {
		if (bpf_skb_load_bytes(skb, OUTER_IPV4_SOURCE + leaves * sizeof(ipv4), &ipv4, sizeof(ipv4)))
			return NO_PEER;
		map_ipv4(&other, ipv4);
	} else if (bpf_skb_load_bytes(skb, OUTER_IPV6_SOURCE + leaves * sizeof(other), &other, sizeof(other))) {
		return NO_PEER;
	}
	return peer_of_address(&other);
}

static __always_inline __u16 peer_of(struct __sk_buff *skb, const struct packet *packet, const struct flow_key *key,
				     __u32 endpoint, __u32 flags)
{
	if (is_in_tunnel(packet))
		return peer_of_tunnel(skb, packet, flags);
	return peer_of_route(skb, key, packet->family, endpoint, flags);
}

/* Routers know the nodes' addresses and not those of pods. */
static __always_inline __u8 paths_to(const struct peer *peer, const struct node *node, const struct packet *packet)
{
	__u8 paths = packet->carrier == AF_INET ? peer->ipv4_paths : peer->ipv6_paths;

	if (likely(!is_in_tunnel(packet)))
		paths &= ~peer->beyond;
	return paths & node->paths_up;
}

/* The paths on which this node has a NIC and the peer an address, be they down or not. */
__noinline __u32 known_paths(const struct peer *peer, const struct node *node, __u32 family)
{
	__u32 path, known = 0;

	if (!peer || !node)
		return 0;
	for (path = 0; path < MAX_PATHS; path++) {
		const __be32 *words = peer->ipv6[path].word;
		__u32 address = family == AF_INET ? peer->ipv4[path] : words[0] | words[1] | words[2] | words[3];

		if (address && node->interface[path])
			known |= 1U << path;
	}
	return known;
}

#endif
