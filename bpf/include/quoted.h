/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors begin with the packet that they are about: whose segment it is, that a router
 * found too large or could not deliver.
 */
#ifndef BRAID_QUOTED_H
#define BRAID_QUOTED_H

#include "packet.h"

enum {
	ICMP_UNREACHABLE = 3, /* too large among them */
	ICMP_TIME_EXCEEDED = 11,
	ICMP_PARAMETER = 12,
	ICMPV6_UNREACHABLE = 1,
	ICMPV6_TOO_BIG = 2,
	ICMPV6_QUERIES = 128, /* from here on types are no errors */
	ICMP_CHECKSUM_AT = 2,
	ICMP_QUOTE_AT = 8,
	IPV4_FRAGMENT_OFFSET = 0x1fff,
};

/* A TCP segment, as an error quotes it. */
struct quoted {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u32 checksum; /* offset of that of the error in the frame */
	__u32 ports;    /* and of the segment's ports */
	__u8 type;      /* of the error */
};

static __always_inline int find_quoted_ipv4(struct __sk_buff *skb, __u32 at, struct quoted *quoted)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.protocol != IPPROTO_ICMP || ip.frag_off & bpf_htons(IPV4_FRAGMENT))
		return 0;
	at += (ip.ihl_version & 0xf) * 4;
	quoted->checksum = at + ICMP_CHECKSUM_AT;
	if (bpf_skb_load_bytes(skb, at, &quoted->type, sizeof(quoted->type)))
		return 0;
	if (quoted->type != ICMP_UNREACHABLE && quoted->type != ICMP_TIME_EXCEEDED && quoted->type != ICMP_PARAMETER)
		return 0;
	at += ICMP_QUOTE_AT;
	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP || ip.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		return 0;
	map_ipv4(&quoted->source, ip.saddr);
	map_ipv4(&quoted->destination, ip.daddr);
	quoted->ports = at + (ip.ihl_version & 0xf) * 4;
	return 1;
}

static __always_inline int find_quoted_ipv6(struct __sk_buff *skb, __u32 at, struct quoted *quoted)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_ICMPV6)
		return 0;
	at += sizeof(ip);
	quoted->checksum = at + ICMP_CHECKSUM_AT;
	if (bpf_skb_load_bytes(skb, at, &quoted->type, sizeof(quoted->type)) || !quoted->type || quoted->type >= ICMPV6_QUERIES)
		return 0;
	at += ICMP_QUOTE_AT;
	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP)
		return 0;
	__builtin_memcpy(&quoted->source, ip.saddr, sizeof(quoted->source));
	__builtin_memcpy(&quoted->destination, ip.daddr, sizeof(quoted->destination));
	quoted->ports = at + sizeof(ip);
	return 1;
}

/*
 * Reads what an ICMP error quotes, whose network header begins at an offset; 0 where the
 * packet is none, or about something else.
 */
static __always_inline int find_quoted_at(struct __sk_buff *skb, __be16 protocol, __u32 network, struct quoted *quoted)
{
	__be16 ports[2];
	int found = 0;

	if (protocol == bpf_htons(ETH_P_IP))
		found = find_quoted_ipv4(skb, network, quoted);
	else if (protocol == bpf_htons(ETH_P_IPV6))
		found = find_quoted_ipv6(skb, network, quoted);
	if (!found || bpf_skb_load_bytes(skb, quoted->ports, ports, sizeof(ports)))
		return 0;
	quoted->source_port = ports[0];
	quoted->destination_port = ports[1];
	return 1;
}

/* The same of a frame without VLAN tags. */
static __always_inline int find_quoted(struct __sk_buff *skb, struct quoted *quoted)
{
	return !skb->vlan_present && find_quoted_at(skb, skb->protocol, sizeof(struct ethhdr), quoted);
}

#endif
