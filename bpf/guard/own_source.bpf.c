//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * own-source: the ingress of the host's end of an endpoint's interface, before
 * everything else there. Drops IP packets whose source is not an address of the
 * endpoint; where it is not known yet whose interface it is, those whose source the node
 * does not route back to it. What is not IP passes, and so do link-local IPv6 sources and
 * the unspecified ones by which hosts find and get addresses: no router forwards them.
 */
#include "guard.h"

enum { LOOPBACK = 1 }; /* its index, in every network namespace */

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

/* The interface by which the node reaches an address; 0 for none. As for the kernel's own
 * reverse path filter the question is the node's, whatever came in where. */
static __always_inline __u32 route_to(struct __sk_buff *skb, const struct address *address, enum source kind)
{
	struct bpf_fib_lookup route = { .family = kind == FROM_IPV4 ? AF_INET : AF_INET6, .ifindex = LOOPBACK };
	long result;

	if (kind == FROM_IPV4)
		route.dst[0] = address->word[3];
	else
		__builtin_memcpy(route.dst, address, sizeof(route.dst));
	result = bpf_fib_lookup(skb, &route, sizeof(route), 0);
	if (result == BPF_FIB_LKUP_RET_SUCCESS || result == BPF_FIB_LKUP_RET_NO_NEIGH || result == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return route.ifindex;
	return 0;
}

static __always_inline int is_routed_back(struct __sk_buff *skb, const struct address *source, enum source kind)
{
	__u32 index = skb->ifindex, to = route_to(skb, source, kind), *other;

	if (to == index)
		return 1;
	other = bpf_map_lookup_elem(&routed_by, &index);
	return to && other && *other == to;
}

/* Whether the rate allows one more packet; charges it. */
static __always_inline int is_within_rate(struct __sk_buff *skb, const struct allowance *allowance, struct usage *usage)
{
	__u32 bytes = wire_bytes(skb);
	__u64 now;

	if (!(allowance->flags & CHARGED_AT_ENTRY) || !allowance->price)
		return 1;
	now = bpf_ktime_get_ns();
	if (ahead(&usage->paid, now) > BURST) {
		__sync_fetch_and_add(&usage->dropped[NO_PATH], bytes);
		__sync_fetch_and_add(&usage->dropped_packets[NO_PATH], 1);
		return 0;
	}
	charge(&usage->paid, now, allowance->price, bytes);
	return 1;
}

static __always_inline int drop_spoofed(__u32 row)
{
	struct usage *usage = bpf_map_lookup_elem(&usages, &row);

	if (usage)
		__sync_fetch_and_add(&usage->spoofed_packets, 1);
	return TC_ACT_SHOT;
}

/* Apart from the rest, so that packets of those who are known do not pay for it. */
static __noinline int from_new_pod(struct __sk_buff *skb, const struct allowance *allowance, __u32 row)
{
	struct address source = {};
	enum source kind = NOT_IP;
	struct usage *usage;

	if (allowance->flags & SPOOF_CHECK)
		kind = read_source(skb, &source);
	if (kind == TOO_DEEP)
		return drop_spoofed(row);
	if (kind != NOT_IP && !is_routed_back(skb, &source, kind) && !stays_on_link(&source, kind))
		return drop_spoofed(row);
	usage = bpf_map_lookup_elem(&usages, &row);
	return !usage || is_within_rate(skb, allowance, usage) ? TCX_NEXT : TC_ACT_SHOT;
}

SEC("tc")
int own_source(struct __sk_buff *skb)
{
	struct address source = {};
	__u32 index = skb->ifindex;
	__u32 *row = bpf_map_lookup_elem(&interfaces, &index);
	struct allowance *allowance;
	enum source kind;
	__u32 own;

	if (!row)
		return TCX_NEXT;
	own = *row;
	allowance = bpf_map_lookup_elem(&allowances, &own);
	if (!allowance)
		return TCX_NEXT;
	if (unlikely(allowance->flags & NEW_POD))
		return from_new_pod(skb, allowance, own);
	if (!(allowance->flags & SPOOF_CHECK))
		return TCX_NEXT;
	kind = read_source(skb, &source);
	if (kind == NOT_IP)
		return TCX_NEXT;
	if (kind != TOO_DEEP && (is_own(&source, kind, own) || stays_on_link(&source, kind)))
		return TCX_NEXT;
	return drop_spoofed(own);
}

char _license[] SEC("license") = "Dual BSD/GPL";
