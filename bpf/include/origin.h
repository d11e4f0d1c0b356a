/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who sent a packet that leaves by a NIC. For one that was forwarded the kernel knows the
 * interface by which it came in. A tunnel's device forgets that; so to_tunnel, which runs
 * before it, writes into tc_index what is to be known later. Where a guard is, its
 * name_sender comes after that and has the last word about the endpoint. That goes through the
 * encapsulation, and has 16 bits:
 *
 *   15     ORIGIN_TUNNEL: to_tunnel has seen the packet
 *   14     ORIGIN_FORGED: its source address is that of an endpoint, and it came in by
 *          another interface than that endpoint's
 *   13     ORIGIN_ENDPOINT: it is from the endpoint whose address it bears, and the lowest
 *          12 bits are that endpoint's number (struct endpoint's id)
 *   12     ORIGIN_MAY_HAVE_FLOWS: it is IP, and the filter has its source address
 *   0..11  without ORIGIN_ENDPOINT: the lowest bits of the index of the interface by
 *          which it came in; 0 for the node's own
 *
 * A pod can set tc_index too. What it sends itself has ingress_ifindex, though, and is
 * no tunnel's here.
 */
#ifndef BRAID_ORIGIN_H
#define BRAID_ORIGIN_H

#include "kernel.h"

enum origin {
	ORIGIN_NUMBER = 0xfff,
	ORIGIN_MAY_HAVE_FLOWS = 1 << 12,
	ORIGIN_ENDPOINT = 1 << 13,
	ORIGIN_FORGED = 1 << 14,
	ORIGIN_TUNNEL = 1 << 15,
};

/*
 * By which path a packet came in. Once it is out of its tunnel the interface is the tunnel's,
 * so from_uplink writes the path into tc_index, for the programs at the pods' interfaces. The
 * four lowest bits are Cilium's: between the two it takes the first for "this has passed the
 * policy's proxy", and clears the third.
 */
enum arrival {
	ARRIVAL = 0x2f00,
	ARRIVAL_PATH = 0x70, /* the bits of the path's number */
	ARRIVAL_PATH_SHIFT = 4,
	ARRIVAL_OTHERS = 0xf, /* to be 0 when written, and of no matter when read */
	ARRIVAL_BY_TUNNEL = 1U << 31, /* in the place of an interface, with the path's number */
};

/* The interface by which a packet came in, or the path by which it came to a tunnel's device. */
static __always_inline __u32 arrival_of(const struct __sk_buff *skb)
{
	__u32 noted = skb->tc_index;

	if (likely((noted & ~(ARRIVAL_PATH | ARRIVAL_OTHERS)) != ARRIVAL))
		return skb->ingress_ifindex;
	return ARRIVAL_BY_TUNNEL | (noted & ARRIVAL_PATH) >> ARRIVAL_PATH_SHIFT;
}

#endif
