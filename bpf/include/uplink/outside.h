/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Destinations outside of the cluster that policies name. Each range of them is a peer, whose
 * addresses on the paths are those of the paths' gateways.
 */
#ifndef BRAID_UPLINK_OUTSIDE_H
#define BRAID_UPLINK_OUTSIDE_H

#include "maps.h"

enum {
	NO_PEER = 0xffff,
};

enum outside {
	OUTSIDE_ENDPOINT_BITS = 32,
	OUTSIDE_INTERFACE = 0x0100, /* the first half of an address that nothing has (RFC 6666) */
};

/* The peer that leads this endpoint to an address outside, if it may go there. */
static __always_inline __u16 outside_for(__u32 endpoint, const struct address *remote)
{
	struct outside_key key = {
		.bits = OUTSIDE_ENDPOINT_BITS + 8 * sizeof(*remote),
		.endpoint = endpoint,
		.address = *remote,
	};
	__u32 *peer = bpf_map_lookup_elem(&outside, &key);

	return peer && *peer < MAX_PEERS ? *peer : NO_PEER;
}

/*
 * The endpoint behind the interface by which a packet came into the node. A packet that is
 * masqueraded, or answers what came for a Service, has the node's address by now. Only
 * endpoints with destinations outside are found so.
 */
static __always_inline struct endpoint *endpoint_behind(const struct __sk_buff *skb)
{
	struct address place = {
		.word = { bpf_htonl(OUTSIDE_INTERFACE << 16), 0, 0, bpf_htonl(skb->ingress_ifindex) },
	};

	return bpf_map_lookup_elem(&endpoints, &place);
}

#endif
