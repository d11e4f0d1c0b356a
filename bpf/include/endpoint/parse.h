/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The one parse of a run. Ours is a whole, unfragmented TCP segment directly over
 * IPv4 or IPv6, with at most one VLAN tag, be it in the frame or beside it: a
 * guest may tag its frames, and its subflows are told apart by addresses and
 * ports all the same.
 */
#ifndef BRAID_PARSE_H
#define BRAID_PARSE_H

#include "context.h"

struct vlan_header {
	__be16 tag;
	__be16 protocol;
};

/*
 * The sender is the endpoint in one direction and its peer in the other; the
 * direction is a constant of the program.
 */
static __always_inline void set_ipv4_addresses(struct context *context, const struct iphdr *ip)
{
	if (context->direction == FROM_ENDPOINT) {
		map_ipv4(&context->key.local, ip->saddr);
		map_ipv4(&context->key.remote, ip->daddr);
	} else {
		map_ipv4(&context->key.local, ip->daddr);
		map_ipv4(&context->key.remote, ip->saddr);
	}
}

static __always_inline void set_ipv6_addresses(struct context *context, const struct ipv6hdr *ip)
{
	if (context->direction == FROM_ENDPOINT) {
		__builtin_memcpy(&context->key.local, ip->saddr, sizeof(struct address));
		__builtin_memcpy(&context->key.remote, ip->daddr, sizeof(struct address));
	} else {
		__builtin_memcpy(&context->key.local, ip->daddr, sizeof(struct address));
		__builtin_memcpy(&context->key.remote, ip->saddr, sizeof(struct address));
	}
}

/* Brings a header into the linear area if need be; false when the frame is too short. */
static __always_inline int find_header(struct __sk_buff *skb, __u32 offset, __u32 size, void **header)
{
	void *data, *end;

	if (!readable(skb, offset + size))
		return 0;
	data = (void *)(unsigned long)skb->data;
	end = (void *)(unsigned long)skb->data_end;
	barrier_var(data);
	*header = data + offset;
	return data + offset + size <= end;
}

/*
 * The network headers set the packet's length from the IP header on, which is 0
 * where it does not fit its field (BIG TCP), and return the offset of TCP's.
 */
static __always_inline __u32 read_ipv4(struct __sk_buff *skb, struct context *context, __u32 network,
				     __u32 *length)
{
	struct iphdr *ip;
	__u32 header;

	if (!find_header(skb, network, sizeof(*ip), (void **)&ip))
		return 0;
	if (ip->protocol != IPPROTO_TCP || (ip->frag_off & bpf_htons(IPV4_FRAGMENT)))
		return 0;
	header = (ip->ihl_version & 0xf) * 4;
	if (header < sizeof(*ip))
		return 0;
	context->family = AF_INET;
	set_ipv4_addresses(context, ip);
	*length = bpf_ntohs(ip->tot_len);
	return network + header;
}

static __always_inline __u32 read_ipv6(struct __sk_buff *skb, struct context *context, __u32 network,
				     __u32 *length)
{
	struct ipv6hdr *ip;

	if (!find_header(skb, network, sizeof(*ip), (void **)&ip) || ip->nexthdr != IPPROTO_TCP)
		return 0;
	context->family = AF_INET6;
	set_ipv6_addresses(context, ip);
	*length = ip->payload_len ? bpf_ntohs(ip->payload_len) + sizeof(*ip) : 0;
	return network + sizeof(*ip);
}

static __always_inline void set_ports(struct context *context, const struct tcphdr *tcp)
{
	if (context->direction == FROM_ENDPOINT) {
		context->key.local_port = tcp->source;
		context->key.remote_port = tcp->dest;
	} else {
		context->key.local_port = tcp->dest;
		context->key.remote_port = tcp->source;
	}
}

/* before is the length of the network header, length that of all from it on. */
static __always_inline int read_tcp(struct __sk_buff *skb, struct context *context, __u32 transport, __u32 before,
				    __u32 length)
{
	struct tcphdr *tcp;
	__u32 header, headers;

	if (!find_header(skb, transport, sizeof(*tcp), (void **)&tcp))
		return 0;
	header = (tcp->doff >> 4) * 4;
	headers = before + header;
	if (header < sizeof(*tcp) || headers > length)
		return 0;
	context->payload = length - headers;
	context->options_length = header - sizeof(*tcp);
	context->flags = tcp->flags;
	context->sequence = bpf_ntohl(tcp->seq);
	context->acknowledgement = bpf_ntohl(tcp->ack_seq);
	context->window = bpf_ntohs(tcp->window);
	set_ports(context, tcp);
	return 1;
}

/* The protocol above Ethernet and a tag that is in the frame, and where it begins. */
static __always_inline __be16 network_protocol(struct __sk_buff *skb, __u32 *network)
{
	__be16 protocol = skb->protocol;
	struct vlan_header *vlan;

	*network = sizeof(struct ethhdr);
	if (likely(protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD)))
		return protocol;
	if (!find_header(skb, sizeof(struct ethhdr), sizeof(*vlan), (void **)&vlan))
		return 0;
	*network += sizeof(*vlan);
	return vlan->protocol;
}

/*
 * Fills the context of a TCP segment and returns 1; returns 0 for anything else.
 * The direction and the endpoint must be set before; what run.h sets later (the
 * time, the segments and the options) is left alone.
 */
static __always_inline int parse(struct __sk_buff *skb, struct context *context)
{
	__u32 network, transport, length = 0, there;
	__be16 protocol = network_protocol(skb, &network);

	if (protocol == bpf_htons(ETH_P_IP))
		transport = read_ipv4(skb, context, network, &length);
	else if (protocol == bpf_htons(ETH_P_IPV6))
		transport = read_ipv6(skb, context, network, &length);
	else
		return 0;
	if (!transport)
		return 0;
	there = skb->len - network;
	if (!length)
		length = there;
	if (length > there)
		return 0;
	context->network = network;
	context->transport = transport;
	return read_tcp(skb, context, transport, transport - network, length);
}

/* A GSO packet stands for several segments. */
static __always_inline __u16 segments_of(const struct __sk_buff *skb)
{
	__u32 segments = skb->gso_segs;

	return segments ? segments : 1;
}

/* The segment that asks for a new connection or subflow, and its answer. */
static __always_inline int asks(const struct context *context)
{
	return (context->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

static __always_inline int answers(const struct context *context)
{
	return (context->flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK);
}

static __always_inline int is_pure_ack(const struct context *context)
{
	return !context->payload && (context->flags & (TCP_SYN | TCP_FIN | TCP_RST | TCP_ACK)) == TCP_ACK;
}

#endif
