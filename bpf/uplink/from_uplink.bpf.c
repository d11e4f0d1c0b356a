//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * from-uplink: the ingress of each NIC. Remembers on which NIC a subflow's
 * packets come in, so that its answers leave on the same one, and learns a
 * connection's token from the responder's key. It changes no packet.
 */
#include "uplink/flow.h"

/*
 * A SYN from a peer. Only one that carries MPTCP and whose sender lies behind a
 * known peer is followed; everything else is answered as the routes say.
 */
static __noinline int follow_syn(struct __sk_buff *skb, struct packet *packet, struct flow_key *key)
{
	struct mptcp_option option = {};
	struct flow flow = { .role = ROLE_RESPONDER };
	struct endpoint *endpoint;
	struct node *node = this_node();

	if (!packet || !key || !node)
		return 0;
	flow.path = path_of_interface(node, skb->ifindex);
	if (flow.path == NO_PATH)
		return 0;
	if (!find_mptcp_option(skb, packet->options, packet->options_length, &option) || option.has_key)
		return 0;
	flow.peer = peer_of_route(skb, key, packet->family, 0);
	if (flow.peer == NO_PEER)
		return 0;
	endpoint = bpf_map_lookup_elem(&endpoints, &key->local);
	if (endpoint)
		flow.endpoint = endpoint->id;
	if (!take_room(&key->remote))
		return 0;
	flow.sequence = packet->sequence;
	flow.allowed = 0xff;
	flow.turn = flow_hash(key);
	flow.subtype = option.subtype;
	if (bpf_map_update_elem(&flows, key, &flow, BPF_ANY)) {
		give_room(&key->remote);
		return 0;
	}
	note_local(&key->local);
	return 1;
}

/* The answer to MP_CAPABLE: from here on, joining subflows find the connection. */
static __noinline int learn_token(struct __sk_buff *skb, struct packet *packet, struct flow *flow)
{
	struct mptcp_option option = {};
	struct connection connection = {};
	struct connection_key key = {};

	if (!packet || !flow)
		return 0;
	if (!find_mptcp_option(skb, packet->options, packet->options_length, &option) || !option.has_key)
		return 0;
	flow->token = token_of(&option);
	key.endpoint = flow->endpoint;
	key.token = flow->token;
	connection.subflows = 1ULL << ((flow->path & (MAX_PATHS - 1)) * 8);
	bpf_map_update_elem(&connections, &key, &connection, BPF_NOEXIST);
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
	path = path_of_interface(node, skb->ifindex);
	if (path != NO_PATH && path != flow->path)
		flow->path = path;
}

/*
 * Whether a SYN may begin anew here. A forged one must not take a living flow off its
 * path: its end answers a SYN only when it knows of no such flow any more.
 */
static __always_inline int is_open(const struct flow *flow)
{
	return flow->ended == ENDED_BOTH || (flow->role == ROLE_RESPONDER && !(flow->subtype & ANSWERED));
}

SEC("tc")
int from_uplink(struct __sk_buff *skb)
{
	struct packet packet;
	struct flow_key key;
	struct flow *flow;
	int syn;

	if (!parse_packet(skb, &packet))
		return TCX_NEXT;
	syn = is_first_syn(&packet);
	if (likely(!syn && !may_have_flows(&packet.destination)))
		return TCX_NEXT;
	key.local = packet.destination;
	key.remote = packet.source;
	key.local_port = packet.destination_port;
	key.remote_port = packet.source_port;
	flow = bpf_map_lookup_elem(&flows, &key);
	if (unlikely(syn && !(flow && repeats_syn(flow, &packet)))) {
		if (!flow || is_open(flow)) {
			if (flow)
				forget_flow(flow, &key);
			follow_syn(skb, &packet, &key);
			return TCX_NEXT;
		}
	}
	if (!flow || unlikely(!is_expected(flow, &packet)))
		return TCX_NEXT;
	if (flow->role == ROLE_RESPONDER)
		follow_packet(skb, flow);
	else if (is_syn_ack(&packet) && flow->subtype == SUBTYPE_CAPABLE && !flow->token && answers_syn(flow, &packet))
		learn_token(skb, &packet, flow);
	if (unlikely(packet.flags & (TCP_FIN | TCP_RST)) && is_expected_end(flow, &packet))
		note_end(flow, &key, &packet, ENDED_IN);
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
