//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * to-client: the egress of the node's end of a client's interface, behind Braid's other
 * programs there: what the server answers to the relay, and what routers say of its
 * packets, goes to the relay.
 */
#include "proxy.h"

enum {
	ICMP_UNREACHABLE = 3,
	ICMPV6_UNREACHABLE = 1,
	ICMPV6_TOO_BIG = 2,
	ICMP_HEADER = 8,
};

static __always_inline int is_relayed(const struct relayed_key *key)
{
	struct relayed *flow = bpf_map_lookup_elem(&relayed_flows, key);

	if (flow)
		return flow->state != RELAYED_PASSES;
	return bpf_map_lookup_elem(&relayed_joins, key) != 0;
}

static __always_inline void read_ends(struct relayed_key *key, struct __sk_buff *skb, __u32 offset)
{
	__be16 ports[2] = {};

	bpf_skb_load_bytes(skb, offset, ports, sizeof(ports));
	key->client_port = ports[0];
	key->server_port = ports[1];
}

/* Reads the ends of the packet that an ICMP error is about; 0 where it is none. */
static __always_inline int quoted_by_icmp(struct __sk_buff *skb, struct relayed_key *key)
{
	struct iphdr outer, inner;
	__u32 at;
	__u8 type;

	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &outer, sizeof(outer)) || outer.protocol != IPPROTO_ICMP)
		return 0;
	at = sizeof(struct ethhdr) + (outer.ihl_version & 0xf) * 4;
	if (bpf_skb_load_bytes(skb, at, &type, sizeof(type)) || type != ICMP_UNREACHABLE)
		return 0;
	at += ICMP_HEADER;
	if (bpf_skb_load_bytes(skb, at, &inner, sizeof(inner)) || inner.protocol != IPPROTO_TCP)
		return 0;
	map_ipv4(&key->client, inner.saddr);
	map_ipv4(&key->server, inner.daddr);
	read_ends(key, skb, at + (inner.ihl_version & 0xf) * 4);
	return 1;
}

static __always_inline int quoted_by_icmpv6(struct __sk_buff *skb, struct relayed_key *key)
{
	struct ipv6hdr outer, inner;
	__u32 at = sizeof(struct ethhdr);
	__u8 type;

	if (bpf_skb_load_bytes(skb, at, &outer, sizeof(outer)) || outer.nexthdr != IPPROTO_ICMPV6)
		return 0;
	at += sizeof(outer);
	if (bpf_skb_load_bytes(skb, at, &type, sizeof(type)) || (type != ICMPV6_UNREACHABLE && type != ICMPV6_TOO_BIG))
		return 0;
	at += ICMP_HEADER;
	if (bpf_skb_load_bytes(skb, at, &inner, sizeof(inner)) || inner.nexthdr != IPPROTO_TCP)
		return 0;
	__builtin_memcpy(&key->client, inner.saddr, sizeof(key->client));
	__builtin_memcpy(&key->server, inner.daddr, sizeof(key->server));
	read_ends(key, skb, at + sizeof(inner));
	return 1;
}

__noinline int is_about_relayed(struct __sk_buff *skb)
{
	struct relayed_key key = { .interface = skb->ifindex };

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return quoted_by_icmp(skb, &key) && is_relayed(&key);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return quoted_by_icmpv6(skb, &key) && is_relayed(&key);
	return 0;
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
