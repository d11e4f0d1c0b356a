//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * name-sender: the egress of each device that puts packets into others, after to_tunnel.
 * Only here it is known by which interface a packet came into the node; the meter of the
 * NIC, where the path is known, is told by tc_index (origin.h). It changes nothing else.
 */
#include "sender.h"
#include "kept_origin.h"

/* By the network header: some tunnels' devices have none of Ethernet. */
static __always_inline enum source read_inner_source(struct __sk_buff *skb, struct address *source)
{
	__be32 ipv4;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes_relative(skb, IPV4_SOURCE, &ipv4, sizeof(ipv4), BPF_HDR_START_NET))
			return NOT_IP;
		map_ipv4(source, ipv4);
		return FROM_IPV4;
	}
	if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
	    bpf_skb_load_bytes_relative(skb, IPV6_SOURCE, source, sizeof(*source), BPF_HDR_START_NET))
		return NOT_IP;
	return FROM_IPV6;
}

SEC("tc")
int name_sender(struct __sk_buff *skb)
{
	__u32 noted = skb->tc_index, row = row_of_interface(skb->ingress_ifindex);
	struct address source = {};
	enum source kind;

	if (!row) {
		kind = read_inner_source(skb, &source);
		row = row_of_address(&source, kind);
	}
	if (row && row <= ORIGIN_NUMBER)
		skb->tc_index = (noted & (ORIGIN_FORGED | ORIGIN_MAY_HAVE_FLOWS)) | ORIGIN_TUNNEL | ORIGIN_ENDPOINT | row;
	else if (noted & ORIGIN_ENDPOINT && is_guarded(noted & ORIGIN_NUMBER))
		skb->tc_index = noted & ~ORIGIN_ENDPOINT; /* a pod can write it too, where to_tunnel is not */
	keep_origin(skb);
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
