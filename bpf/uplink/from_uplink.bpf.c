//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * from-uplink: the ingress of each NIC. Remembers on which NIC a subflow's
 * packets come in, so that its answers leave on the same one, and learns a
 * connection's token from the responder's key. It changes no packet, but for what to_uplink
 * of another node has encapsulated, or given other outer addresses, for a path over routers,
 * tc_index of what is in a tunnel (origin.h), and DATA_ACKs of duplicates (duplicate_ack.h).
 */
#include "uplink/duplicate_ack.h"
#include "uplink/handshake.h"
#include "uplink/outer.h"
#include "uplink/pick_up.h"
#include "uplink/silence.h"
#include "uplink/slow.h"
#include "uplink/traffic.h"
#include "uplink/encapsulation.h"

/*
 * A SYN from a peer. Only one that carries MPTCP and whose sender lies behind a
 * known peer is followed; everything else is answered as the routes say.
 */
static __noinline int follow_syn(struct __sk_buff *skb, struct packet *packet, struct flow_key *key)
{
	struct mptcp_option option = {};
	struct handshake handshake = { .flow.role = ROLE_RESPONDER };
	struct flow *flow = &handshake.flow;
	struct endpoint *endpoint;
	struct node *node = this_node();

	if (!packet || !key || !node)
		return 0;
	flow->path = path_of_interface(node, skb->ifindex);
	if (flow->path == NO_PATH)
		return 0;
	if (!find_mptcp_option(skb, packet->options, packet->options_length, &option) || option.has_key)
		return 0;
	endpoint = bpf_map_lookup_elem(&endpoints, &key->local);
	if (endpoint)
		flow->endpoint = endpoint->id;
	flow->peer = peer_of(skb, packet, key, flow->endpoint, 0);
	if (flow->peer == NO_PEER)
		return 0;
	if (!has_room(&key->remote))
		return 0;
	flow->sequence = packet->sequence;
	flow->allowed = 0xff;
	flow->last = NO_PATH;
	flow->turn = flow_hash(key);
	flow->subtype = option.subtype;
	handshake.answer = is_in_tunnel(packet) ? ASKED_IN_TUNNEL : 0;
	if (!begin_handshake(key, &handshake, node))
		return 0;
	note_local(&key->local);
	return 1;
}

/* The answer to MP_CAPABLE has the connection's token in it. */
static __noinline int learn_token(struct __sk_buff *skb, struct packet *packet, struct flow *flow)
{
	struct mptcp_option option = {};

	if (!packet || !flow)
		return 0;
	if (!find_mptcp_option(skb, packet->options, packet->options_length, &option) || !option.has_key)
		return 0;
	flow->token = token_of(&option);
	return 1;
}

/*
 * The initiator's node decides a subflow's path, also when it moves it away from
 * a dead one; the responder answers wherever the last packet came in, unless its
 * own endpoint prefers another path.
 */
static __always_inline void follow_packet(struct __sk_buff *skb, struct flow *flow)
{
	struct node *node = this_node();
	__u8 path;

	if (!node)
		return;
	path = path_here(skb, node, flow);
	if (path != NO_PATH && path != flow->path)
		flow->path = path;
}

/* Counts a packet of this flow on the path of the NIC that it came by, and follows it. */
static __always_inline void note_arrival(struct __sk_buff *skb, struct flow *flow, const struct packet *packet)
{
	struct node *node = this_node();
	__u8 path;

	if (!node)
		return;
	path = path_here(skb, node, flow);
	if (flow->role == ROLE_RESPONDER && path != NO_PATH && path != flow->path)
		flow->path = path;
	if (unlikely(flow->incoming != (__u8)(path + 1)))
		flow->incoming = path + 1;
	count_received(skb, packet, flow, path);
}

/*
 * Whether a SYN may begin anew here. A forged one must not take a living flow off its
 * path: its end answers a SYN only when it knows of no such flow any more.
 */
static __always_inline int is_open(const struct flow *flow)
{
	return flow->ended == ENDED_BOTH || (flow->role == ROLE_RESPONDER && !(flow->subtype & ANSWERED));
}

/*
 * A SYN may begin a handshake also where a flow lives: a peer that died without a word
 * uses its ports again. The flow stays until the handshake has ended.
 */
