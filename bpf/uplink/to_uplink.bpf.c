//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * to-uplink: the egress of each NIC. Netfilter, Services and the cluster
 * network's own policy have already judged the packet. If it belongs to a
 * subflow that has a path, it goes to that path's NIC; else it passes.
 */
#include "kept_origin.h"
#include "uplink/distant.h"
#include "uplink/duplicate_ack.h"
#include "uplink/handshake.h"
#include "uplink/outer.h"
#include "uplink/path_selection.h"
#include "uplink/pick_up.h"
#include "uplink/silence.h"
#include "uplink/slow.h"
#include "uplink/together.h"
#include "uplink/traffic.h"
#include "uplink/encapsulation.h"
#include "shared.h"

/* For Go. */
SHARED(enum, acknowledgement);
SHARED(enum, arrival);
SHARED(enum, busy_limit);
SHARED(enum, flow_ended);
SHARED(enum, flow_role);
SHARED(enum, flow_subtype);
SHARED(enum, hot_limit);
SHARED(enum, load_limit);
SHARED(enum, origin);
SHARED(enum, outer_of);
SHARED(enum, outer_place);
SHARED(enum, outside);
SHARED(enum, preference_flags);
SHARED(enum, silence);
SHARED(enum, slow_limit);
SHARED(enum, tunnel_kind);
SHARED(enum, uplink_limit);
SHARED(enum, encapsulation);

/*
 * Whether a packet leaves by the routes of the NIC that it is at, as the flow's path is that
 * NIC's, or nothing can be done about it. On a routed path a packet of a tunnel
 * gets its addresses there, and then its next hop also where the NIC is the same.
 */
static __always_inline int leaves_here(struct __sk_buff *skb, const struct flow *flow, const struct node *node,
				       const struct packet *packet, __u32 path, __u32 interface)
{
	int is_here = interface == skb->ifindex, change;

	if (likely(!(node->routed >> path & 1)) || !is_in_tunnel(packet))
		return is_here;
	change = address_outer(skb, packet, flow->peer, path);
	return change == OUTER_FOREIGN || (change == OUTER_SAME && is_here);
}

enum {
	NOT_FOR_THIS_PATH = -2, /* in the place of a verdict */
};

/*
 * What is in no tunnel is encapsulated where a router leads to the peer. It comes by at the path's
 * NIC as a packet of the node's own, so it is counted here, as it was.
 */
static __always_inline int encapsulate_and_count(struct __sk_buff *skb, struct flow *flow, const struct packet *packet,
						 __u32 path)
{
	if (!may_encapsulate(skb, packet, flow->peer))
		return 0;
	count_sent(skb, packet, flow, path);
	return encapsulate(skb, packet, flow->peer, path);
}

/* Sends the packet to the peer over this path, whose NIC it may be at. */
static __always_inline int send_on(struct __sk_buff *skb, struct flow *flow, const struct node *node,
				   const struct peer *peer, __u32 path, const struct packet *packet)
{
	struct bpf_redir_neigh next_hop = { .nh_family = packet->carrier };
	__u32 interface, goes = 0;

	/* The verifier of Linux 6.1 forgets the bounds of what was spilled. */
	barrier_var(path);
	path &= MAX_PATHS - 1;
	interface = node->interface[path];
	if (!interface || leaves_here(skb, flow, node, packet, path, interface))
		return TCX_NEXT;
	if (likely(!(node->routed >> path & 1)) || is_in_tunnel(packet) || !is_beyond(flow->peer, path))
		goes = interface;
	else if (!encapsulate_and_count(skb, flow, packet, path))
		return NOT_FOR_THIS_PATH;
	if (packet->carrier == AF_INET)
		next_hop.nh[0] = peer->ipv4[path];
	else
		__builtin_memcpy(next_hop.nh, &peer->ipv6[path], sizeof(next_hop.nh));
	flow->redirected = goes;
	return bpf_redirect_neigh(interface, &next_hop, sizeof(next_hop), 0);
}

/* The flow has no usable path: its packet leaves as the node's routes say. */
static __noinline int count_unplaced(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow)
{
	struct node *node = this_node();

	if (!packet || !flow || !node)
		return 0;
	count_sent(skb, packet, flow, path_of_interface(node, skb->ifindex));
	return 1;
}

