/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One parse of an Ethernet frame down to TCP. What is not a whole, unfragmented
 * TCP segment directly over IPv4 or IPv6 is not ours, and neither is a frame
 * with a VLAN tag: on a NIC it belongs to the VLAN's own interface, which is
 * where a path names it.
 */
#ifndef BRAID_PACKET_H
#define BRAID_PACKET_H

#include "kernel.h"

/* An IPv6 address, or an IPv4 address in its mapped form (::ffff:a.b.c.d). */
struct address {
	__be32 word[4];
};

struct packet {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__be32 sequence;
	__u16 options;       /* offset of the TCP options in the frame */
	__u16 options_length;
	__u8 family;
	__u8 flags;
};

enum {
	IPV4_FRAGMENT = 0x3fff, /* more-fragments bit and offset */
	HEADERS_MAX = 14 + 40 + 60,
};

static __always_inline void map_ipv4(struct address *to, __be32 from)
{
	to->word[0] = 0;
	to->word[1] = 0;
	to->word[2] = bpf_htonl(0xffff);
	to->word[3] = from;
}

static __always_inline int parse_tcp_header(struct __sk_buff *skb, void *data, void *end, __u32 offset,
					    struct packet *packet)
{
	struct tcphdr *tcp = data + offset;
	__u32 length;

	if ((void *)(tcp + 1) > end)
		return 0;
	length = (tcp->doff >> 4) * 4;
	if (length < sizeof(*tcp) || offset + length > skb->len)
		return 0;
	packet->source_port = tcp->source;
	packet->destination_port = tcp->dest;
	packet->sequence = tcp->seq;
	packet->flags = tcp->flags;
	packet->options = offset + sizeof(*tcp);
	packet->options_length = length - sizeof(*tcp);
	return 1;
}

static __always_inline int parse_ipv4(struct __sk_buff *skb, void *data, void *end, struct packet *packet)
{
	struct iphdr *ip = data + sizeof(struct ethhdr);
	__u32 length;

	if ((void *)(ip + 1) > end)
		return 0;
	if (ip->protocol != IPPROTO_TCP || (ip->frag_off & bpf_htons(IPV4_FRAGMENT)))
		return 0;
	length = (ip->ihl_version & 0xf) * 4;
	if (length < sizeof(*ip))
		return 0;
	packet->family = AF_INET;
	map_ipv4(&packet->source, ip->saddr);
	map_ipv4(&packet->destination, ip->daddr);
	return parse_tcp_header(skb, data, end, sizeof(struct ethhdr) + length, packet);
}

static __always_inline int parse_ipv6(struct __sk_buff *skb, void *data, void *end, struct packet *packet)
{
	struct ipv6hdr *ip = data + sizeof(struct ethhdr);

	if ((void *)(ip + 1) > end)
		return 0;
	if (ip->nexthdr != IPPROTO_TCP)
		return 0;
	packet->family = AF_INET6;
	__builtin_memcpy(&packet->source, ip->saddr, sizeof(packet->source));
	__builtin_memcpy(&packet->destination, ip->daddr, sizeof(packet->destination));
	return parse_tcp_header(skb, data, end, sizeof(struct ethhdr) + sizeof(*ip), packet);
}

/*
 * Some drivers leave part of the headers outside the linear area; they are
 * brought in once. Returns 0 when there is nothing more to bring in.
 */
static __always_inline int headers_missing(struct __sk_buff *skb)
{
	__u32 linear = skb->data_end - skb->data;

	if (likely(linear >= HEADERS_MAX || linear >= skb->len))
		return 0;
	return 1;
}

/* Fills packet and returns 1 for a TCP segment; returns 0 for anything else. */
static __always_inline int parse_packet(struct __sk_buff *skb, struct packet *packet)
{
	void *data, *end;
	struct ethhdr *ethernet;

	if (skb->vlan_present)
		return 0;
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	if (unlikely(headers_missing(skb)))
		bpf_skb_pull_data(skb, skb->len < HEADERS_MAX ? skb->len : HEADERS_MAX);
	data = (void *)(unsigned long)skb->data;
	end = (void *)(unsigned long)skb->data_end;
	ethernet = data;
	if ((void *)(ethernet + 1) > end)
		return 0;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		return parse_ipv4(skb, data, end, packet);
	if (ethernet->h_proto == bpf_htons(ETH_P_IPV6))
		return parse_ipv6(skb, data, end, packet);
	return 0;
}

/* The segment that asks for a new connection or subflow. */
static __always_inline int is_first_syn(const struct packet *packet)
{
	return (packet->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

static __always_inline int is_syn_ack(const struct packet *packet)
{
	return (packet->flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK);
}

#endif
