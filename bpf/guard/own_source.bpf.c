//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * own-source: the ingress of the host's end of an endpoint's interface, before
 * everything else there. Drops IP packets whose source is not an address of the
 * endpoint. What is not IP passes, and so do link-local IPv6 sources and the
 * unspecified ones by which hosts find and get addresses: no router forwards them.
 */
#include "guard.h"

static __always_inline int stays_on_link(const struct address *source, enum source kind)
{
	if (kind == FROM_IPV4)
		return source->word[3] == 0;
	return (source->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
	       !(source->word[0] | source->word[1] | source->word[2] | source->word[3]);
}

/* IPv4 addresses are kept in their mapped form, in which none may be in a packet. */
static __always_inline int is_own(const struct address *source, enum source kind, __u32 row)
{
	__u32 *owner = bpf_map_lookup_elem(&addresses, source);
	int mapped = !(source->word[0] | source->word[1]) && source->word[2] == bpf_htonl(0xffff);

	return owner && *owner == row && mapped == (kind == FROM_IPV4);
}

SEC("tc")
int own_source(struct __sk_buff *skb)
{
	struct address source = {};
	__u32 index = skb->ifindex;
	__u32 *row = bpf_map_lookup_elem(&interfaces, &index);
	struct allowance *allowance;
	struct usage *usage;
	enum source kind;
	__u32 own;

	if (!row)
		return TCX_NEXT;
	own = *row;
	allowance = bpf_map_lookup_elem(&allowances, &own);
	if (!allowance || !(allowance->flags & SPOOF_CHECK))
		return TCX_NEXT;
	kind = read_source(skb, &source);
	if (kind == NOT_IP)
		return TCX_NEXT;
	if (kind != TOO_DEEP && (is_own(&source, kind, own) || stays_on_link(&source, kind)))
		return TCX_NEXT;
	usage = bpf_map_lookup_elem(&usages, &own);
	if (usage)
		__sync_fetch_and_add(&usage->spoofed_packets, 1);
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