/*
 * A virtual machine moves to another node and keeps its address, and other routes change too:
 * where they lead to another peer, the flow goes there. Of routes that lead to none nothing is
 * concluded.
 */
__noinline int follow_route(struct __sk_buff *skb, const struct packet *packet, struct flow *flow,
			    const struct flow_key *key)
{
	__u16 peer;

	if (!packet || !flow || !key)
		return 0;
	peer = peer_of(skb, packet, key, flow->endpoint, BPF_FIB_LOOKUP_OUTPUT);
	if (peer == NO_PEER || peer == flow->peer)
		return 0;
	flow->peer = peer;
	flow->avoided = 0;
	flow->tries = 0;
	return 1;
}

/* The flow's own path, unless the packet has to, or would rather, take another; or NO_PATH. */
static __always_inline __u8 path_for(struct flow *flow, const struct preference *preference, const struct node *node,
				     const struct peer *peer, const struct packet *packet)
{
	__u8 path = flow->path, paths;

	paths = paths_to(peer, node, packet) & (preference ? preference->allowed : flow->allowed);
	if (unlikely(flow->avoided))
		paths = without_avoided(flow, paths);
	if (preference) {
		paths = wanted_paths(preference, flow, paths);
		if (unlikely(flow->account != preference->account))
			flow->account = preference->account;
	}
	paths = shared_path(flow, paths);
	if (path >= MAX_PATHS || !(paths >> path & 1))
		path = one_of(paths, flow->turn);
	return path;
}

/*
 * Sends a flow's packet by path_for. Of a flow that lives, which has a key then, the route is
 * asked again when its packet waits too long for an answer, and for the first one after the
 * node's clock has moved. Global, so that the verifier does not look at it once for each way that
 * leads here.
 */
__noinline int steer(struct __sk_buff *skb, struct flow *flow, const struct packet *packet, const struct flow_key *key,
		     int waits)
{
	struct preference *preference;
	struct node *node = this_node();
	struct peer *peer;
	__u32 index;
	int verdict;
	__u8 path;

	if (!node || !flow || !packet)
		return TCX_NEXT;
	preference = preference_of(flow->endpoint);
	if (unlikely(flow->used != node->clock)) {
		flow->used = node->clock;
		waits = 1;
	}
	if (unlikely(key && waits))
		follow_route(skb, packet, flow, key);
	index = flow->peer;
	peer = bpf_map_lookup_elem(&peers, &index);
	if (!peer)
		return TCX_NEXT;
	if (unlikely(!peer->active))
		peer->active = 1;
	path = path_for(flow, preference, node, peer, packet);
	if (path >= MAX_PATHS) {
		if (key) /* its end may have left a node that is gone: then the next one goes there */
			follow_route(skb, packet, flow, key);
		count_unplaced(skb, packet, flow);
		return TCX_NEXT;
	}
	if (unlikely(flow->last != path)) {
		note_departure(flow);
		flow->last = path;
	}
	verdict = send_on(skb, flow, node, peer, path, packet);
	if (unlikely(verdict == NOT_FOR_THIS_PATH)) {
		count_unplaced(skb, packet, flow);
		return TCX_NEXT;
	}
	if (verdict == TCX_NEXT)
		count_sent(skb, packet, flow, path);
	return verdict;
}

/*
 * The place of a joining subflow in its connection. A connection that is not
 * known began before the agent, on the NIC of the cluster network's route.
 */
static __always_inline __u8 join_path(struct __sk_buff *skb, const struct node *node, const struct address *local,
				      struct endpoint *endpoint, __u32 token, __u8 usable, __u8 known, int same)
{
	struct connection_key key = { endpoint->id, token };
	struct connection *connection = bpf_map_lookup_elem(&connections, &key);

