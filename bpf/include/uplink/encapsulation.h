/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Natively routed packets of pods on paths whose subnets routers join. The routers of such a
 * path know the nodes' addresses there and not those of pods, so a packet is encapsulated: in IP
 * between these addresses, in UDP, and behind the key of the node that decapsulates it, where
 * nobody else's packets get through. The packet itself stays as it is. Both headers of IP are
 * of one version; UDP has no checksum (RFC 6935), as TCP has one within.
 */
#ifndef BRAID_UPLINK_ENCAPSULATION_H
#define BRAID_UPLINK_ENCAPSULATION_H

#include "outer.h"

enum encapsulation {
	ENCAPSULATION_PORT = 8478, /* that of the probes, which firewalls let pass */
	ENCAPSULATION_MORE_IPV4 = sizeof(struct iphdr) + sizeof(struct udphdr) + sizeof(__u64),
	ENCAPSULATION_MORE_IPV6 = sizeof(struct ipv6hdr) + sizeof(struct udphdr) + sizeof(__u64),
	/* In pod_ranges: a pod of this node whose packets are never encapsulated, as a guard would not know them within. */
	NEVER_ENCAPSULATED = 0x10000 | OUTER_OF_THIS_NODE,
};

enum {
	ENCAPSULATION_MOST = 65535,          /* what the length of an IPv4 packet may be */
	ENCAPSULATION_HOPS = 64,
	ENCAPSULATION_FIRST_PORT = 49152,    /* sources' ports: they have routers spread flows */
	ENCAPSULATION_PORT_BITS = 0x3fff,
	IPV4_WITHOUT_OPTIONS = 0x45,
	IPV4_DONT_FRAGMENT = 0x4000,
	DSCP = 0xfc,                   /* of the traffic class: ECN stays within (RFC 6040) */
	FLOW_LABEL = 0xfffff,
	OPTION_SEGMENT = 2,
	FEWEST_SEGMENT_BYTES = 536,
	SYN_OPTIONS = 8,               /* of those that are looked through */
	RANGE_BITS = 8 * sizeof(struct address),
	NO_NODE = 0x10000,

	BPF_ADJ_ROOM_MAC = 1,
	BPF_F_ADJ_ROOM_FIXED_GSO = 1,
	BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 = 2,
	BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 = 4,
	BPF_F_ADJ_ROOM_ENCAP_L4_UDP = 16,
};

static long (*const bpf_skb_adjust_room)(struct __sk_buff *skb, __s32 more, __u32 mode, __u64 flags) = (void *)50;

/*
 * What a node decapsulates by, and over which paths to encapsulate for it. Earlier agents call
 * the structure and the pinned map so: by these names an agent takes over the key that others know.
 */
struct wrapping {
	__u64 key;   /* 0: it decapsulates nothing */
	__u32 mtu;   /* the smallest one of this node's NICs on those paths */
	__u32 paths; /* that lead to it over a router, a bit for each */
};

/* By a peer's index; OUTER_OF_THIS_NODE has this node's own key. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PEERS + 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct wrapping);
} wrappings SEC(".maps");

struct encapsulation_ipv4 {
	struct iphdr ip;
	struct udphdr udp;
	__u64 key;
} __attribute__((packed, aligned(4)));

struct encapsulation_ipv6 {
	struct ipv6hdr ip;
	struct udphdr udp;
	__u64 key;
} __attribute__((aligned(8)));

/* The index of the node whose pods have this address, OUTER_OF_THIS_NODE and NEVER_ENCAPSULATED among them, or NO_NODE. */
static __always_inline __u32 node_of_pod(const struct address *pod)
{
	struct range_key key = { .bits = RANGE_BITS, .address = *pod };
	__u32 *index = bpf_map_lookup_elem(&pod_ranges, &key);

	return index ? *index : NO_NODE;
}

static __always_inline struct wrapping *encapsulation_of(__u32 peer)
{
	return bpf_map_lookup_elem(&wrappings, &peer);
}

static __always_inline __u32 more_of(__u8 family)
{
	return family == AF_INET ? ENCAPSULATION_MORE_IPV4 : ENCAPSULATION_MORE_IPV6;
}

