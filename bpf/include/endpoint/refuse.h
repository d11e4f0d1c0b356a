/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Refuses a packet: drops it, or answers it with a reset as its receiver would.
 */
#ifndef BRAID_REFUSE_H
#define BRAID_REFUSE_H

#include "edit.h"
#include "subflow.h"

enum {
	IPV4_ADDRESSES_AT = 12,
	IPV6_HOPS_AT = 7,
	IPV6_ADDRESSES_AT = 8,
	ETHERNET_ADDRESS = 6,
	USUAL_TTL = 64,
};

/* What TCP's checksum covers besides the segment. */
struct pseudo_header {
	__be32 addresses[8]; /* the first two of IPv4 */
	__be32 length_and_protocol;
};

static __always_inline void turn_ethernet(struct __sk_buff *skb)
{
	__u8 from[ETHERNET_ADDRESS], to[ETHERNET_ADDRESS];

	bpf_skb_load_bytes(skb, 0, to, sizeof(to));
	bpf_skb_load_bytes(skb, ETHERNET_ADDRESS, from, sizeof(from));
	bpf_skb_store_bytes(skb, 0, from, sizeof(from), 0);
	bpf_skb_store_bytes(skb, ETHERNET_ADDRESS, to, sizeof(to), 0);
}

static __always_inline void change_ipv4_word(struct __sk_buff *skb, const struct context *context, __u32 at, __be16 to)
{
	__be16 from;

	bpf_skb_load_bytes(skb, context->network + at, &from, sizeof(from));
	bpf_skb_store_bytes(skb, context->network + at, &to, sizeof(to), 0);
	bpf_l3_csum_replace(skb, context->network + IPV4_CHECKSUM_AT, from, to, sizeof(to));
}

static __always_inline void turn_ipv4(struct __sk_buff *skb, const struct context *context, struct pseudo_header *pseudo)
{
	__be32 from, to;

	bpf_skb_load_bytes(skb, context->network + IPV4_ADDRESSES_AT, &to, sizeof(to));
	bpf_skb_load_bytes(skb, context->network + IPV4_ADDRESSES_AT + sizeof(to), &from, sizeof(from));
	bpf_skb_store_bytes(skb, context->network + IPV4_ADDRESSES_AT, &from, sizeof(from), 0);
	bpf_skb_store_bytes(skb, context->network + IPV4_ADDRESSES_AT + sizeof(to), &to, sizeof(to), 0);
	change_ipv4_word(skb, context, IPV4_LENGTH_AT,
			 bpf_htons(context->transport - context->network + sizeof(struct tcphdr)));
	change_ipv4_word(skb, context, IPV4_TTL_AT, bpf_htons(USUAL_TTL << 8 | IPPROTO_TCP));
	pseudo->addresses[0] = from;
	pseudo->addresses[1] = to;
}

static __always_inline void turn_ipv6(struct __sk_buff *skb, const struct context *context, struct pseudo_header *pseudo)
{
	__u32 at = context->network + IPV6_ADDRESSES_AT, half = sizeof(struct address);
	__be16 length = bpf_htons(context->transport - context->network - sizeof(struct ipv6hdr) + sizeof(struct tcphdr));
	__u8 hops = USUAL_TTL;

	bpf_skb_load_bytes(skb, at, &pseudo->addresses[4], half);
	bpf_skb_load_bytes(skb, at + half, &pseudo->addresses[0], half);
	bpf_skb_store_bytes(skb, at, pseudo->addresses, 2 * half, 0);
	bpf_skb_store_bytes(skb, context->network + IPV6_LENGTH_AT, &length, sizeof(length), 0);
	bpf_skb_store_bytes(skb, context->network + IPV6_HOPS_AT, &hops, sizeof(hops), 0);
}

/* RFC 9293, section 3.10.7.1. */
static __always_inline void answer_with_reset(const struct context *context, const struct tcphdr *got,
					      struct tcphdr *reset)
{
	reset->source = got->dest;
	reset->dest = got->source;
	reset->doff = sizeof(*reset) / 4 << 4;
	reset->flags = TCP_RST;
	if (context->flags & TCP_ACK) {
		reset->seq = got->ack_seq;
		return;
	}
	reset->flags |= TCP_ACK;
	reset->ack_seq = bpf_htonl(context->sequence + context->payload + !!(context->flags & TCP_SYN) +
				   !!(context->flags & TCP_FIN));
}

/* Cuts off all that follows TCP's header, and what the NIC had summed up of it. */
static __always_inline int cut(struct __sk_buff *skb, __u32 end)
{
	return !bpf_skb_change_tail(skb, end, 0) && !bpf_skb_change_tail(skb, end + sizeof(struct tcphdr), 0) &&
	       !bpf_skb_change_tail(skb, end, 0);
}

/*
 * Turns the packet round into a reset. Whether the checksum is to be filled in by
 * the NIC cannot be seen here: the sum of the pseudo header alone is stored, which
 * is right then, and the rest added in the way that the kernel leaves out then.
 */
__noinline int turn_into_reset(struct __sk_buff *skb, struct context *context)
{
	struct tcphdr got = {}, reset = {};
	struct pseudo_header pseudo = {};
	__u64 sum;

	if (!context || bpf_skb_load_bytes(skb, context->transport, &got, sizeof(got)))
		return 0;
	if (!cut(skb, context->transport + sizeof(reset)))
		return 0;
	turn_ethernet(skb);
	if (context->family == AF_INET)
		turn_ipv4(skb, context, &pseudo);
	else
		turn_ipv6(skb, context, &pseudo);
	pseudo.length_and_protocol = bpf_htonl(sizeof(reset) + IPPROTO_TCP);
	answer_with_reset(context, &got, &reset);
	sum = (__u32)bpf_csum_diff(0, 0, (void *)&reset, sizeof(reset), 0);
	reset.check = folded((__u32)bpf_csum_diff(0, 0, (void *)&pseudo, sizeof(pseudo), 0));
	sum = folded(sum + 2ULL * reset.check);
	bpf_skb_store_bytes(skb, context->transport, &reset, sizeof(reset), 0);
	bpf_l4_csum_replace(skb, context->transport + TCP_CHECKSUM_AT, 0, sum, 0);
	return 1;
}

/*
 * Drops the packet. A reset goes back to the packet's sender: out of the endpoint's
 * interface, or into it as if the endpoint had sent it. A reset is not answered.
 */
__noinline int act_refuse(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
			  const struct action *action)
{
	if (!context || !subflow || !action)
		return UNTOUCHED;
	if (action->kind != ACTION_RESET)
		return DROPPED;
	if (context->flags & TCP_RST)
		return UNTOUCHED;
	if (turn_into_reset(skb, context))
		bpf_clone_redirect(skb, skb->ifindex, context->direction == FROM_ENDPOINT ? 0 : BPF_F_INGRESS);
	return DROPPED;
}

#endif