	if (!connection && may_join_unknown(local)) {
		struct connection begun = {};
		__u8 first = path_of_interface(node, skb->ifindex);

		if (first < MAX_PATHS)
			begun.subflows = 1ULL << (first * 8);
		bpf_map_update_elem(&connections, &key, &begun, BPF_NOEXIST);
		connection = bpf_map_lookup_elem(&connections, &key);
	}
	if (!connection)
		return NO_PATH;
	if (same)
		usable = most_used(connection->subflows, usable);
	else
		usable = or_one_that_is_down(connection->subflows, usable, known);
	return take_place(&connection->subflows, endpoint->weights, usable);
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
 * Gives a new subflow its path. By itself, so that its handshake takes the stack's place
 * of what the route was looked up with: Linux 6.1 has no room for both.
 */
static __always_inline int place_flow(struct __sk_buff *skb, struct packet *packet, struct flow_key *key,
				      struct endpoint *endpoint, const struct peer *peer, __u16 index,
				      const struct mptcp_option *option)
{
	struct handshake handshake = { .flow.role = ROLE_INITIATOR, .flow.peer = index };
	struct preference *preference = preference_of(endpoint->id);
	struct flow *flow = &handshake.flow;
	struct node *node = this_node();
	__u8 usable, known;
	__u32 begins;

	if (!node)
		return 0;
	flow->sequence = packet->sequence;
	flow->from = origin_of(skb);
	flow->last = NO_PATH;
	flow->endpoint = endpoint->id;
	flow->allowed = allowed_paths(endpoint->weights);
	flow->turn = flow_hash(key);
	flow->subtype = option->subtype;
	usable = flow->allowed & paths_to(peer, node, packet);
	if (preference)
		usable = without_backup(preference, usable);
	if (option->subtype == SUBTYPE_JOIN) {
		known = flow->allowed & known_paths(peer, node, packet->carrier);
		if (!is_in_tunnel(packet))
			known &= ~peer->beyond;
		flow->token = option->token;
		flow->path = join_path(skb, node, &key->local, endpoint, option->token, usable,
				       preference ? without_backup(preference, known) : known,
				       preference && preference->flags & PREFERENCE_SAME);
	} else {
		flow->avoided_at = lasting_clock();
		usable = without_slow(endpoint->id, index, usable, ticks());
		begins = begins_on(index, round_robin_path(endpoint, usable), usable, flow->turn);
		flow->path = begins;
		flow->subtype |= begins >> 8;
	}
	if (flow->path == NO_PATH)
		return 0;
	if (begin_handshake(key, &handshake, node))
		return 1;
	give_place_back(flow);
	return 0;
}

/*
 * The SYN of a connection is repeated, a second after the last one, on a path that answers others: what is lost
 * of it there, as at a firewall that lets none of MPTCP's through, may not be on the next path. It begins there, as if it
 * had not begun before. Further subflows stay, as another one has that path.
 */
__noinline int begin_elsewhere(struct flow *flow, const struct packet *packet)
{
	struct preference *preference;
	struct node *node = this_node();
	struct peer *peer;
	__u32 index, others, later;

	if (!node || !flow || !packet || !is_first(flow) || flow->avoided)
		return 0;
	if (rests(flow))
		flow->subtype &= ~TOGETHER_BITS;
	index = flow->peer;
	peer = bpf_map_lookup_elem(&peers, &index);
	if (!peer)
		return 0;
	preference = preference_of(flow->endpoint);
	others = flow->allowed & paths_to(peer, node, packet);
	if (preference)
		others = without_backup(preference, others);
	others &= ~(1U << (flow->path & (MAX_PATHS - 1)));
	if (!others)
		return 0;
	note_time(flow);
	later = others & -(2U << (flow->path & (MAX_PATHS - 1)));
	if (later)
		others = later;
	flow->path = one_of(others & -others, 0);
	flow->avoided_at = lasting_clock();
	return 1;
}

/*
 * A SYN of a pod that is ours: gives the new subflow its path. Returns 0 where
 * the flow is not to be steered: no MPTCP, or a next hop that is no peer. One that is
 * masqueraded is, where it leaves the cluster for what its pod's policy names.
 */
static __always_inline int begin_flow(struct __sk_buff *skb, struct packet *packet, struct flow_key *key)
{
	struct mptcp_option option = {};
	struct endpoint *endpoint;
	struct peer *peer;
	int masqueraded;
	__u32 index;

	if (!packet || !key)
		return 0;
	endpoint = bpf_map_lookup_elem(&endpoints, &key->local);
	masqueraded = !endpoint;
	if (masqueraded)
		endpoint = endpoint_behind(skb);
	if (!endpoint)
		return 0;
	if (!find_mptcp_option(skb, packet->options, packet->options_length, &option) || option.has_key)
		return 0;
	index = peer_of(skb, packet, key, endpoint->id, BPF_FIB_LOOKUP_OUTPUT);
	if (masqueraded && index != outside_for(endpoint->id, &key->remote))
		return 0;
	peer = bpf_map_lookup_elem(&peers, &index);
	if (!peer || !has_room(&key->local))
		return 0;
	return place_flow(skb, packet, key, endpoint, peer, index, &option);
}

/*
 * A SYN where none is known: begins a handshake, if it is what it says. An earlier flow
 * with the same addresses and ports is over then. Global, so that the verifier looks
 * at it once; that of Linux 6.1 takes no key for maps that it got as an argument.
 */
__noinline int renew_flow(struct __sk_buff *skb, struct packet *packet, const struct flow_key *ends)
{
	struct handshake *handshake;
	struct flow_key key;
	struct flow *flow;

	if (!packet || !ends)
		return 0;
	key = *ends;
	if (is_forged(skb, &key.local))
		return 0;
	flow = bpf_map_lookup_elem(&flows, &key);
	if (flow)
		forget_flow(flow, &key);
	else
		forget_hot(&key); /* flows has made room, and the next packets are the handshake's */
	handshake = bpf_map_lookup_elem(&handshakes, &key);
	if (handshake)
		give_up(handshake, &key);
	return begin_flow(skb, packet, &key);
}

/*
 * A SYN from outside may have been for an address of the node's, as those for Services are.
 * Whose pod it was for is known when that answers. Returns 0 where its policy names no such
 * destination.
 */
static __always_inline int may_answer(struct __sk_buff *skb, struct flow *flow, const struct flow_key *key)
{
	struct endpoint *endpoint;
	__u16 peer;

	if (flow->endpoint || outside_for(0, &key->remote) != flow->peer || flow->peer == NO_PEER)
		return 1;
	endpoint = endpoint_behind(skb);
	if (!endpoint)
		return 0;
	peer = outside_for(endpoint->id, &key->remote);
	if (peer == NO_PEER)
		return 0;
	flow->endpoint = endpoint->id;
	flow->peer = peer;
	return 1;
}

/* The path of a flow that this end began elsewhere. */
static __always_inline __u8 picked_path(struct flow *flow, const struct packet *packet, const struct flow_key *key)
{
	struct endpoint *endpoint = bpf_map_lookup_elem(&endpoints, &key->local);
	struct preference *preference = preference_of(flow->endpoint);
	struct node *node = this_node();
	__u32 index = flow->peer;
	struct peer *peer = bpf_map_lookup_elem(&peers, &index);
	__u8 usable;

	if (!endpoint || !node || !peer)
		return NO_PATH;
	flow->allowed = allowed_paths(endpoint->weights);
	usable = flow->allowed & paths_to(peer, node, packet);
	return round_robin_path(endpoint, preference ? without_backup(preference, usable) : usable);
}

/*
 * This end's packet shows that a flow that began elsewhere is its own: it goes on here as one
 * that was answered. Beside settle, not within it: the stack of Linux 6.1 is small.
 */
__noinline int pick_up(struct __sk_buff *skb, const struct packet *packet, const struct flow_key *ends)
{
	struct handshake *handshake;
	struct flow_key key;

	if (!packet || !ends)
		return 0;
	key = *ends;
	handshake = bpf_map_lookup_elem(&handshakes, &key);
	if (!handshake || (packet->flags & (TCP_SYN | TCP_FIN | TCP_RST | TCP_ACK)) != TCP_ACK || is_forged(skb, &key.local) ||
	    !goes_on_from(handshake, packet))
		return 0;
	handshake->flow.from = origin_of(skb);
	if (is_in_tunnel(packet))
		handshake->flow.peer = peer_of_tunnel(skb, packet, BPF_FIB_LOOKUP_OUTPUT);
	if (handshake->flow.role == ROLE_INITIATOR) {
		handshake->flow.path = picked_path(&handshake->flow, packet, &key);
		handshake->flow.sequence = packet->acknowledgement;
		handshake->flow.subtype |= ANSWERED;
	} else {
		handshake->flow.sequence = bpf_htonl(bpf_ntohl(packet->acknowledgement) - 1);
		handshake->answer = packet->sequence;
	}
	return handshake->flow.path != NO_PATH && agree(handshake, &key);
}

/*
 * A node may have passed on in a tunnel what came from outside, and this end answers that
 * directly: where its routes lead to no peer, the answer is not for that node. By itself, as
 * pick_up.
 */
__noinline int is_for_no_peer(struct __sk_buff *skb, const struct packet *packet, struct flow *flow,
			      const struct flow_key *key)
{
	if (!packet || !flow || !key)
		return 1;
	flow->peer = peer_of_route(skb, key, packet->family, flow->endpoint, BPF_FIB_LOOKUP_OUTPUT);
	return flow->peer == NO_PEER;
}

/*
 * What leaves while a handshake is under way: this end answers a SYN, whichever it took,
 * or gives up, or shows that it takes the answer to its own. It has agreed then.
 */
__noinline int settle(struct __sk_buff *skb, const struct packet *packet, const struct flow_key *ends)
{
	struct handshake *handshake;
	struct flow_key key;
	struct flow *flow;

	if (!packet || !ends)
		return 0;
	key = *ends;
	handshake = bpf_map_lookup_elem(&handshakes, &key);
	if (!handshake || is_forged(skb, &key.local))
		return 0;
	if (packet->flags & TCP_RST)
		return give_up(handshake, &key);
	if (handshake->flow.role == ROLE_INITIATOR) {
		flow = handshake->answered && acknowledges(packet, handshake->answer) ? agree(handshake, &key) : 0;
		return flow && note_begun(flow);
	}
	if (!is_syn_ack(packet))
		return 0;
	if (!may_answer(skb, &handshake->flow, &key))
		return give_up(handshake, &key);
	if (!handshake->answered && handshake->answer == ASKED_IN_TUNNEL && !is_in_tunnel(packet) &&
	    is_for_no_peer(skb, packet, &handshake->flow, &key))
		return give_up(handshake, &key);
	handshake->flow.sequence = bpf_htonl(bpf_ntohl(packet->acknowledgement) - 1);
	handshake->answer = packet->sequence;
	handshake->answered = SYN_ANSWERED;
	handshake->flow.from = origin_of(skb);
	/* Who sent the SYN may have lied about the node that the answer goes to. */
	if (is_in_tunnel(packet))
		handshake->flow.peer = peer_of_tunnel(skb, packet, BPF_FIB_LOOKUP_OUTPUT);
	return 1;
}

/* The flow of a packet that may belong to a handshake, before it is one of those that live. */
static __always_inline struct flow *handshaking(struct __sk_buff *skb, struct packet *packet, struct flow_key *key)
{
	struct handshake *handshake = bpf_map_lookup_elem(&handshakes, key);

	if (!is_first_syn(packet) && handshake && handshake->answered == MIDSTREAM)
		pick_up(skb, packet, key);
	else if (!is_first_syn(packet))
		settle(skb, packet, key);
	else if (!handshake || handshake->flow.role != ROLE_INITIATOR || handshake->flow.sequence != packet->sequence)
		if (!renew_flow(skb, packet, key))
			return 0;
	handshake = bpf_map_lookup_elem(&handshakes, key);
	return handshake && handshake->answered != MIDSTREAM ? &handshake->flow : 0;
}

/*
 * Of a routed path a packet in a tunnel is redirected also at the path's own NIC: there its
 * addresses say whether it comes by for the first time.
 */
static __always_inline int comes_first(struct __sk_buff *skb, const struct flow *flow, const struct packet *packet)
{
	struct node *node = this_node();
	__u8 path;

	if (likely(!is_in_tunnel(packet)) || !node || !node->routed)
		return 0;
	path = path_of_interface(node, skb->ifindex);
	return path < MAX_PATHS && node->routed >> path & 1 && !is_addressed(skb, packet, flow->peer, path);
}

/* A packet that was redirected comes by here once more, at its path's NIC, unless it is encapsulated. */
static __always_inline int was_redirected(struct __sk_buff *skb, struct flow *flow, const struct packet *packet)
{
	if (flow->redirected != skb->ifindex || comes_first(skb, flow, packet))
		return 0;
	flow->redirected = 0;
	count_sent(skb, packet, flow, flow->last);
	return 1;
}

/* What only the flow's own end may do: to end it, or to answer another SYN on it. */
static __always_inline int is_out_of_place(struct __sk_buff *skb, struct flow *flow, struct flow_key *key,
					   const struct packet *packet)
{
	if (likely(!(packet->flags & (TCP_FIN | TCP_RST | TCP_SYN))))
		return 0;
	if (is_forged(skb, &key->local))
		return 1;
	if (!is_syn_ack(packet) || !(flow->subtype & ANSWERED) ||
	    is_near(flow, packet->acknowledgement, EXPECTED_STEP, EXPECTED_STEP))
		return 0;
	/* The pod knows nothing of what the flow was: another had its address. */
	forget_flow(flow, key);
	return 1;
}

/* Only what came out of a tunnel's device is a tunnel's: a pod may send what looks so. */
static __always_inline int parse_leaving(struct __sk_buff *skb, struct packet *packet)
{
	restore_origin(skb);
	if (unlikely(is_of_tunnel(skb)))
		return skb->tc_index & ORIGIN_MAY_HAVE_FLOWS && parse_tunnel(skb, packet);
	return parse_packet(skb, packet);
}

/* Notes what a flow's end sends, as note_leaving; 0: that is not all. */
static __always_inline int note_hot_sent(struct __sk_buff *skb, const struct hot *hot, const struct packet *packet)
{
	__u32 numbers = numbers_of(skb, packet), end = bpf_ntohl(packet->sequence) + numbers, sent;
	struct flow flow = {};
	__u64 foreign = 0;

	if (!numbers)
		return 1;
	sent = read_hot(hot, &hot->entry->sent, &foreign);
	flow.unanswered = read_hot(hot, &hot->entry->unanswered, &foreign);
	if (origin_of(skb) != read_hot(hot, &hot->entry->from, &foreign) || foreign >> HOT_CLAIM)
		return 0;
	if (unlikely(sent - end < WINDOW)) {
		flow.slowest = read_hot(hot, &hot->entry->slowest, &foreign);
		return flow.unanswered && !(foreign >> HOT_CLAIM) && !waits_too_long(&flow, ticks());
	}
	if (!flow.unanswered)
		set_hot(&hot->entry->unanswered, hot->head, ticks());
	set_hot(&hot->entry->sent, hot->head, end);
	return 1;
}

/* The path that steer would choose for a plain packet, or NO_PATH. */
static __always_inline __u32 hot_path(const struct flow *flow, const struct node *node, const struct peer *peer,
				      const struct packet *packet)
{
	struct preference *preference = preference_of(flow->endpoint);
	__u8 paths = paths_to(peer, node, packet) & (preference ? preference->allowed : flow->allowed);

	if (preference) {
		if (flow->account != preference->account)
			return NO_PATH;
		paths = wanted_paths(preference, flow, paths);
	}
	paths = shared_path(flow, paths);
	if (flow->path < MAX_PATHS && paths >> flow->path & 1)
		return flow->path;
	return one_of(paths, flow->turn);
}

/* Another interface than the flow's is a forger's. */
static __always_inline void note_own_acknowledgement(struct __sk_buff *skb, const struct packet *packet,
						     const struct flow_key *key, const struct flow *flow)
{
	if (!numbers_of(skb, packet) && likely(origin_of(skb) == flow->from))
		note_acknowledgement(skb, packet, key, ACK_SENT);
}

enum {
	NOT_HOT = -2, /* in the place of a verdict */
};

/* What steer needs of a hot flow; 0: the packet says, or the node knows, something new. */
static __always_inline int read_hot_flow(const struct hot *hot, const struct node *node, const struct packet *packet,
					 struct flow *flow)
{
	__u64 foreign = 0;

