//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * to-tunnel: the egress of each device that puts packets into others. Here it is still
 * known by which interface a packet came in: what to_uplink is to know of its sender goes
 * with it in tc_index (uplink/origin.h), and is kept where that is lost (kept_origin.h). It changes
 * nothing else.
 */
#include "kept_origin.h"
#include "uplink/origin.h"

enum {
	IPV4_SOURCE = 12,
	IPV6_SOURCE = 8,
};

/* By the network header: some tunnels' devices have none of Ethernet. */
static __always_inline int read_source(struct __sk_buff *skb, struct address *source)
{
	__be32 ipv4;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes_relative(skb, IPV4_SOURCE, &ipv4, sizeof(ipv4), BPF_HDR_START_NET))
			return 0;
		map_ipv4(source, ipv4);
		return 1;
	}
	return skb->protocol == bpf_htons(ETH_P_IPV6) &&
	       !bpf_skb_load_bytes_relative(skb, IPV6_SOURCE, source, sizeof(*source), BPF_HDR_START_NET);
}

static __always_inline __u32 origin_by_address(const struct address *source, __u32 from)
{
	struct endpoint *endpoint = bpf_map_lookup_elem(&endpoints, source);

	if (from && is_foreign(endpoint, from))
		return ORIGIN_FORGED | (from & ORIGIN_NUMBER);
	if (endpoint)
		return ORIGIN_ENDPOINT | (endpoint->id & ORIGIN_NUMBER);
	return from & ORIGIN_NUMBER;
}

SEC("tc")
int to_tunnel(struct __sk_buff *skb)
{
	__u32 from = skb->ingress_ifindex;
	struct address source = {};

	skb->tc_index = ORIGIN_TUNNEL | (from & ORIGIN_NUMBER);
	if (read_source(skb, &source) && may_have_flows(&source))
		skb->tc_index = ORIGIN_TUNNEL | ORIGIN_MAY_HAVE_FLOWS | origin_by_address(&source, from);
	keep_origin(skb);
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
