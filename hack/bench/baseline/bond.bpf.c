//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * bond: divides what leaves by a NIC for the pods of one peer among some NICs as Linux's
 * bonding driver does among its slaves, by turns (balance-rr, one packet a slave) or by the
 * hash of layers 3 and 4. A model, for kernels without that driver: its slaves share one
 * address, and these NICs have one each, so that a packet's next hop is the peer's on its NIC.
 */
#include "segment.h"

enum { MOST_SLAVES = 4 };

struct slave {
	__u32 interface;
	__be32 next_hop;
};

volatile const struct slave slaves[MOST_SLAVES];
volatile const __u32 count;
volatile const __u32 by_turns;
volatile const __be32 pods; /* of the peer, and their mask */
volatile const __be32 mask;

__u32 sent;

/* As bond_xmit_hash with xmit_hash_policy=layer3+4: the lowest bit goes, as ports are often even. */
static __always_inline __u32 hash_of(const struct headers *headers)
{
	__u32 hash = (__u32)headers->tcp->source | (__u32)headers->tcp->dest << 16;

	hash ^= headers->ip->daddr ^ headers->ip->saddr;
	hash ^= hash >> 16;
	hash ^= hash >> 8;
	return hash >> 1;
}

SEC("tc")
int bond(struct __sk_buff *skb)
{
	struct bpf_redir_neigh next = {.nh_family = AF_INET};
	volatile const struct slave *slave;
	struct headers headers;
	__u32 chosen;

	if (!count || !parse(skb, &headers) || (headers.ip->daddr & mask) != pods)
		return TCX_NEXT;
	chosen = (by_turns ? __sync_fetch_and_add(&sent, 1) : hash_of(&headers)) % count;
	slave = &slaves[chosen & (MOST_SLAVES - 1)];
	if (slave->interface == skb->ifindex)
		return TCX_NEXT;
	next.nh[0] = slave->next_hop;
	return bpf_redirect_neigh(slave->interface, &next, sizeof(next), 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
