/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Segments behind VLAN tags, for programs at interfaces that carry several networks, as a
 * guest's may: one or two tags, in the frame or beside it.
 */
#ifndef BRAID_TAGGED_H
#define BRAID_TAGGED_H

#include "packet.h"

enum {
	TAG_BYTES = 4,
	TAG_ID = 0xfff,
	TAG_ID_BITS = 12,
};

static __always_inline int is_tagged(const struct __sk_buff *skb)
{
	return skb->vlan_present || is_tag(skb->protocol);
}

/*
 * The protocol behind the tags, and where it begins; 0 where there are more than two tags.
 * Nothing is copied of a frame that has none in it.
 */
static __always_inline __be16 behind_tags(struct __sk_buff *skb, __u32 *network)
{
	__be16 protocol = network_protocol(skb, network);
	__u32 tags = (*network - sizeof(struct ethhdr)) / TAG_BYTES + (skb->vlan_present ? 1 : 0);

	return tags > MAX_TAGS ? 0 : protocol;
}

/* Global: the verifier looks at it once. */
__noinline int parse_tagged(struct __sk_buff *skb, struct packet *packet)
{
	struct ipv6hdr ipv6;
	struct iphdr ipv4;
	__u32 network;
	__be16 protocol;
	int offset = 0;

	if (!packet)
		return 0;
	protocol = behind_tags(skb, &network);
	if (protocol == bpf_htons(ETH_P_IP) && !bpf_skb_load_bytes(skb, network, &ipv4, sizeof(ipv4)))
		offset = parse_ipv4(&ipv4, network, packet);
	else if (protocol == bpf_htons(ETH_P_IPV6) && !bpf_skb_load_bytes(skb, network, &ipv6, sizeof(ipv6)))
		offset = parse_ipv6(skb, &ipv6, network, packet);
	if (offset <= 0)
		return 0;
	packet->network = network;
	packet->carrier = packet->family;
	return parse_tcp_header(skb, offset, packet);
}

/* Fills packet and returns 1 for a TCP segment, tagged or not; returns 0 for anything else. */
static __always_inline int parse_any_packet(struct __sk_buff *skb, struct packet *packet)
{
	return likely(!is_tagged(skb)) ? parse_packet(skb, packet) : parse_tagged(skb, packet);
}

/* Appends the number of a network to those before. */
static __always_inline __u32 within_network(__u32 numbers, __be16 tag)
{
	return numbers << TAG_ID_BITS | (bpf_ntohs(tag) & TAG_ID);
}

/* Which networks the tags name, the outer one first, before a network header. */
__noinline __u32 tagged_networks(struct __sk_buff *skb, __u32 network)
{
	__u32 numbers = skb->vlan_present ? skb->vlan_tci & TAG_ID : 0;
	__be16 tag = 0;

	if (network >= sizeof(struct ethhdr) + TAG_BYTES && !bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &tag, sizeof(tag)))
		numbers = within_network(numbers, tag);
	if (network >= sizeof(struct ethhdr) + 2 * TAG_BYTES &&
	    !bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + TAG_BYTES, &tag, sizeof(tag)))
		numbers = within_network(numbers, tag);
	return numbers;
}

/*
 * The same; 0 for a frame without tags, and for one whose tag is of priority alone, which
 * belongs to the same network.
 */
static __always_inline __u32 networks_of(struct __sk_buff *skb, __u32 network)
{
	return likely(!is_tagged(skb)) ? 0 : tagged_networks(skb, network);
}

#endif