/*
 * Whether each segment and the whole have room for it. What has none leaves as the
 * cluster network has it, and is never cut.
 */
static __always_inline int has_room_to_encapsulate(const struct __sk_buff *skb, const struct packet *packet, __u32 mtu)
{
	__u32 headers = packet->options + packet->options_length - sizeof(struct ethhdr);
	__u32 whole = skb->len - sizeof(struct ethhdr), more = more_of(packet->family);
	__u32 size = skb->gso_size ? headers + skb->gso_size : whole;

	return size + more <= mtu && whole + more <= ENCAPSULATION_MOST;
}

/* The same for all packets of a flow. */
static __always_inline __u32 mix_packet(const struct packet *packet)
{
	__u32 folded = packet->source.word[3] ^ packet->destination.word[3] ^ packet->source_port ^ packet->destination_port;

	return (folded ^ folded >> 16) * 0x9e3779b1;
}

static __always_inline void fill_udp(struct udphdr *udp, __u32 mixed, __u32 length)
{
	udp->source = bpf_htons(ENCAPSULATION_FIRST_PORT + (mixed >> 16 & ENCAPSULATION_PORT_BITS));
	udp->dest = bpf_htons(ENCAPSULATION_PORT);
	udp->len = bpf_htons(length);
	udp->check = 0;
}

static __always_inline int encapsulate_ipv4(struct __sk_buff *skb, const struct packet *packet, const struct outer_ends *ends,
				     __u64 key)
{
	__u32 length = skb->len - sizeof(struct ethhdr) + ENCAPSULATION_MORE_IPV4;
	struct encapsulation_ipv4 header = {
		.ip.ihl_version = IPV4_WITHOUT_OPTIONS,
		.ip.tot_len = bpf_htons(length),
		.ip.frag_off = bpf_htons(IPV4_DONT_FRAGMENT),
		.ip.ttl = ENCAPSULATION_HOPS,
		.ip.protocol = IPPROTO_UDP,
		.ip.saddr = ends->source.word[3],
		.ip.daddr = ends->destination.word[3],
		.key = key,
	};

	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + 1, &header.ip.tos, sizeof(header.ip.tos)))
		return 0;
	header.ip.tos &= DSCP;
	header.ip.check = ~folded(bpf_csum_diff(0, 0, &header.ip, sizeof(header.ip), 0));
	fill_udp(&header.udp, mix_packet(packet), length - sizeof(header.ip));
	return !bpf_skb_adjust_room(skb, sizeof(header), BPF_ADJ_ROOM_MAC,
				    BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP) &&
	       !bpf_skb_store_bytes(skb, sizeof(struct ethhdr), &header, sizeof(header), 0);
}

static __always_inline int encapsulate_ipv6(struct __sk_buff *skb, const struct packet *packet, const struct outer_ends *ends,
				     __u64 key)
{
	__u32 length = skb->len - sizeof(struct ethhdr) + ENCAPSULATION_MORE_IPV6 - sizeof(struct ipv6hdr);
	struct encapsulation_ipv6 header = {
		.ip.payload_len = bpf_htons(length),
		.ip.nexthdr = IPPROTO_UDP,
		.ip.hop_limit = ENCAPSULATION_HOPS,
		.key = key,
	};
	__u32 mixed = mix_packet(packet);
	__be32 flow;

	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &flow, sizeof(flow)))
		return 0;
	header.ip.flow = (flow & bpf_htonl(0xf0000000 | DSCP << 20)) | bpf_htonl(mixed >> 12 & FLOW_LABEL);
	__builtin_memcpy(header.ip.saddr, &ends->source, sizeof(*ends));
	fill_udp(&header.udp, mixed, length);
	return !bpf_skb_adjust_room(skb, sizeof(header), BPF_ADJ_ROOM_MAC,
				    BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP) &&
	       !bpf_skb_store_bytes(skb, sizeof(struct ethhdr), &header, sizeof(header), 0);
}

/* Whether this path leads to the peer over a router, which does not know pods' addresses. */
static __always_inline int is_beyond(__u32 peer, __u32 path)
{
	struct wrapping *encapsulation = encapsulation_of(peer);

	return encapsulation && encapsulation->paths >> path & 1;
}

