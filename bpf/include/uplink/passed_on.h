/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A packet that was redirected comes by once more, at its path's NIC, where it only counts. What that needs
 * is written down with the packet, so that it is not parsed and its flow not looked up again. The kernel clears
 * these words of what it forwards or sends before any program of a NIC sees it. Where something else writes
 * them meanwhile, the flow's own note tells.
 */
#ifndef BRAID_UPLINK_PASSED_ON_H
#define BRAID_UPLINK_PASSED_ON_H

#include "traffic.h"

enum passed_on {
	PASSED_ON = 0x62724e69,
	PASSED_ON_PATH = 8,     /* bits; below it is the account, above the path how long the headers are */
	PASSED_ON_HEADERS = 16,
};

static __always_inline void note_passed_on(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow,
					   __u32 path, __u32 interface)
{
	__u32 headers = packet->options + packet->options_length;

	skb->cb[0] = PASSED_ON;
	skb->cb[1] = interface;
	skb->cb[2] = headers << PASSED_ON_HEADERS | path << PASSED_ON_PATH | flow->account;
}

/* Counts the packet where it was passed on to this NIC. */
static __always_inline int was_passed_on(struct __sk_buff *skb)
{
	struct packet packet = {};
	struct flow flow = {};
	__u32 noted;

	if (likely(skb->cb[0] != PASSED_ON) || skb->cb[1] != skb->ifindex)
		return 0;
	noted = skb->cb[2];
	skb->cb[0] = 0;
	packet.options = noted >> PASSED_ON_HEADERS;
	flow.account = noted;
	count_sent(skb, &packet, &flow, noted >> PASSED_ON_PATH & (MAX_PATHS - 1));
	return 1;
}

#endif
