/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets within packets: VXLAN (RFC 7348), Geneve (RFC 8926), and IP in IP (RFC 2003,
 * 2473 and 4213). Only what the node's own tunnels make is looked into; VNIs and options
 * are skipped. What is not understood, is fragmented or tagged passes as any other packet.
 */
#ifndef BRAID_TUNNEL_H
#define BRAID_TUNNEL_H

#include "known_tunnels.h"
#include "packet.h"

enum {
	OUTER_IPV4_SOURCE = sizeof(struct ethhdr) + 12,
	OUTER_IPV6_SOURCE = sizeof(struct ethhdr) + 8,
	VXLAN_FLAGS = 0x0c,      /* of which these two matter */
	VXLAN_PLAIN = 0x08,      /* a VNI, and Ethernet behind it */
	GENEVE_LENGTH = 0x3f,    /* of the options, in words */
	GENEVE_VERSION = 0xc0,
	GENEVE_CONTROL = 0x80,
};

struct vxlanhdr {
	__u8 flags;
	__u8 reserved[3];
	__be32 vni;
};

struct genevehdr {
	__u8 version_length;
	__u8 flags;
	__be16 protocol;
	__be32 vni;
};

/* A header within a packet: of what protocol, and where. */
struct within {
	__u32 offset;
	__be16 protocol; /* of Ethernet */
};

static __always_inline int is_in_tunnel(const struct packet *packet)
{
	return packet->network != sizeof(struct ethhdr);
}

/* Where a header lies that is to be read, or 0. */
static __always_inline void *header_at(struct __sk_buff *skb, __u32 offset, __u32 size)
{
	void *header;

	if (offset > TRANSPORT_MASK || !readable(skb, offset + size))
		return 0;
	barrier_var(offset);
	header = (void *)(unsigned long)skb->data + (offset & TRANSPORT_MASK);
	return header + size > (void *)(unsigned long)skb->data_end ? 0 : header;
}

static __always_inline int is_ip(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_IP) || protocol == bpf_htons(ETH_P_IPV6);
}

static __always_inline __u8 kind_of_port(const struct tunnels *tunnels, __be16 port)
{
	int i;

#pragma clang loop unroll(full)
	for (i = 0; i < MAX_TUNNEL_PORTS; i++)
		if (tunnels->port[i] == port)
			return tunnels->kind[i];
	return NO_TUNNEL;
}

/* Beyond the outer header of IP; the protocol that it names, or -1. */
static __always_inline int skip_outer_ipv4(struct __sk_buff *skb, __u32 *offset)
{
	struct iphdr *ip = header_at(skb, sizeof(struct ethhdr), sizeof(*ip));
	__u32 length;

	if (!ip || ip->frag_off & bpf_htons(IPV4_FRAGMENT))
		return -1;
	length = (ip->ihl_version & 0xf) * 4;
	if (length < sizeof(*ip))
		return -1;
	*offset += length;
	return ip->protocol;
}

/* The kernel's IPv6 tunnels put an option of their own before what they carry. */
static __always_inline int skip_outer_ipv6(struct __sk_buff *skb, __u32 *offset)
{
	struct ipv6hdr *ip = header_at(skb, sizeof(struct ethhdr), sizeof(*ip));
	struct extension *options;

	if (!ip)
		return -1;
	*offset += sizeof(*ip);
	if (likely(ip->nexthdr != IPPROTO_DSTOPTS))
		return ip->nexthdr;
	options = header_at(skb, *offset, sizeof(*options));
	if (!options)
		return -1;
	*offset += (options->length + 1) * 8;
	return options->next;
}

static __always_inline int skip_ethernet(struct __sk_buff *skb, struct within *within)
{
	struct ethhdr *ethernet = header_at(skb, within->offset, sizeof(*ethernet));

	if (!ethernet)
		return 0;
	within->offset += sizeof(*ethernet);
	within->protocol = ethernet->h_proto;
	return 1;
}

static __always_inline int skip_vxlan(struct __sk_buff *skb, struct within *within)
{
	struct vxlanhdr *vxlan = header_at(skb, within->offset, sizeof(*vxlan));

	if (!vxlan || (vxlan->flags & VXLAN_FLAGS) != VXLAN_PLAIN)
		return 0;
	within->offset += sizeof(*vxlan);
	return skip_ethernet(skb, within);
}

static __always_inline int skip_geneve(struct __sk_buff *skb, struct within *within)
{
	struct genevehdr *geneve = header_at(skb, within->offset, sizeof(*geneve));

	if (!geneve || geneve->version_length & GENEVE_VERSION || geneve->flags & GENEVE_CONTROL)
		return 0;
	within->offset += sizeof(*geneve) + (geneve->version_length & GENEVE_LENGTH) * 4;
	within->protocol = geneve->protocol;
	return within->protocol != bpf_htons(ETH_P_TEB) || skip_ethernet(skb, within);
}

