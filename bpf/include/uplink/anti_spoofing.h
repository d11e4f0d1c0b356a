/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What tells forged packets from others. Of what leaves the node: the interface by
 * which it came in is that of the endpoint whose address it bears. Of what comes in:
 * its numbers are near what this end expects and has sent, which whoever does not see
 * the flow's packets cannot know: a guess for an end is right once in 13,000 times, and
 * one that moves a responder's flow once in 200,000.
 */
#ifndef BRAID_UPLINK_ANTI_SPOOFING_H
#define BRAID_UPLINK_ANTI_SPOOFING_H

#include "origin.h"

enum {
	EXPECTED_STEP = 1 << 15,  /* so exactly it is known what is expected */
	REPEATED = 1 << 20,       /* by so much a number may be behind */
	UNDER_WAY = 1 << 23,      /* and by so much ahead */
	REPEATED_AT_END = 1 << 16,
	UNDER_WAY_AT_END = 1 << 18, /* a receiver believes a reset where it is due */
};

/*
 * What the node itself sends for an endpoint, as a proxy does, has no such interface. Of
 * what comes out of a tunnel's device to_tunnel has judged.
 */
static __always_inline int is_forged(struct __sk_buff *skb, const struct address *local)
{
	__u32 from = skb->ingress_ifindex;

	if (!from)
		return is_of_tunnel(skb) && skb->tc_index & ORIGIN_FORGED;
	return is_foreign(bpf_map_lookup_elem(&endpoints, local), from);
}

static __always_inline int is_within(__u32 number, __u32 of, __u32 behind, __u32 ahead)
{
	return number - of + behind < behind + ahead;
}

static __always_inline int is_near(const struct flow *flow, __be32 sequence, __u32 behind, __u32 ahead)
{
	return is_within(bpf_ntohl(sequence), bpf_ntohl(flow->sequence), behind, ahead);
}

static __always_inline int says_news(const struct flow *flow, const struct packet *packet)
{
	if (!(flow->subtype & ANSWERED) || !is_near(flow, packet->acknowledgement, EXPECTED_STEP, EXPECTED_STEP))
		return 1;
	return flow->role == ROLE_RESPONDER &&
	       !is_within(bpf_ntohl(packet->sequence), flow->token, EXPECTED_STEP, EXPECTED_STEP);
}

/* Notes what this end expects and has sent, from what it sends. */
static __always_inline void note_expected(struct __sk_buff *skb, struct flow *flow, const struct packet *packet)
{
	if ((packet->flags & (TCP_ACK | TCP_RST)) != TCP_ACK)
		return;
	if (likely(!says_news(flow, packet)))
		return;
	if (is_forged(skb, &packet->source))
		return;
	flow->sequence = packet->acknowledgement;
	if (flow->role == ROLE_RESPONDER)
		flow->token = bpf_ntohl(packet->sequence);
	flow->subtype |= ANSWERED;
	flow->from = origin_of(skb);
}

static __always_inline int is_expected(const struct flow *flow, const struct packet *packet)
{
	if (!(flow->subtype & ANSWERED))
		return 1;
	if (!(packet->flags & TCP_ACK))
		return is_near(flow, packet->sequence, REPEATED_AT_END, UNDER_WAY_AT_END);
	if (!is_near(flow, packet->sequence, REPEATED, UNDER_WAY))
		return 0;
	return flow->role == ROLE_INITIATOR ||
	       is_within(bpf_ntohl(packet->acknowledgement), flow->token, UNDER_WAY, REPEATED);
}

/* A SYN or SYN/ACK of this number is acknowledged. */
static __always_inline int acknowledges(const struct packet *packet, __be32 number)
{
	return packet->flags & TCP_ACK && bpf_ntohl(packet->acknowledgement) == bpf_ntohl(number) + 1;
}

/* FIN or RST from the other end. */
static __always_inline int is_expected_end(const struct flow *flow, const struct packet *packet)
{
	if (flow->subtype & ANSWERED)
		return is_near(flow, packet->sequence, REPEATED_AT_END, UNDER_WAY_AT_END);
	return flow->role == ROLE_RESPONDER || acknowledges(packet, flow->sequence);
}

/* The same SYN once more. */
static __always_inline int repeats_syn(const struct flow *flow, const struct packet *packet)
{
	return !(flow->subtype & ANSWERED) && flow->sequence == packet->sequence;
}

#endif
