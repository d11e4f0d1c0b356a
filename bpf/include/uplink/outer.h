/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The outer addresses of tunnels' packets on paths whose subnets routers join. Routers of
 * a path know the nodes' addresses on that path alone: so a packet gets these when it
 * leaves for one, and its own ones back where it arrives, before the tunnel's device, a
 * filter or a program of somebody else sees it. What is changed is exactly what can be
 * changed back: packets between the addresses that both nodes have in the cluster.
 */
#ifndef BRAID_UPLINK_OUTER_H
#define BRAID_UPLINK_OUTER_H

#include "flow.h"
#include "../checksum.h"

enum outer_place {
	OUTER_OF_NODE = MAX_PATHS, /* the place of the address that the node has in the cluster */
	OUTER_PLACES = MAX_PATHS + 1,
};

enum outer_of {
	OUTER_OF_THIS_NODE = NO_PEER,
};

/* A node's addresses, by the number of the path; all 0 where it has none. */
struct outer {
	struct address ipv4[OUTER_PLACES];
	struct address ipv6[OUTER_PLACES];
};

/* By a peer's index, or OUTER_OF_THIS_NODE; only of nodes that have routed paths. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PEERS + 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct outer);
} outers SEC(".maps");

/* As a packet has them, one behind the other. */
struct outer_ends {
	struct address source;
	struct address destination;
} __attribute__((aligned(8)));

enum outer_change {
	OUTER_FOREIGN = 0,  /* it has other addresses, and keeps them */
	OUTER_SAME = 1,     /* it has the right ones already */
	OUTER_REPLACED = 2,
};

enum {
	IPV4_CHECK = sizeof(struct ethhdr) + 10,
	UDP_CHECK = 6,      /* in its header */
	TCP_CHECK_TO_OPTIONS = 4,
};

/* The header's last fields. */
struct ipv4_end {
	__u16 check;
	__be32 source;
	__be32 destination;
} __attribute__((packed));

static __always_inline int load_ends(struct __sk_buff *skb, __u8 family, struct outer_ends *ends)
{
	__be32 ipv4[2];

	if (family != AF_INET)
		return !bpf_skb_load_bytes(skb, OUTER_IPV6_SOURCE, ends, sizeof(*ends));
	if (bpf_skb_load_bytes(skb, OUTER_IPV4_SOURCE, ipv4, sizeof(ipv4)))
		return 0;
	map_ipv4(&ends->source, ipv4[0]);
	map_ipv4(&ends->destination, ipv4[1]);
	return 1;
}

/* RFC 1624. The mapped form of an IPv4 address has the same sum as the address. */
static __always_inline __u16 updated(__u16 check, __u32 difference)
{
	return ~folded((__u64)(__u16)~check + difference);
}

/* Whether a checksum is no more than the sum of the pseudo-header: the rest is added later. */
static __always_inline int is_bare(const struct outer_ends *ends, __u8 protocol, __u32 length, __u16 check)
{
	__s64 sum = bpf_csum_diff(0, 0, ends, sizeof(*ends), 0);

	return sum >= 0 && folded((__u64)sum + bpf_htons(protocol) + bpf_htonl(length)) == check;
}

static __always_inline int store(struct __sk_buff *skb, __u32 offset, const void *from, __u32 size)
{
	return !bpf_skb_store_bytes(skb, offset, from, size, BPF_F_RECOMPUTE_CSUM);
}

/* Whether the inner checksum looks as if a NIC were to finish it. */
static __always_inline int is_inner_bare(struct __sk_buff *skb, const struct packet *packet)
{
	__u16 inner;

	if (bpf_skb_load_bytes(skb, packet->options - TCP_CHECK_TO_OPTIONS, &inner, sizeof(inner)))
		return 1;
	return is_bare((const struct outer_ends *)packet, IPPROTO_TCP,
		       skb->len - packet->options + sizeof(struct tcphdr), inner);
}

static __always_inline int is_summed(struct __sk_buff *skb) { return bpf_csum_update(skb, 0) >= 0; }

/*
 * What the kernel has put down of a UDP checksum is all of it; or, with large packets and
 * where a NIC is to do the rest, the sum of the pseudo-header, like which a whole one looks
 * once in 65,536 times. The kernel's own helper knows which packets a NIC is to finish, but
 * not whether the outer or the inner checksum: where both look so, the packet stays as it is.
 */
static __always_inline int replace_check(struct __sk_buff *skb, const struct packet *packet,
					 const struct outer_ends *ends, const struct udphdr *udp, __u32 offset,
					 __u32 difference)
{
	__u16 check;

	if (skb->gso_size) {
		check = folded((__u64)udp->check + difference);
		return store(skb, offset, &check, sizeof(check));
	}
	if (unlikely(is_bare(ends, IPPROTO_UDP, bpf_ntohs(udp->len), udp->check)) && !is_summed(skb))
		return !is_inner_bare(skb, packet) &&
		       !bpf_l4_csum_replace(skb, offset, 0, difference, BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0);
	check = updated(udp->check, difference);
	if (!check)
		check = 0xffff; /* 0 stands for none */
	return store(skb, offset, &check, sizeof(check));
}

