/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How the yardsticks read a packet. */
#ifndef BRAID_BASELINE_SEGMENT_H
#define BRAID_BASELINE_SEGMENT_H

#include "kernel.h"

enum {
	MAX_FLOWS = 4096,

	OPTION_END = 0,
	OPTION_NOP = 1,
	OPTION_TIMESTAMPS = 8,
	OPTION_MPTCP = 30,
	OPTIONS_WALKED = 12,
};

struct tuple {
	__be32 local;
	__be32 remote;
	__be16 local_port;
	__be16 remote_port;
};

struct metrics {
	__u64 packets;
	__u64 bytes;
	__u32 timestamp;
	__u32 echoed;
	__u64 changed; /* packets whose timestamp was another than that before */
};

/* A packet as a block parsed it. */
struct headers {
	struct iphdr *ip;
	struct tcphdr *tcp;
	void *end;
};

/*
 * Ethernet, IPv4 and TCP, parsed anew by every block: a tail call passes nothing on
 * but the context, and pointers into the packet cannot be kept in it. IPv4 without
 * options alone, as there.
 */
static __always_inline int parse(struct __sk_buff *skb, struct headers *headers)
{
	struct ethhdr *ethernet = (void *)(unsigned long)skb->data;

	headers->end = (void *)(unsigned long)skb->data_end;
	headers->ip = (void *)(ethernet + 1);
	if ((void *)(headers->ip + 1) > headers->end || ethernet->h_proto != bpf_htons(ETH_P_IP))
		return 0;
	if (headers->ip->protocol != IPPROTO_TCP || headers->ip->ihl_version != 0x45)
		return 0;
	headers->tcp = (void *)(headers->ip + 1);
	return (void *)(headers->tcp + 1) <= headers->end;
}

static __always_inline void tuple_of(const struct headers *headers, struct tuple *tuple)
{
	tuple->local = headers->ip->saddr;
	tuple->remote = headers->ip->daddr;
	tuple->local_port = headers->tcp->source;
	tuple->remote_port = headers->tcp->dest;
}

static __always_inline __u32 header_length(const struct tcphdr *tcp)
{
	return (tcp->doff >> 4) * 4;
}

static __always_inline __u32 payload_of(const struct headers *headers)
{
	return bpf_ntohs(headers->ip->tot_len) - sizeof(struct iphdr) - header_length(headers->tcp);
}

/*
 * Finds the option of a kind (and of a subtype of MPTCP, unless negative), at least
 * `length` bytes of it readable. Walked anew by every block that needs an option.
 */
static __always_inline __u8 *find_option(const struct headers *headers, __u8 kind, int subtype, __u32 length)
{
	__u8 *at = (void *)(headers->tcp + 1);
	__u8 *end = (__u8 *)headers->tcp + header_length(headers->tcp);
	int i;

	for (i = 0; i < OPTIONS_WALKED; i++) {
		if (at >= end || (void *)(at + 1) > headers->end || *at == OPTION_END)
			return 0;
		if (*at == OPTION_NOP) {
			at++;
			continue;
		}
		if ((void *)(at + 3) > headers->end || at[1] < 2)
			return 0;
		if (*at == kind && (subtype < 0 || at[2] >> 4 == subtype))
			return (void *)(at + length) > headers->end ? 0 : at;
		at += at[1];
	}
	return 0;
}

#endif
