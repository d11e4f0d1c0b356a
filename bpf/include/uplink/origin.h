/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What to_tunnel told of who sent a packet, for the NICs' programs. */
#ifndef BRAID_UPLINK_ORIGIN_H
#define BRAID_UPLINK_ORIGIN_H

#include "maps.h"
#include "../origin.h"

static __always_inline int is_of_tunnel(const struct __sk_buff *skb)
{
	return skb->tc_index & ORIGIN_TUNNEL && !skb->ingress_ifindex;
}

/* The same number for all that one sender sends. */
static __always_inline __u32 origin_of(const struct __sk_buff *skb)
{
	__u32 from = skb->ingress_ifindex;

	return likely(from) || !is_of_tunnel(skb) ? from : skb->tc_index;
}

/* Whether an endpoint's packets come by another interface than this one. */
static __always_inline int is_foreign(const struct endpoint *endpoint, __u32 from)
{
	return endpoint && endpoint->interface && endpoint->interface != from;
}

#endif
