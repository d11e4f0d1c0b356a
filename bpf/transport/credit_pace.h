/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How fast a sender uses its credit. Receivers give away less than a link carries, so that
 * queues empty themselves. Senders take the rest too for as long as the queue is short: then
 * it never is empty, and the link full. A long queue is not the receiver's doing: the path is
 * narrow elsewhere, or others fill it.
 */
#ifndef BRAID_TRANSPORT_CREDIT_PACE_H
#define BRAID_TRANSPORT_CREDIT_PACE_H

#include "kernel.h"

enum {
	WHOLE_CREDIT = 64,
	LEAST_OF_CREDIT = 16,      /* 64ths, however long the queue */
	SHORT_QUEUE = 4000,        /* us, with a segment of each flow that may come on top */
	LEAST_SHORT_QUEUE = 1000,  /* us */
	BURST = 48 << 10,          /* bytes of a fast flow that are a short queue */
	NEAR = 500,                /* us: a longer least round trip may have a queue in it */
	LONG_QUEUE = 4000,         /* us */
	QUEUE_STEP = 250,          /* us for a 64th more, or two less */
	SEGMENTS_WITHIN_CREDIT = 256, /* with which a flow begins */
};

/*
 * The queue, in us, up to which a flow goes over its credit. It does not know the others, but
 * has a share like theirs: in the time that its segment takes each sends one, and they may
 * come together.
 */
static __always_inline __u64 short_queue(__u64 rate, __u32 segment)
{
	__u64 of_all = segment * 1000000ULL / rate, burst = BURST * 1000000ULL / rate, queue = LEAST_SHORT_QUEUE;

	if (of_all < SHORT_QUEUE - LEAST_SHORT_QUEUE)
		queue = SHORT_QUEUE - of_all;
	return queue < burst ? queue : burst;
}

/*
 * The 64ths of a credit of so many bytes a second to pace to, at these round trips in us. A
 * flow that began while a queue stood has never known less, and would add its own to it: over
 * its credit goes who is near and knows it.
 */
static __always_inline __u32 share_of_credit(__u64 rate, __u32 segment, __u32 round_trip, __u32 least)
{
	__u64 above = round_trip - (least < NEAR ? least : NEAR), queue = round_trip - least, brief, steps;

	if (!rate || !least || round_trip < least)
		return WHOLE_CREDIT;
	brief = short_queue(rate, segment);
	if (above < brief)
		return WHOLE_CREDIT + (brief - above) / QUEUE_STEP;
	if (queue <= LONG_QUEUE)
		return WHOLE_CREDIT;
	steps = 2 * (queue - LONG_QUEUE) / QUEUE_STEP;
	return WHOLE_CREDIT - (steps < WHOLE_CREDIT - LEAST_OF_CREDIT ? steps : WHOLE_CREDIT - LEAST_OF_CREDIT);
}

/*
 * The 64ths to pace to after the last ones, where this many are right for the queue. A flow that
 * slowed down goes faster by a quarter a round trip, as its own packets make the queue that is
 * seen a round trip later; where the queue is not long twice as fast, and where it is short as
 * fast as is right. One long round trip alone may be a host's doing, and has it slow down by half.
 */
static __always_inline __u32 next_share(__u32 last, __u32 right)
{
	__u32 most = right == WHOLE_CREDIT ? 2 * last : last + last / 4, least = last / 2;

	if (!last || right > WHOLE_CREDIT)
		return right;
	if (most == last)
		most++;
	if (right < least)
		return least;
	return right < most ? right : most;
}

/* The 64ths of another credit that are as fast as these of the last one; a lesser one slows down. */
static __always_inline __u32 share_of_other(__u32 share, __u64 last, __u64 rate)
{
	__u32 other = rate ? share * last / rate : 0;

	if (!share || share >= WHOLE_CREDIT || !last || rate <= last)
		return share;
	return other ? other : 1;
}

#endif
