//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * to-uplink: the egress of each NIC. Netfilter, Services and the cluster
 * network's own policy have already judged the packet. If it belongs to a
 * subflow that has a path, it goes to that path's NIC; else it passes.
 */
#include "place.h"

/* Sends the packet to the peer over this path. */
static __always_inline int send_on(struct __sk_buff *skb, const struct node *node, const struct peer *peer,
				   __u32 path, __u8 family)
{
	struct bpf_redir_neigh next_hop = { .nh_family = family };
	__u32 interface;

	path &= MAX_PATHS - 1;
	interface = node->interface[path];
	if (!interface || interface == skb->ifindex)
		return TCX_NEXT;
	if (family == AF_INET)
		next_hop.nh[0] = peer->ipv4[path];
	else
		__builtin_memcpy(next_hop.nh, &peer->ipv6[path], sizeof(next_hop.nh));
	return bpf_redirect_neigh(interface, &next_hop, sizeof(next_hop), 0);
}

static __always_inline int steer(struct __sk_buff *skb, const struct flow *flow, __u8 family)
{
	struct node *node = this_node();
	__u32 index = flow->peer;
	struct peer *peer = bpf_map_lookup_elem(&peers, &index);
	__u8 path = flow->path, usable;

	if (!node || !peer)
		return TCX_NEXT;
	usable = paths_to(peer, node, family);
	if (unlikely(path >= MAX_PATHS || !(usable >> path & 1)))
		path = stand_in(usable & flow->allowed, flow->turn);
	if (path >= MAX_PATHS)
		return TCX_NEXT;
	return send_on(skb, node, peer, path, family);
}

/*
 * The place of a joining subflow in its connection. A connection that is not
 * known began before the agent, on the NIC of the cluster network's route.
 */
static __always_inline __u8 join_path(struct __sk_buff *skb, const struct node *node,
				      struct endpoint *endpoint, __u32 token, __u8 usable)
{
	struct connection_key key = { endpoint->id, token };
	struct connection *connection = bpf_map_lookup_elem(&connections, &key);

	if (!connection) {
		struct connection begun = {};
		__u8 first = path_of_interface(node, skb->ifindex);

		if (first < MAX_PATHS)
			begun.subflows = 1ULL << (first * 8);
		bpf_map_update_elem(&connections, &key, &begun, BPF_NOEXIST);
		connection = bpf_map_lookup_elem(&connections, &key);
	}
	return connection ? take_place(&connection->subflows, endpoint->weights, usable) : NO_PATH;
}

static __always_inline __u8 allowed_paths(__u64 weights)
{
	__u8 allowed = 0;
	int path;

#pragma clang loop unroll(full)
	for (path = 0; path < MAX_PATHS; path++)
		allowed |= !!byte_of(weights, path) << path;
	return allowed;
}

/*
 * A SYN of a pod that is ours: gives the new subflow its path. Returns 0 where
 * the flow is not to be steered: no MPTCP, or a next hop that is no peer.
 */
static __noinline int begin_flow(struct __sk_buff *skb, struct packet *packet, struct flow_key *key)
{
	struct mptcp_option option = {};
	struct endpoint *endpoint;
	struct flow flow = { .role = ROLE_INITIATOR };
	struct node *node = this_node();
	struct peer *peer;
	__u32 index;
	__u8 usable;

	if (!packet || !key || !node)
		return 0;
	endpoint = bpf_map_lookup_elem(&endpoints, &key->local);
	if (!endpoint)
		return 0;
	if (!find_mptcp_option(skb, packet->options, packet->options_length, &option) || option.has_key)
		return 0;
	index = flow.peer = peer_of_route(skb, key, packet->family, BPF_FIB_LOOKUP_OUTPUT);
	peer = bpf_map_lookup_elem(&peers, &index);
	if (!peer)
		return 0;
	flow.sequence = packet->sequence;
	flow.endpoint = endpoint->id;
	flow.allowed = allowed_paths(endpoint->weights);
	flow.turn = turn_of(key);
	flow.subtype = option.subtype;
	usable = flow.allowed & paths_to(peer, node, packet->family);
	if (option.subtype == SUBTYPE_JOIN) {
		flow.token = option.token;
		flow.path = join_path(skb, node, endpoint, option.token, usable);
	} else {
		flow.path = take_turn(endpoint, usable);
	}
	if (flow.path == NO_PATH)
		return 0;
	return !bpf_map_update_elem(&flows, key, &flow, BPF_ANY);
}

/* Makes way for a new flow where an older one had the same addresses and ports. */
static __always_inline void forget_flow(struct flow *flow, struct flow_key *key)
{
	if (flow->role == ROLE_INITIATOR && flow->ended != ENDED_BOTH)
		give_place_back(flow);
	bpf_map_delete_elem(&flows, key);
}

SEC("tc")
int to_uplink(struct __sk_buff *skb)
{
	struct packet packet;
	struct flow_key key;
	struct flow *flow;

	if (!parse_packet(skb, &packet))
		return TCX_NEXT;
	if (likely(!may_have_flows(&packet.source)))
		return TCX_NEXT;
	key.local = packet.source;
	key.remote = packet.destination;
	key.local_port = packet.source_port;
	key.remote_port = packet.destination_port;
	flow = bpf_map_lookup_elem(&flows, &key);
	if (unlikely(is_first_syn(&packet) && !(flow && flow->sequence == packet.sequence))) {
		if (flow)
			forget_flow(flow, &key);
		if (!begin_flow(skb, &packet, &key))
			return TCX_NEXT;
		flow = bpf_map_lookup_elem(&flows, &key);
	}
	if (!flow)
		return TCX_NEXT;
	note_end(flow, &packet, ENDED_OUT);
	return steer(skb, flow, packet.family);
}

char _license[] SEC("license") = "Dual BSD/GPL";
