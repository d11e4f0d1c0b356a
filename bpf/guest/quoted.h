/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors begin with what they are about: a router that finds a join's packet too large
 * quotes the real port, and the guest knows no such socket. It finds its own by the announced
 * one.
 */
#ifndef BRAID_QUOTED_H
#define BRAID_QUOTED_H

#include "guest.h"

enum {
	ICMP_UNREACHABLE = 3, /* too large among them */
	ICMP_TIME_EXCEEDED = 11,
	ICMP_PARAMETER = 12,
	ICMPV6_QUERIES = 128, /* from here on types are no errors */
	ICMP_CHECKSUM_AT = 2,
	ICMP_QUOTE_AT = 8,
	IPV4_FRAGMENT_OFFSET = 0x1fff,
};

/* A segment of the guest's, as an error quotes it. */
struct quoted {
	struct flow_key key;
	__u32 checksum; /* offset of that of the error in the frame */
	__u32 ports;    /* and of the segment's ports */
};

static __always_inline int is_error(struct __sk_buff *skb, __u32 at, __u8 family)
{
	__u8 type;

	if (bpf_skb_load_bytes(skb, at, &type, sizeof(type)))
		return 0;
	if (family == AF_INET6)
		return type && type < ICMPV6_QUERIES;
	return type == ICMP_UNREACHABLE || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETER;
}

static __always_inline int find_quoted_ipv4(struct __sk_buff *skb, struct quoted *quoted)
{
	__u32 at = sizeof(struct ethhdr);
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.protocol != IPPROTO_ICMP || ip.frag_off & bpf_htons(IPV4_FRAGMENT))
		return 0;
	at += (ip.ihl_version & 0xf) * 4;
	quoted->checksum = at + ICMP_CHECKSUM_AT;
	if (!is_error(skb, at, AF_INET))
		return 0;
	at += ICMP_QUOTE_AT;
	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP || ip.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		return 0;
	map_ipv4(&quoted->key.guest, ip.saddr);
	map_ipv4(&quoted->key.peer, ip.daddr);
	quoted->ports = at + (ip.ihl_version & 0xf) * 4;
	return 1;
}

static __always_inline int find_quoted_ipv6(struct __sk_buff *skb, struct quoted *quoted)
{
	__u32 at = sizeof(struct ethhdr);
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_ICMPV6)
		return 0;
	at += sizeof(ip);
	quoted->checksum = at + ICMP_CHECKSUM_AT;
	if (!is_error(skb, at, AF_INET6))
		return 0;
	at += ICMP_QUOTE_AT;
	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP)
		return 0;
	__builtin_memcpy(&quoted->key.guest, ip.saddr, sizeof(quoted->key.guest));
	__builtin_memcpy(&quoted->key.peer, ip.daddr, sizeof(quoted->key.peer));
	quoted->ports = at + sizeof(ip);
	return 1;
}

static __always_inline int find_quoted(struct __sk_buff *skb, struct quoted *quoted)
{
	__be16 ports[2];
	int found = 0;

	if (skb->vlan_present)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		found = find_quoted_ipv4(skb, quoted);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		found = find_quoted_ipv6(skb, quoted);
	if (!found || bpf_skb_load_bytes(skb, quoted->ports, ports, sizeof(ports)))
		return 0;
	quoted->key.guest_port = ports[0];
	quoted->key.peer_port = ports[1];
	return 1;
}

/* Writes the announced port into what an error quotes of a join. */
static __always_inline void translate_quoted(struct __sk_buff *skb, void *flows)
{
	struct quoted quoted = {};
	struct flow *join;
	__be16 real, port;

	if (!find_quoted(skb, &quoted))
		return;
	join = bpf_map_lookup_elem(flows, &quoted.key);
	if (!join || join->kind != FLOW_JOIN)
		return;
	real = quoted.key.peer_port;
	port = join->other_port;
	if (port != real && !bpf_skb_store_bytes(skb, quoted.ports + 2, &port, sizeof(port), 0))
		bpf_l4_csum_replace(skb, quoted.checksum, real, port, sizeof(port));
}

#endif
