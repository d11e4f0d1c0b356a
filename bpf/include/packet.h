/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One parse of an Ethernet frame down to TCP. What is not a whole, unfragmented
 * TCP segment over IPv4 or IPv6 is not ours, and neither is a frame with a VLAN
 * tag: on a NIC it belongs to the VLAN's own interface, which is where a path
 * names it.
 */
#ifndef BRAID_PACKET_H
#define BRAID_PACKET_H

#include "address.h"
#include "transport.h"

struct packet {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__be32 sequence;
	__be32 acknowledgement;
	__u16 options;  /* offset of the TCP options in the frame */
	__u16 network;  /* that of the header with these addresses: a tunnel's comes before it */
	__u8 options_length;
	__u8 family;
	__u8 carrier;   /* family of the header that the NIC's network sees */
	__u8 flags;
};

static __always_inline int parse_tcp_header(struct __sk_buff *skb, __u32 offset, struct packet *packet)
{
	struct tcphdr *tcp;
	__u32 length;

	barrier_var(offset);
	offset &= TRANSPORT_MASK;
	if (!readable(skb, offset + sizeof(*tcp)))
		return 0;
	tcp = (void *)(unsigned long)skb->data + offset;
	if ((void *)(tcp + 1) > (void *)(unsigned long)skb->data_end)
		return 0;
	length = (tcp->doff >> 4) * 4;
	if (length < sizeof(*tcp) || offset + length > skb->len)
		return 0;
	*(__u32 *)&packet->source_port = *(const __u32 *)tcp;
	packet->sequence = tcp->seq;
	packet->acknowledgement = tcp->ack_seq;
	packet->flags = tcp->flags;
	packet->options = offset + sizeof(*tcp);
	packet->options_length = length - sizeof(*tcp);
	return 1;
}

/* The headers of the network layer return the offset of TCP's, or none (enum transport). */
static __always_inline int parse_ipv4(const struct iphdr *ip, __u32 network, struct packet *packet)
{
	int offset = ipv4_transport(ip, network);

	if (offset <= 0)
		return offset;
	packet->family = AF_INET;
	map_ipv4(&packet->source, ip->saddr);
	map_ipv4(&packet->destination, ip->daddr);
	return offset;
}

static __always_inline int parse_ipv6(struct __sk_buff *skb, const struct ipv6hdr *ip, __u32 network,
				      struct packet *packet)
{
	if (!may_be_tcp(ip->nexthdr))
		return NOT_TCP;
	packet->family = AF_INET6;
	__builtin_memcpy(&packet->source, ip->saddr, sizeof(packet->source));
	__builtin_memcpy(&packet->destination, ip->daddr, sizeof(packet->destination));
	return ipv6_transport(skb, ip, network);
}

static __always_inline int parse_network(struct __sk_buff *skb, struct packet *packet)
{
	int is_ipv4 = skb->protocol == bpf_htons(ETH_P_IP);
	struct ethhdr *ethernet;
	void *end, *ip;

	if (!readable(skb, sizeof(*ethernet) + (is_ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr))))
		return 0;
	ethernet = (void *)(unsigned long)skb->data;
	end = (void *)(unsigned long)skb->data_end;
	ip = ethernet + 1;
	if (ip > end || ethernet->h_proto != (__be16)skb->protocol)
		return 0;
	if (is_ipv4)
		return ip + sizeof(struct iphdr) > end ? 0 : parse_ipv4(ip, sizeof(*ethernet), packet);
	return ip + sizeof(struct ipv6hdr) > end ? 0 : parse_ipv6(skb, ip, sizeof(*ethernet), packet);
}

/* Fills packet and returns 1 for a TCP segment; returns 0 for anything else. */
static __always_inline int parse_packet(struct __sk_buff *skb, struct packet *packet)
{
	int offset;

	if (skb->vlan_present)
		return 0;
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	offset = parse_network(skb, packet);
	if (offset <= 0)
		return 0;
	packet->network = sizeof(struct ethhdr);
	packet->carrier = packet->family;
	return parse_tcp_header(skb, offset, packet);
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