/*
 * Whether the peer decapsulates this packet: it goes from a pod of this node to
 * one of the peer's. Global, as replace_outer.
 */
__noinline int may_encapsulate(struct __sk_buff *skb, const struct packet *packet, __u32 peer)
{
	struct wrapping *encapsulation = encapsulation_of(peer);

	return packet && encapsulation && encapsulation->key && has_room_to_encapsulate(skb, packet, encapsulation->mtu) &&
	       node_of_pod(&packet->source) == OUTER_OF_THIS_NODE && node_of_pod(&packet->destination) == peer;
}

/* Encapsulates the packet for this path. Global, as replace_outer. */
__noinline int encapsulate(struct __sk_buff *skb, const struct packet *packet, __u32 peer, __u32 path)
{
	struct wrapping *encapsulation = encapsulation_of(peer);
	__u32 here = OUTER_OF_THIS_NODE, there = peer;
	struct outer *own, *other;
	struct outer_ends ends;

	if (!packet || !encapsulation)
		return 0;
	own = bpf_map_lookup_elem(&outers, &here);
	other = bpf_map_lookup_elem(&outers, &there);
	if (!own || !other || !take_ends(own, other, packet->family, path, &ends))
		return 0;
	return packet->family == AF_INET ? encapsulate_ipv4(skb, packet, &ends, encapsulation->key) :
					   encapsulate_ipv6(skb, packet, &ends, encapsulation->key);
}

/* An option of TCP that says how large segments may be. */
struct segment_option {
	__u8 kind;
	__u8 length;
	__be16 size;
};

/* Where this option is in a SYN, or 0. */
static __always_inline __u32 find_segment_option(struct __sk_buff *skb, const struct packet *packet,
						 struct segment_option *option)
{
	__u32 at = packet->options, end = at + packet->options_length;
	int i;

	for (i = 0; i < SYN_OPTIONS && at + sizeof(*option) <= end; i++) {
		if (bpf_skb_load_bytes(skb, at, option, sizeof(*option)) || option->kind == OPTION_END)
			return 0;
		if (option->kind == OPTION_SEGMENT)
			return option->length == sizeof(*option) ? at : 0;
		at += option->kind == OPTION_NOP || option->length < 2 ? 1 : option->length;
	}
	return 0;
}

/*
 * Has the other end send segments that can be encapsulated, to and from a peer for whom that is
 * done: this SYN or SYN/ACK tells it how large they may be. Never larger than it
 * says already. Global, as replace_outer.
 */
__noinline int limit_segments(struct __sk_buff *skb, const struct packet *packet, __u32 peer)
{
	struct wrapping *encapsulation = encapsulation_of(peer);
	struct segment_option option = {};
	__u32 at, most, less;
	__be16 size;

	if (!packet || !encapsulation || !encapsulation->paths || is_in_tunnel(packet))
		return 0;
	less = more_of(packet->family) + packet->options - packet->network;
	if (encapsulation->mtu < less + FEWEST_SEGMENT_BYTES || encapsulation->mtu > ENCAPSULATION_MOST)
		return 0;
	most = encapsulation->mtu - less;
	at = find_segment_option(skb, packet, &option);
	/* At an odd place the checksum would have it the other way round; nobody puts it there. */
	if (!at || (at - packet->options) & 1 || bpf_ntohs(option.size) <= most)
		return 0;
	size = bpf_htons(most);
	return !bpf_l4_csum_replace(skb, packet->options - TCP_CHECK_TO_OPTIONS, option.size, size, sizeof(size)) &&
	       !bpf_skb_store_bytes(skb, at + sizeof(__u16), &size, sizeof(size), 0);
}

/* Spares all other packets the look into what is behind UDP's header. */
static __always_inline int may_be_encapsulated(struct __sk_buff *skb)
{
	void *ip = (void *)(unsigned long)skb->data + sizeof(struct ethhdr);
	void *end = (void *)(unsigned long)skb->data_end;
	const struct udphdr *udp;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ipv4 = ip;

		udp = (void *)(ipv4 + 1);
		return (void *)(udp + 1) <= end && ipv4->protocol == IPPROTO_UDP && udp->dest == bpf_htons(ENCAPSULATION_PORT);
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *ipv6 = ip;

		udp = (void *)(ipv6 + 1);
		return (void *)(udp + 1) <= end && ipv6->nexthdr == IPPROTO_UDP && udp->dest == bpf_htons(ENCAPSULATION_PORT);
	}
	return 0;
}

