/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where TCP's header is in a packet: behind VLAN tags, the options of IPv4 and the
 * extension headers of IPv6. What cannot be told here no rule sees, and guardrails may
 * have it dropped.
 */
#ifndef BRAID_TRANSPORT_H
#define BRAID_TRANSPORT_H

#include "frame.h"

enum {
	MAX_TAGS = 2,                /* in the frame; one more may be beside it */
	MAX_EXTENSIONS = 8,
	MAX_EXTENSIONS_LENGTH = 256, /* bytes of them all */
	TRANSPORT_MASK = 511,        /* bounds the offset of TCP's header for the verifier */
	IPV4_FRAGMENT = 0x3fff,      /* more-fragments bit and offset */
	IPV6_FRAGMENT = 0xfff9,      /* offset and more-fragments bit */
};

/* What stands in the place of the offset of TCP's header. */
enum transport {
	NOT_TCP = 0,
	UNPARSABLE = -1, /* it may be TCP */
};

/* The first bytes of any extension header. */
struct extension {
	__u8 next;
	__u8 length; /* in 8 bytes, without the first 8 */
	union {
		__be16 fragment; /* of a fragment header */
		struct {
			__u8 type; /* of a routing header */
			__u8 segments_left;
		};
	};
};

static __always_inline int is_tag(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

/*
 * The protocol above Ethernet and the tags that are in the frame, and where it begins;
 * that of a tag where there are more of them, and 0 where they cannot be read.
 */
static __always_inline __be16 network_protocol(hook_frame *frame, __u32 *network)
{
	__be16 protocol = frame_protocol(frame);
	int i;

	*network = sizeof(struct ethhdr);
#pragma clang loop unroll(full)
	for (i = 0; i < MAX_TAGS; i++) {
		if (likely(!is_tag(protocol)))
			break;
		if (load_bytes(frame, *network + 2, &protocol, sizeof(protocol)))
			return 0;
		*network += 4;
	}
	return protocol;
}

static __always_inline int is_extension(__u32 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING || protocol == IPPROTO_FRAGMENT ||
	       protocol == IPPROTO_DSTOPTS;
}

/* Whether TCP may be in or behind it. Its receiver decrypts or verifies IPsec's first. */
static __always_inline int may_be_tcp(__u32 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_ESP || protocol == IPPROTO_AH || is_extension(protocol);
}

static __always_inline int ipv4_transport(const struct iphdr *ip, __u32 network)
{
	__u32 header = (ip->ihl_version & 0xf) * 4;

	if (ip->protocol != IPPROTO_TCP)
		return ip->protocol == IPPROTO_ESP || ip->protocol == IPPROTO_AH ? UNPARSABLE : NOT_TCP;
	if (ip->frag_off & bpf_htons(IPV4_FRAGMENT) || header < sizeof(*ip))
		return UNPARSABLE;
	return network + header;
}

/*
 * What follows from an extension header on; protocol is that header's. A packet in one
 * piece may have a fragment header (RFC 6946). With segments left its destination is not
 * the one in IPv6's header. Global: the verifier looks at it once.
 */
__noinline int skip_extensions(hook_frame *frame, __u32 offset, __u32 protocol)
{
	__u32 end = offset + MAX_EXTENSIONS_LENGTH, i;
	struct extension header = {};

	for (i = 0; i < MAX_EXTENSIONS && is_extension(protocol); i++) {
		if (load_bytes(frame, offset, &header, sizeof(header)))
			return UNPARSABLE;
		if (protocol == IPPROTO_ROUTING && header.segments_left)
			return UNPARSABLE;
		if (protocol == IPPROTO_FRAGMENT) {
			if (header.fragment & bpf_htons(IPV6_FRAGMENT))
				return may_be_tcp(header.next) ? UNPARSABLE : NOT_TCP;
			header.length = 0;
		}
		offset += (header.length + 1) * 8;
		if (offset > end)
			return UNPARSABLE;
		protocol = header.next;
	}
	if (protocol == IPPROTO_TCP)
		return offset;
	return may_be_tcp(protocol) ? UNPARSABLE : NOT_TCP;
}

static __always_inline int ipv6_transport(hook_frame *frame, const struct ipv6hdr *ip, __u32 network)
{
	__u32 protocol = ip->nexthdr;

	if (likely(protocol == IPPROTO_TCP))
		return network + sizeof(*ip);
	return may_be_tcp(protocol) ? skip_extensions(frame, network + sizeof(*ip), protocol) : NOT_TCP;
}

/*
 * Whether the header of TCP lies whole within the packet. length is the packet's from
 * the network header on, headers that of all before TCP, and there what the frame has.
 */
static __always_inline int is_whole_tcp(const struct tcphdr *tcp, __u32 headers, __u32 length, __u32 there)
{
	__u32 header = (tcp->doff >> 4) * 4;

	return length <= there && header >= sizeof(*tcp) && headers + header <= length;
}

/* The lengths from the network header on; 0 where they do not fit their field (BIG TCP). */
static __always_inline __u32 ipv4_length(const struct iphdr *ip)
{
	return bpf_ntohs(ip->tot_len);
}

static __always_inline __u32 ipv6_length(const struct ipv6hdr *ip)
{
	return ip->payload_len ? bpf_ntohs(ip->payload_len) + sizeof(*ip) : 0;
}

#endif