/* Where there is a UDP header whose checksum counts, it covers the outer addresses. */
static __always_inline int replace_udp_check(struct __sk_buff *skb, const struct packet *packet,
					     const struct outer_ends *ends, __u32 difference)
{
	__u32 offset = sizeof(struct ethhdr);
	struct udphdr udp;

	if ((packet->carrier == AF_INET ? skip_outer_ipv4(skb, &offset) : skip_outer_ipv6(skb, &offset)) != IPPROTO_UDP)
		return 1;
	if (bpf_skb_load_bytes(skb, offset, &udp, sizeof(udp)))
		return 0;
	return !udp.check || replace_check(skb, packet, ends, &udp, offset + UDP_CHECK, difference);
}

static __always_inline int replace_ipv4(struct __sk_buff *skb, const struct outer_ends *ends, __u32 difference)
{
	struct ipv4_end header;

	if (bpf_skb_load_bytes(skb, IPV4_CHECK, &header, sizeof(header)))
		return 0;
	header.check = updated(header.check, difference);
	header.source = ends->source.word[3];
	header.destination = ends->destination.word[3];
	return store(skb, IPV4_CHECK, &header, sizeof(header));
}

static __always_inline int is_unset(const struct address *address)
{
	return !(address->word[0] | address->word[1] | address->word[2] | address->word[3]);
}

static __always_inline int same_ends(const struct outer_ends *a, const struct outer_ends *b)
{
	const __u64 *left = (const void *)a, *right = (const void *)b;

	return left[0] == right[0] && left[1] == right[1] && left[2] == right[2] && left[3] == right[3];
}

/* An address of a node at this place. */
static __always_inline int take_address(const struct outer *of, __u8 family, __u32 place, struct address *to)
{
	barrier_var(place);
	if (place >= OUTER_PLACES)
		return 0;
	*to = family == AF_INET ? of->ipv4[place] : of->ipv6[place];
	return !is_unset(to);
}

/* Those between which a packet goes from one node to another, at this place. */
static __always_inline int take_ends(const struct outer *from, const struct outer *to, __u8 family, __u32 place,
				     struct outer_ends *ends)
{
	return take_address(from, family, place, &ends->source) && take_address(to, family, place, &ends->destination);
}

/*
 * Has a packet that goes between the addresses at one place go between those at another.
 * What is of the node's place leaves, all else arrives. Global: the verifier looks at it once.
 */
__noinline int replace_outer(struct __sk_buff *skb, const struct packet *packet, __u32 peer, __u32 from, __u32 to)
{
	__u32 here = from == OUTER_OF_NODE ? OUTER_OF_THIS_NODE : peer;
	__u32 there = from == OUTER_OF_NODE ? peer : OUTER_OF_THIS_NODE;
	struct outer_ends now, known, wanted;
	struct outer *sender, *receiver;
	__s64 difference;

	if (!packet)
		return OUTER_FOREIGN;
	sender = bpf_map_lookup_elem(&outers, &here);
	receiver = bpf_map_lookup_elem(&outers, &there);
	if (!sender || !receiver || !load_ends(skb, packet->carrier, &now))
		return OUTER_FOREIGN;
	if (!take_ends(sender, receiver, packet->carrier, to, &wanted))
		return OUTER_FOREIGN;
	if (same_ends(&now, &wanted))
		return OUTER_SAME;
	if (!take_ends(sender, receiver, packet->carrier, from, &known) || !same_ends(&now, &known))
		return OUTER_FOREIGN;
	difference = bpf_csum_diff(&now, sizeof(now), &wanted, sizeof(wanted), 0);
	if (difference < 0 || !replace_udp_check(skb, packet, &now, difference))
		return OUTER_FOREIGN;
	if (packet->carrier == AF_INET)
		return replace_ipv4(skb, &wanted, difference) ? OUTER_REPLACED : OUTER_FOREIGN;
	return store(skb, OUTER_IPV6_SOURCE, &wanted, sizeof(wanted)) ? OUTER_REPLACED : OUTER_FOREIGN;
}

/* Whether what leaves has the addresses of a path. Global, as replace_outer. */
__noinline int is_addressed(struct __sk_buff *skb, const struct packet *packet, __u32 peer, __u32 path)
{
	__u32 here = OUTER_OF_THIS_NODE, there = peer;
	struct outer_ends now, wanted;
	struct outer *own, *other;

	if (!packet)
		return 0;
	own = bpf_map_lookup_elem(&outers, &here);
	other = bpf_map_lookup_elem(&outers, &there);
	if (!own || !other || !load_ends(skb, packet->carrier, &now))
		return 0;
	return take_ends(own, other, packet->carrier, path, &wanted) && same_ends(&now, &wanted);
}

/* Of what leaves by a routed path. */
static __always_inline int address_outer(struct __sk_buff *skb, const struct packet *packet, __u32 peer, __u32 path)
{
	return replace_outer(skb, packet, peer, OUTER_OF_NODE, path);
}

/*
 * Of what came in by a routed path: from the address that a peer has on it, for this
 * node's own there. All else stays as it is.
 */
static __always_inline void restore_outer(struct __sk_buff *skb, const struct packet *packet)
{
	struct node *node = this_node();
	__u8 path;
	__u16 peer;

	if (!node || likely(!node->routed))
		return;
	path = path_of_interface(node, skb->ifindex);
	if (path >= MAX_PATHS || !(node->routed >> path & 1))
		return;
	peer = peer_of_tunnel(skb, packet, 0);
	if (peer != NO_PEER)
		replace_outer(skb, packet, peer, path, OUTER_OF_NODE);
}

#endif