static __always_inline void ask(struct __sk_buff *skb, struct packet *packet, struct flow_key *key, struct flow *flow)
{
	struct handshake *handshake = bpf_map_lookup_elem(&handshakes, key);

	if (flow && repeats_syn(flow, packet)) {
		if (flow->role == ROLE_RESPONDER)
			follow_packet(skb, flow);
		return;
	}
	if (!flow)
		forget_hot(key); /* flows has made room, and the next packets are the handshake's */
	else if (is_open(flow))
		forget_flow(flow, key);
	if (!handshake || handshake->answered == MIDSTREAM ||
	    (handshake->flow.role == ROLE_RESPONDER && !handshake->answered && handshake->flow.sequence != packet->sequence))
		follow_syn(skb, packet, key);
	else if (handshake->flow.role == ROLE_RESPONDER && handshake->flow.sequence == packet->sequence)
		follow_packet(skb, &handshake->flow);
}

/*
 * What comes in while a handshake is under way. This end's SYN is answered, or the other
 * end shows by its number that it has seen this end's SYN/ACK: then they have agreed.
 */
static __noinline int answer(struct __sk_buff *skb, struct packet *packet, struct flow_key *key)
{
	struct handshake *handshake;
	struct flow *flow;

	if (!packet || !key)
		return 0;
	handshake = bpf_map_lookup_elem(&handshakes, key);
	if (!handshake || handshake->answered == MIDSTREAM)
		return 0;
	if (handshake->flow.role == ROLE_INITIATOR) {
		if (!acknowledges(packet, handshake->flow.sequence))
			return 0;
		if (packet->flags & TCP_RST)
			return give_up(handshake, key);
		if (!is_syn_ack(packet) || handshake->answered)
			return 0;
		handshake->answer = packet->sequence;
		handshake->answered = SYN_ANSWERED;
		note_arrival(skb, &handshake->flow, packet);
		note_answer(&handshake->flow);
		return !(handshake->flow.subtype & SUBTYPE_JOIN) && learn_token(skb, packet, &handshake->flow);
	}
	if (packet->flags & TCP_SYN || !continues(handshake, packet))
		return 0;
	if (packet->flags & TCP_RST)
		return give_up(handshake, key);
	if (!handshake->answered || !acknowledges(packet, handshake->answer))
		return 0;
	note_arrival(skb, &handshake->flow, packet);
	note_answer(&handshake->flow);
	flow = agree(handshake, key);
	if (flow && packet->flags & TCP_FIN)
		note_end(flow, key, packet, ENDED_IN);
	return 1;
}

/* Notes what came in for a flow of which nothing is known, and by which path. */
static __noinline int note_midstream(struct __sk_buff *skb, struct packet *packet, struct flow_key *key)
{
	struct handshake begun = { .answered = MIDSTREAM }, *handshake;
	struct node *node = this_node();
	__u8 path;

	if (!packet || !key || !node || (packet->flags & (TCP_SYN | TCP_FIN | TCP_RST | TCP_ACK)) != TCP_ACK)
		return 0;
	path = path_of_interface(node, skb->ifindex);
	if (path == NO_PATH)
		return 0;
	begun.flow.path = path;
	begun.flow.sent = bpf_ntohl(packet->acknowledgement);
	begun.answer = packet->sequence;
	handshake = bpf_map_lookup_elem(&handshakes, key);
	if (!handshake)
		return begin_midstream(skb, packet, key, &begun, node);
	if (handshake->answered != MIDSTREAM)
		return 0;
	handshake->flow.path = path;
	handshake->flow.sent = begun.flow.sent;
	handshake->answer = begun.answer;
	return 1;
}

/* For the programs that see the packet out of its tunnel. */
static __always_inline void note_path(struct __sk_buff *skb)
{
	struct node *node = this_node();
	__u32 path = node ? path_of_interface(node, skb->ifindex) : NO_PATH;

	skb->tc_index = path < MAX_PATHS ? ARRIVAL | path << ARRIVAL_PATH_SHIFT : 0;
}

/* Of what is no segment of TCP: what is within, as it is at other nodes. */
static __always_inline int parse_arrived(struct __sk_buff *skb, struct packet *packet)
{
	if (unlikely(may_be_encapsulated(skb)) && decapsulate(skb))
		return parse_packet(skb, packet);
	if (likely(!may_be_tunnel(skb)) || !parse_tunnel(skb, packet))
		return 0;
	restore_outer(skb, packet);
	note_path(skb);
	return 1;
}