/* The peer that has sent what came in by a routed path, between both nodes' addresses there. */
static __always_inline __u32 encapsulating_peer(struct __sk_buff *skb, __u8 family)
{
	__u32 here = OUTER_OF_THIS_NODE, there, path;
	struct node *node = this_node();
	struct outer_ends now, known;
	struct outer *own, *other;

	if (!node || !node->routed || !load_ends(skb, family, &now))
		return NO_NODE;
	path = path_of_interface(node, skb->ifindex);
	if (path >= MAX_PATHS || !(node->routed >> path & 1))
		return NO_NODE;
	there = peer_of_address(&now.source);
	if (there == NO_PEER)
		return NO_NODE;
	own = bpf_map_lookup_elem(&outers, &here);
	other = bpf_map_lookup_elem(&outers, &there);
	if (!own || !other || !take_ends(other, own, family, path, &known) || !same_ends(&now, &known))
		return NO_NODE;
	return there;
}

/* Whether packets for this address may come encapsulated. */
static __always_inline int is_of_this_node(const struct address *pod)
{
	return (__u16)node_of_pod(pod) == OUTER_OF_THIS_NODE;
}

/* What is within: a whole segment of TCP, from a pod of the peer's to one of this node. */
static __always_inline int is_of_pods_ipv4(struct __sk_buff *skb, __u32 peer)
{
	struct address source, destination;
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + ENCAPSULATION_MORE_IPV4, &ip, sizeof(ip)))
		return 0;
	if (ip.ihl_version >> 4 != 4 || ip.protocol != IPPROTO_TCP || ip.frag_off & bpf_htons(IPV4_FRAGMENT))
		return 0;
	map_ipv4(&source, ip.saddr);
	map_ipv4(&destination, ip.daddr);
	return node_of_pod(&source) == peer && is_of_this_node(&destination);
}

static __always_inline int is_of_pods_ipv6(struct __sk_buff *skb, __u32 peer)
{
	struct outer_ends ends;
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + ENCAPSULATION_MORE_IPV6, &ip, sizeof(ip)))
		return 0;
	if ((bpf_ntohl(ip.flow) >> 28) != 6 || ip.nexthdr != IPPROTO_TCP)
		return 0;
	__builtin_memcpy(&ends, ip.saddr, sizeof(ends));
	return node_of_pod(&ends.source) == peer && is_of_this_node(&ends.destination);
}

/* Whether it has this node's key, which only its peers know. */
static __always_inline int has_key(struct __sk_buff *skb, __u32 more)
{
	struct wrapping *own = encapsulation_of(OUTER_OF_THIS_NODE);
	__u64 key;

	return own && own->key && !bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + more - sizeof(key), &key, sizeof(key)) &&
	       key == own->key;
}

/* No fragment, and nothing between its header and that of UDP. */
static __always_inline int is_plain_ipv4(struct __sk_buff *skb)
{
	struct iphdr ip;

	return !bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &ip, sizeof(ip)) && ip.ihl_version == IPV4_WITHOUT_OPTIONS &&
	       !(ip.frag_off & bpf_htons(IPV4_FRAGMENT));
}

/*
 * Decapsulates the packet, if a peer has encapsulated it for this node and may send what is within.
 * All else stays as it is: it is for the responder's socket. Global, as replace_outer.
 */
__noinline int decapsulate(struct __sk_buff *skb)
{
	__u8 family = skb->protocol == bpf_htons(ETH_P_IP) ? AF_INET : AF_INET6;
	__u32 more = more_of(family), peer;

	if (!has_key(skb, more) || (family == AF_INET && !is_plain_ipv4(skb)))
		return 0;
	peer = encapsulating_peer(skb, family);
	if (peer == NO_NODE || !(family == AF_INET ? is_of_pods_ipv4(skb, peer) : is_of_pods_ipv6(skb, peer)))
		return 0;
	return !bpf_skb_adjust_room(skb, -(__s32)more, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
}

#endif
