/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The origin of a packet that was written into tc_index at a tunnel's device (origin.h), once more: where another
 * program ends the run there by TC_ACT_OK, as Cilium's do, the kernel puts its tc_classid,
 * mostly 0, in the place of tc_index. The packet goes on to its NIC on the same CPU, and
 * nothing comes between.
 */
#ifndef BRAID_KEPT_ORIGIN_H
#define BRAID_KEPT_ORIGIN_H

#include "kernel.h"
#include "origin.h"

struct kept_origin {
	__u32 origin; /* 0: nothing */
	__u32 hash;
	__u32 length;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kept_origin);
} kept_origin SEC(".maps");

/* What the kinds of tunnels add in front of a packet: IPIP, and VXLAN or Geneve, over IPv4
 * and IPv6. */
enum outer_bytes {
	OUTER_IPIP4 = 20,
	OUTER_IPIP6 = 40,
	OUTER_UDP4 = 50,
	OUTER_UDP6 = 70,
};

/* At the tunnel's device, once tc_index is written. Of what concerns nobody that alone is kept:
 * its hash may have to be computed. */
static __always_inline void keep_origin(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct kept_origin *kept = bpf_map_lookup_elem(&kept_origin, &zero);

	if (!kept)
		return;
	kept->origin = skb->tc_index & (ORIGIN_ENDPOINT | ORIGIN_FORGED | ORIGIN_MAY_HAVE_FLOWS) ? skb->tc_index : 0;
	if (!kept->origin)
		return;
	kept->hash = bpf_get_hash_recalc(skb);
	kept->length = skb->len;
}

/* Whether it is the packet whose origin was kept, now in its tunnel. The kernel keeps the hash of a
 * flow with ports; of what has none, such as fragments, the length must do. */
static __always_inline int is_of_kept_origin(const struct __sk_buff *skb, const struct kept_origin *kept)
{
	__u32 added = skb->len - kept->length;

	if (skb->hash)
		return skb->hash == kept->hash;
	return added == OUTER_UDP4 || added == OUTER_UDP6 || added == OUTER_IPIP4 || added == OUTER_IPIP6;
}

/* At the NIC: writes tc_index again. Only what the node itself sends is a tunnel's. */
static __always_inline void restore_origin(struct __sk_buff *skb)
{
	struct kept_origin *kept;
	__u32 zero = 0;

	if (likely(skb->ingress_ifindex))
		return;
	kept = bpf_map_lookup_elem(&kept_origin, &zero);
	if (kept && kept->origin && is_of_kept_origin(skb, kept))
		skb->tc_index = kept->origin;
}

#endif
