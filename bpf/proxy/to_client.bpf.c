//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * to-client: the egress of the node's end of a client's interface, behind Braid's other
 * programs there: what the server answers to the relay, and what routers say of its
 * packets, goes to the relay.
 */
#include "proxy.h"
#include "quoted.h"

static __always_inline int is_relayed(const struct relayed_key *key)
{
	struct relayed *flow = bpf_map_lookup_elem(&relayed_flows, key);

	if (flow)
		return flow->state != RELAYED_PASSES;
	return bpf_map_lookup_elem(&relayed_joins, key) != 0;
}

/* What cannot be delivered, or is too large; other errors are the client's. */
static __always_inline int concerns_relay(const struct quoted *quoted, __be16 protocol)
{
	if (protocol == bpf_htons(ETH_P_IP))
		return quoted->type == ICMP_UNREACHABLE;
	return quoted->type == ICMPV6_UNREACHABLE || quoted->type == ICMPV6_TOO_BIG;
}

__noinline int is_about_relayed(struct __sk_buff *skb)
{
	struct relayed_key key = { .interface = skb->ifindex };
	struct quoted quoted = {};

	if (!find_quoted(skb, &quoted) || !concerns_relay(&quoted, skb->protocol))
		return 0;
	key.client = quoted.source;
	key.server = quoted.destination;
	key.client_port = quoted.source_port;
	key.server_port = quoted.destination_port;
	return is_relayed(&key);
}

SEC("tc")
int to_client(struct __sk_buff *skb)
{
	__u32 interface = skb->ifindex;
	struct packet packet = {};
	struct relayed_key key;
	struct client *client;

	if (skb->tc_index == FROM_RELAY)
		return TCX_NEXT;
	client = bpf_map_lookup_elem(&clients, &interface);
	if (!client)
		return TCX_NEXT;
	if (!parse_packet(skb, &packet))
		return is_about_relayed(skb) ? to_relay(skb, client->relay) : TCX_NEXT;
	key.client = packet.destination;
	key.server = packet.source;
	key.client_port = packet.destination_port;
	key.server_port = packet.source_port;
	key.interface = interface;
	return is_relayed(&key) ? to_relay(skb, client->relay) : TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