/* Notes an answer to a hot flow's data, as note_answer; 0: that is not all. */
static __always_inline int note_hot_answer(const struct hot *hot, const struct flow *flow, __u32 unanswered)
{
	__u32 now = ticks(), waited = (now - unanswered) / WAIT_UNIT, slowest, *answer;
	__u64 foreign = 0;

	slowest = read_hot(hot, &hot->entry->slowest, &foreign);
	if (read_hot(hot, &hot->entry->counted, &foreign) != now >> SLICE || flow->tries || foreign >> HOT_CLAIM)
		return 0;
	set_hot(&hot->entry->unanswered, hot->head, 0);
	answer = flow->last < MAX_PATHS ? answer_on(flow, flow->last) : 0;
	if (answer && *answer != now)
		*answer = now;
	if (waited > LONGEST_WAIT)
		waited = LONGEST_WAIT;
	if (waited < slowest)
		waited = slowest - (slowest >> 4) - 1;
	if (waited != slowest)
		set_hot(&hot->entry->slowest, hot->head, waited);
	return 1;
}

/* Notes what comes in for a hot flow, as note_arrival and note_received; 0: leaves it to these. */
static __always_inline int note_hot_arrival(struct __sk_buff *skb, const struct hot *hot, const struct packet *packet)
{
	__u32 sequence = bpf_ntohl(packet->sequence), received, unanswered, advanced, path, is_new;
	struct node *node = this_node();
	struct flow flow = {};
	__u64 foreign = 0;

	if (!node || node->clock != read_hot(hot, &hot->entry->used, &foreign))
		return 0;
	read_numbers(hot, &flow, &foreign);
	read_way(hot, &flow, &foreign);
	received = read_hot(hot, &hot->entry->received, &foreign);
	unanswered = read_hot(hot, &hot->entry->unanswered, &foreign);
	advanced = read_hot(hot, &hot->entry->advanced, &foreign);
	if (foreign >> HOT_CLAIM || flow.avoided || !is_expected(&flow, packet))
		return 0;
	path = path_here(skb, node, &flow);
	if ((flow.role == ROLE_RESPONDER && path != flow.path) || flow.incoming != (__u8)(path + 1))
		return 0;
	is_new = received - sequence >= WINDOW;
	if ((is_new || (!unanswered && flow.incoming != (__u8)(flow.last + 1))) && advanced != ((__u16)hot->head | 1 << 16))
		return 0;
	if (unanswered && !note_hot_answer(hot, &flow, unanswered))
		return 0;
	if (is_new)
		set_hot(&hot->entry->received, hot->head, sequence);
	count_received(skb, packet, &flow, path);
	return 1;
}

SEC("tc")
int from_uplink(struct __sk_buff *skb)
{
	struct packet packet;
	struct flow_key key;
	struct flow *flow;
	struct hot hot;
	__u8 came_by;
	int syn;

	if (!parse_packet(skb, &packet) && !parse_arrived(skb, &packet))
		return TCX_NEXT;
	syn = is_first_syn(&packet);
	if (likely(!syn && !may_have_flows(&packet.destination)))
		return TCX_NEXT;
	key.local = packet.destination;
	key.remote = packet.source;
	key.local_port = packet.destination_port;
	key.remote_port = packet.source_port;
	find_hot(&hot, &key, packet.family);
	if (hot.is_usable && is_plain(&packet) && note_hot_arrival(skb, &hot, &packet)) {
		note_acknowledgement(skb, &packet, &key, ACK_RECEIVED);
		return TCX_NEXT;
	}
	flow = bpf_map_lookup_elem(&flows, &key);
	if (unlikely(syn)) {
		ask(skb, &packet, &key, flow);
		return TCX_NEXT;
	}
	if (unlikely(!flow || !is_expected(flow, &packet))) {
		if (!(may_shake_hands(&key) && answer(skb, &packet, &key)) && !flow && picks_up())
			note_midstream(skb, &packet, &key);
		return TCX_NEXT;
	}
	return_notes(&hot, flow);
	came_by = flow->incoming;
	note_arrival(skb, flow, &packet);
	note_received(skb, flow, &packet, came_by);
	if (is_plain(&packet))
		note_acknowledgement(skb, &packet, &key, ACK_RECEIVED);
	if (unlikely(packet.flags & (TCP_FIN | TCP_RST)) && is_expected_end(flow, &packet) &&
	    note_end(flow, &key, &packet, ENDED_IN))
		note_lasted(flow, packet.flags & TCP_RST);
	follow_hot(&hot, flow, &key, packet.family, 0);
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
