/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Counts what the flows of selected pods send and receive on each path, at the NIC that
 * carries it: a packet that is redirected counts where it comes by again.
 */
#ifndef BRAID_UPLINK_TRAFFIC_H
#define BRAID_UPLINK_TRAFFIC_H

#include "flow.h"

/* The path of the NIC that the packet is at, or NO_PATH; most often it is the flow's. */
static __always_inline __u8 path_here(const struct __sk_buff *skb, const struct node *node, const struct flow *flow)
{
	__u32 path = flow->path;

	/* The verifier of Linux 6.1 forgets the bounds of what was spilled. */
	barrier_var(path);
	if (likely(path < MAX_PATHS && node->interface[path & (MAX_PATHS - 1)] == skb->ifindex))
		return path;
	return path_of_interface(node, skb->ifindex);
}

/* How many packets the wire has of this one. A guest's may not say how many it has. */
static __always_inline __u32 segments_of(const struct __sk_buff *skb, __u32 headers)
{
	__u32 size = skb->gso_size;

	return skb->gso_segs ? skb->gso_segs : (skb->len - headers + size - 1) / size;
}

/* Each segment has headers of its own. */
static __always_inline void count(const struct __sk_buff *skb, const struct packet *packet, __u64 *bytes, __u64 *packets)
{
	__u32 headers, segments;

	*bytes += skb->len;
	*packets += 1;
	if (likely(!skb->gso_size))
		return;
	headers = packet->options + packet->options_length;
	segments = segments_of(skb, headers);
	*bytes += (__u64)(segments - 1) * headers;
	*packets += segments - 1;
}

static __always_inline struct traffic *traffic_of(__u32 account, __u32 path)
{
	__u32 index = path < MAX_PATHS ? account * MAX_PATHS + path : TRAFFIC_OF_NO_PATH + account;

	return bpf_map_lookup_elem(&traffic, &index);
}

/* Counts a packet of the flow that leaves by this path's NIC. */
static __always_inline void count_sent(const struct __sk_buff *skb, const struct packet *packet,
				       const struct flow *flow, __u8 path)
{
	struct traffic *traffic = flow->account ? traffic_of(flow->account, path) : 0;

	if (traffic)
		count(skb, packet, &traffic->sent_bytes, &traffic->sent_packets);
}

/* Counts a packet of the flow that came in by this path's NIC. */
static __always_inline void count_received(const struct __sk_buff *skb, const struct packet *packet,
					   const struct flow *flow, __u8 path)
{
	struct traffic *traffic = flow->account ? traffic_of(flow->account, path) : 0;

	if (traffic)
		count(skb, packet, &traffic->received_bytes, &traffic->received_packets);
}

#endif