	if (node->routed || read_hot(hot, &hot->entry->used, &foreign) != node->clock)
		return 0;
	read_numbers(hot, flow, &foreign);
	if (foreign >> HOT_CLAIM || flow->avoided || (flow->subtype & SENDS_MUCH && (may_share || rests(flow))) ||
	    says_news(flow, packet))
		return 0;
	flow->redirected = read_hot(hot, &hot->entry->redirected, &foreign);
	read_way(hot, flow, &foreign);
	flow->endpoint = read_hot(hot, &hot->entry->endpoint, &foreign);
	flow->from = read_hot(hot, &hot->entry->from, &foreign);
	return !(foreign >> HOT_CLAIM);
}

/* Sends a packet whose flow is hot as steer does, or leaves it to that. */
static __always_inline int steer_hot(struct __sk_buff *skb, const struct hot *hot, const struct packet *packet,
				     const struct flow_key *key)
{
	struct bpf_redir_neigh next_hop = { .nh_family = packet->carrier };
	struct node *node = this_node();
	struct flow flow = {};
	__u32 index, path, interface;
	struct peer *peer;

	if (!node || !read_hot_flow(hot, node, packet, &flow))
		return NOT_HOT;
	if (flow.redirected == skb->ifindex) {
		set_hot(&hot->entry->redirected, hot->head, 0);
		count_sent(skb, packet, &flow, flow.last);
		return TCX_NEXT;
	}
	index = flow.peer;
	peer = bpf_map_lookup_elem(&peers, &index);
	if (!peer || !peer->active)
		return NOT_HOT;
	path = hot_path(&flow, node, peer, packet);
	if (path >= MAX_PATHS || path != flow.last)
		return NOT_HOT;
	barrier_var(path);
	path &= MAX_PATHS - 1;
	interface = node->interface[path];
	if (!interface || !note_hot_sent(skb, hot, packet))
		return NOT_HOT;
	note_own_acknowledgement(skb, packet, key, &flow);
	if (interface == skb->ifindex) {
		count_sent(skb, packet, &flow, path);
		return TCX_NEXT;
	}
	if (packet->carrier == AF_INET)
		next_hop.nh[0] = peer->ipv4[path];
	else
		__builtin_memcpy(next_hop.nh, &peer->ipv6[path], sizeof(next_hop.nh));
	set_hot(&hot->entry->redirected, hot->head, interface);
	return bpf_redirect_neigh(interface, &next_hop, sizeof(next_hop), 0);
}

/* Sends a packet whose flow is in flows. */
static __always_inline int steer_known(struct __sk_buff *skb, struct packet *packet, struct flow_key *key, struct flow *flow,
				       const struct hot *hot)
{
	int verdict;

	return_notes(hot, flow);
	if (was_redirected(skb, flow, packet)) {
		if (hot->is_usable)
			set_hot(&hot->entry->redirected, hot->head, 0);
		return TCX_NEXT;
	}
	if (unlikely(is_out_of_place(skb, flow, key, packet)))
		return TCX_NEXT;
	if (is_plain(packet))
		note_own_acknowledgement(skb, packet, key, flow);
	note_expected(skb, flow, packet);
	if (note_end(flow, key, packet, ENDED_OUT))
		note_lasted(flow, packet->flags & TCP_RST);
	if (unlikely(flow->counted != ticks() >> SLICE || is_to_take_turn(flow)))
		rest_or_not(flow, packet);
	verdict = steer(skb, flow, packet, key, note_leaving(skb, flow, key, packet));
	follow_hot(hot, flow, key, packet->family, 1);
	return verdict;
}

SEC("tc")
int to_uplink(struct __sk_buff *skb)
{
	struct packet packet;
	struct flow_key *key = ends_of(&packet);
	int verdict, repeated;
	struct flow *flow;
	struct hot hot;

	if (!parse_leaving(skb, &packet))
		return TCX_NEXT;
	if (likely(!may_have_flows(&packet.source)))
		return TCX_NEXT;
	find_hot(&hot, key, packet.family);
	if (hot.is_usable && is_plain(&packet)) {
		verdict = steer_hot(skb, &hot, &packet, key);
		if (verdict != NOT_HOT)
			return verdict;
	}
	flow = bpf_map_lookup_elem(&flows, key);
	if (unlikely(packet.flags & TCP_SYN || !flow)) {
		if (!(packet.flags & TCP_SYN) && !may_shake_hands(key))
			return TCX_NEXT;
		flow = handshaking(skb, &packet, key);
		if (flow) {
			if (was_redirected(skb, flow, &packet))
				return TCX_NEXT;
			repeated = note_sent(skb, flow, &packet);
			if (unlikely(packet.flags & TCP_SYN)) {
				if (repeated)
					begin_elsewhere(flow, &packet);
				limit_segments(skb, &packet, flow->peer);
			}
			return steer(skb, flow, &packet, 0, 0);
		}
		hot.is_own = hot.is_usable = 0; /* what it found is of a flow that was */
		flow = bpf_map_lookup_elem(&flows, key);
	}
	if (!flow)
		return TCX_NEXT;
	return steer_known(skb, &packet, key, flow, &hot);
}

char _license[] SEC("license") = "Dual BSD/GPL";
