//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * unparsable: both directions of the host's end of an endpoint's interface, where a
 * guardrail says Drop. Drops packets that may be TCP and whose header no rule sees:
 * fragments, extension headers beyond the bound, IPsec, what is cut off.
 */
#include "guard.h"

/* TCP's header at its offset, or why there is none. */
static __always_inline int is_unparsable_tcp(struct __sk_buff *skb, __u32 network, int transport, __u32 length)
{
	__u32 there = skb->len - network;
	struct tcphdr tcp;

	if (transport <= 0)
		return transport == UNPARSABLE;
	if (bpf_skb_load_bytes(skb, transport, &tcp, sizeof(tcp)))
		return 1;
	return !is_whole_tcp(&tcp, transport - network, length ? length : there, there);
}

static __always_inline int is_unparsable_ipv4(struct __sk_buff *skb, __u32 network)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, network, &ip, sizeof(ip)))
		return 1;
	return is_unparsable_tcp(skb, network, ipv4_transport(&ip, network), ipv4_length(&ip));
}

static __always_inline int is_unparsable_ipv6(struct __sk_buff *skb, __u32 network)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, network, &ip, sizeof(ip)))
		return 1;
	return is_unparsable_tcp(skb, network, ipv6_transport(skb, &ip, network), ipv6_length(&ip));
}

static __always_inline int is_unparsable(struct __sk_buff *skb)
{
	__u32 network;
	__be16 protocol = network_protocol(skb, &network);

	if (protocol == bpf_htons(ETH_P_IP))
		return is_unparsable_ipv4(skb, network);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return is_unparsable_ipv6(skb, network);
	return is_tag(protocol);
}

SEC("tc")
int unparsable(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex, *row;
	struct usage *usage;

	if (likely(!is_unparsable(skb)))
		return TCX_NEXT;
	row = bpf_map_lookup_elem(&interfaces, &index);
	usage = row ? bpf_map_lookup_elem(&usages, row) : 0;
	if (usage)
		__sync_fetch_and_add(&usage->unparsable_packets, 1);
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