static __always_inline int skip_udp(struct __sk_buff *skb, const struct tunnels *tunnels, struct within *within)
{
	struct udphdr *udp = header_at(skb, within->offset, sizeof(*udp));

	if (!udp)
		return 0;
	within->offset += sizeof(*udp);
	switch (kind_of_port(tunnels, udp->dest)) {
	case TUNNEL_VXLAN:
		return skip_vxlan(skb, within);
	case TUNNEL_GENEVE:
		return skip_geneve(skb, within);
	}
	return 0;
}

/* Finds the inner header of IP behind the outer one. */
static __always_inline int find_inner(struct __sk_buff *skb, const struct tunnels *tunnels, struct within *within)
{
	int is_ipv4 = skb->protocol == bpf_htons(ETH_P_IP);

	switch (is_ipv4 ? skip_outer_ipv4(skb, &within->offset) : skip_outer_ipv6(skb, &within->offset)) {
	case IPPROTO_UDP:
		return skip_udp(skb, tunnels, within);
	case IPPROTO_IPIP:
		within->protocol = bpf_htons(ETH_P_IP);
		return tunnels->kinds & TUNNEL_IP;
	case IPPROTO_IPV6:
		within->protocol = bpf_htons(ETH_P_IPV6);
		return tunnels->kinds & TUNNEL_IP;
	}
	return 0;
}

static __always_inline int parse_inner(struct __sk_buff *skb, const struct within *within, struct packet *packet)
{
	__u32 network = within->offset;
	void *ip;

	if (within->protocol == bpf_htons(ETH_P_IP)) {
		ip = header_at(skb, network, sizeof(struct iphdr));
		return ip ? parse_ipv4(ip, network, packet) : 0;
	}
	if (within->protocol == bpf_htons(ETH_P_IPV6)) {
		ip = header_at(skb, network, sizeof(struct ipv6hdr));
		return ip ? parse_ipv6(skb, ip, network, packet) : 0;
	}
	return 0;
}

/*
 * Fills packet by the headers of the packet within and returns 1 for a TCP segment. A program
 * has it once, and within itself: to return from a function is slow where processors are kept
 * from guessing where that leads.
 */
static __always_inline int parse_tunnel(struct __sk_buff *skb, struct packet *packet)
{
	struct within within = { .offset = sizeof(struct ethhdr) };
	const struct tunnels *tunnels = tunnels_here();
	int offset;

	if (!tunnels || skb->vlan_present || !is_ip(skb->protocol))
		return 0;
	if (!find_inner(skb, tunnels, &within))
		return 0;
	offset = parse_inner(skb, &within, packet);
	if (offset <= 0 || offset > TRANSPORT_MASK)
		return 0;
	packet->network = within.offset;
	packet->carrier = skb->protocol == bpf_htons(ETH_P_IP) ? AF_INET : AF_INET6;
	return parse_tcp_header(skb, offset, packet);
}

/* A Bloom filter's bit. */
static __always_inline __u64 port_bit(__be16 port)
{
	return 1ULL << ((port ^ port >> 8) & 63);
}

static __always_inline int may_carry(const struct tunnels *tunnels, __u8 protocol, __be16 port)
{
	if (likely(protocol == IPPROTO_UDP))
		return !!(tunnels->filter & port_bit(port));
	return tunnels->kinds & TUNNEL_IP || protocol == IPPROTO_DSTOPTS;
}

/* Spares what is no tunnel's all but this: other protocols than UDP, and its other ports. */
static __always_inline int may_be_tunnel(struct __sk_buff *skb)
{
	void *ip = (void *)(unsigned long)skb->data + sizeof(struct ethhdr);
	void *end = (void *)(unsigned long)skb->data_end;
	const struct tunnels *tunnels = tunnels_here();
	const struct udphdr *udp;

	if (!tunnels || !tunnels->kinds)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ipv4 = ip;

		udp = (void *)(ipv4 + 1);
		if (unlikely((void *)(udp + 1) > end || ipv4->ihl_version != 0x45))
			return 1;
		return may_carry(tunnels, ipv4->protocol, udp->dest);
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *ipv6 = ip;

		udp = (void *)(ipv6 + 1);
		if (unlikely((void *)(udp + 1) > end))
			return 1;
		return may_carry(tunnels, ipv6->nexthdr, udp->dest);
	}
	return 0;
}

#endif
