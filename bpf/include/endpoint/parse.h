/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The one parse of a run. Ours is a whole, unfragmented TCP segment over IPv4 or
 * IPv6, also behind VLAN tags: a guest may tag its frames, and its subflows are told
 * apart by addresses and ports all the same.
 */
#ifndef BRAID_PARSE_H
#define BRAID_PARSE_H

#include "context.h"
#include "../transport.h"

static __always_inline void set_ipv6_address(struct address *to, const __be32 from[4])
{
	__u64 *halves = (void *)to;

	halves[0] = two_words(from[0], from[1]);
	halves[1] = two_words(from[2], from[3]);
}

/* The sender is the endpoint in one direction and its peer in the other. */
static __always_inline void set_ipv4(struct context *context, const struct iphdr *ip, __u32 direction)
{
	context->family = AF_INET;
	map_ipv4(direction == FROM_ENDPOINT ? &context->key.local : &context->key.remote, ip->saddr);
	map_ipv4(direction == FROM_ENDPOINT ? &context->key.remote : &context->key.local, ip->daddr);
}

static __always_inline void set_ipv6(struct context *context, const struct ipv6hdr *ip, __u32 direction)
{
	context->family = AF_INET6;
	set_ipv6_address(direction == FROM_ENDPOINT ? &context->key.local : &context->key.remote, ip->saddr);
	set_ipv6_address(direction == FROM_ENDPOINT ? &context->key.remote : &context->key.local, ip->daddr);
}

/* Both ports as one word, the endpoint's first. */
static __always_inline void set_ports(struct context *context, const struct tcphdr *tcp, __u32 direction)
{
	__u32 ports = *(const __u32 *)tcp;

	if (direction != FROM_ENDPOINT)
		ports = ports << 16 | ports >> 16;
	*(__u32 *)&context->key.local_port = ports;
}

/* length is that of the packet from the network header on, there what the frame has. */
static __always_inline int set_tcp(struct context *context, const struct tcphdr *tcp, __u32 network, __u32 transport,
				   __u32 length, __u32 there, __u32 direction)
{
	__u32 header = (tcp->doff >> 4) * 4, headers = transport - network + header;

	if (!length)
		length = there;
	if (!is_whole_tcp(tcp, transport - network, length, there))
		return 0;
	context->network = network;
	context->transport = transport;
	context->payload = length - headers;
	context->options_length = header - sizeof(*tcp);
	context->flags = tcp->flags;
	context->sequence = bpf_ntohl(tcp->seq);
	context->acknowledgement = bpf_ntohl(tcp->ack_seq);
	context->window = bpf_ntohs(tcp->window);
	set_ports(context, tcp, direction);
	return 1;
}

/* Brings a header into the linear area if need be; false when the frame is too short. */
static __always_inline int find_header(hook_frame *frame, __u32 offset, __u32 size, void **header)
{
	void *data, *end;

	if (!readable(frame, offset + size))
		return 0;
	data = frame_begin(frame);
	end = frame_end(frame);
	barrier_var(data);
	*header = data + offset;
	return data + offset + size <= end;
}

/* The headers of the network layer return the offset of TCP's, or none (enum transport). */
static __always_inline int find_ipv4(hook_frame *frame, struct context *context, __u32 network, __u32 *length)
{
	struct iphdr *ip;

	if (!find_header(frame, network, sizeof(*ip), (void **)&ip))
		return UNPARSABLE;
	set_ipv4(context, ip, context->direction);
	*length = ipv4_length(ip);
	return ipv4_transport(ip, network);
}

static __always_inline int find_ipv6(hook_frame *frame, struct context *context, __u32 network, __u32 *length)
{
	struct ipv6hdr *ip;

	if (!find_header(frame, network, sizeof(*ip), (void **)&ip))
		return UNPARSABLE;
	set_ipv6(context, ip, context->direction);
	*length = ipv6_length(ip);
	return ipv6_transport(frame, ip, network);
}

/* Any packet, step by step. */
__noinline int parse_unusual(hook_frame *frame, struct context *context)
{
	__u32 network, length = 0;
	struct tcphdr *tcp;
	__be16 protocol;
	int transport;

	if (!context)
		return 0;
	protocol = network_protocol(frame, &network);
	if (protocol == bpf_htons(ETH_P_IP))
		transport = find_ipv4(frame, context, network, &length);
	else if (protocol == bpf_htons(ETH_P_IPV6))
		transport = find_ipv6(frame, context, network, &length);
	else
		return 0;
	if (transport <= 0)
		return 0;
	transport &= TRANSPORT_MASK;
	if (!find_header(frame, transport, sizeof(*tcp), (void **)&tcp))
		return 0;
	return set_tcp(context, tcp, network, transport, length, frame_length(frame) - network, context->direction);
}

/*
 * What nearly all packets are: headers of fixed lengths, all of them in the linear
 * area. Anything else goes step by step.
 */
static __always_inline int parse_in(hook_frame *frame, struct context *context, __u32 direction)
{
	void *data = frame_begin(frame), *end = frame_end(frame);
	const __u32 network = sizeof(struct ethhdr);
	struct ipv6hdr *ipv6 = data + network;
	struct iphdr *ip = data + network;
	struct tcphdr *tcp = (void *)(ip + 1);

	if (frame_protocol(frame) == bpf_htons(ETH_P_IP) && (void *)(tcp + 1) <= end && ip->ihl_version == 0x45) {
		if (ipv4_transport(ip, network) <= 0)
			return 0;
		set_ipv4(context, ip, direction);
		return set_tcp(context, tcp, network, network + sizeof(*ip), ipv4_length(ip), frame_length(frame) - network, direction);
	}
	tcp = (void *)(ipv6 + 1);
	if (frame_protocol(frame) == bpf_htons(ETH_P_IPV6) && (void *)(tcp + 1) <= end &&
	    (likely(ipv6->nexthdr == IPPROTO_TCP) || !is_extension(ipv6->nexthdr))) {
		if (ipv6->nexthdr != IPPROTO_TCP)
			return 0;
		set_ipv6(context, ipv6, direction);
		return set_tcp(context, tcp, network, network + sizeof(*ipv6), ipv6_length(ipv6), frame_length(frame) - network, direction);
	}
	return parse_unusual(frame, context);
}

/*
 * Fills the context of a TCP segment and returns 1; returns 0 for anything else.
 * The direction and the endpoint must be set before; what run.h sets later (the
 * time, the segments and the options) is left alone.
 */
static __always_inline int parse(hook_frame *frame, struct context *context)
{
	return parse_unusual(frame, context);
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
