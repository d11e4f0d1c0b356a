/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a packet tells of its subflow: amounts, positions, repetitions, the order
 * of arrival, and round-trip times.
 */
#ifndef BRAID_RECORD_H
#define BRAID_RECORD_H

#include "options.h"
#include "subflow.h"

enum record_limit {
	NANOSECONDS_PER_MICROSECOND = 1000,
	SHORTEST_PATIENCE_NS = 3000000,      /* for what is late, where no RTT is known */
	LONGEST_TIMED_NS = 1000000000,
	OTHERS_BETWEEN = 2, /* without them the peer was not sending, and its answer says nothing */
};

static __always_inline int is_after(__u32 sequence, __u32 other)
{
	return (__s32)(sequence - other) > 0;
}

static __always_inline int is_new_timestamp(const struct context *context, const struct traffic *traffic)
{
	return context->options.timestamps &&
	       (!traffic->last_timestamp || is_after(context->options.timestamp, traffic->last_timestamp));
}

static __always_inline void note_rtt(struct traffic *traffic, __u64 nanoseconds)
{
	__u32 sample = nanoseconds / NANOSECONDS_PER_MICROSECOND;

	if (!sample)
		sample = 1;
	if (!traffic->minimum_rtt || sample < traffic->minimum_rtt)
		traffic->minimum_rtt = sample;
	if (!traffic->smoothed_rtt)
		traffic->smoothed_rtt = sample;
	else
		traffic->smoothed_rtt += ((__s32)(sample - traffic->smoothed_rtt)) >> 3;
}

/* Once in a tick of the coarse clock at most: the fine one is dear. */
static __always_inline void begin_timing(struct context *context, struct traffic *traffic, __u8 by)
{
	traffic->timed_tick = context->tick;
	traffic->timed_by = by;
	traffic->timed_others = 0;
	traffic->timed_at = bpf_ktime_get_ns();
}

/* Another CPU may end it at the same time: the time is read once. */
static __always_inline void end_timing(struct traffic *traffic)
{
	__u64 began = *(volatile __u64 *)&traffic->timed_at, now = bpf_ktime_get_ns();

	traffic->timed_at = 0;
	if (began && now - began <= LONGEST_TIMED_NS)
		note_rtt(traffic, now - began);
}

/* The segment that is timed went the other way; this packet may answer it. */
static __always_inline void match_answer(const struct context *context, struct traffic *timed)
{
	if (unlikely(context->fresh_tick) && (__s64)(context->now - timed->timed_at) > LONGEST_TIMED_NS) {
		timed->timed_at = 0;
		return;
	}
	if (timed->timed_by == TIMED_BY_SEQUENCE) {
		if ((context->flags & TCP_ACK) && !is_after(timed->timed_sequence, context->acknowledgement))
			end_timing(timed);
		return;
	}
	if (!context->options.timestamps)
		return;
	if (is_after(timed->timed_timestamp, context->options.echoed)) {
		if (timed->timed_others < 0xff)
			timed->timed_others++;
	} else if (timed->timed_others >= OTHERS_BETWEEN) {
		end_timing(timed);
	} else {
		timed->timed_at = 0;
	}
}

/*
 * A SYN and a segment of new data are answered at once; so is an ACK with a new
 * timestamp, by a peer that sends.
 */
static __always_inline void time_segment(struct context *context, struct traffic *traffic, __s32 fresh)
{
	if (likely(traffic->timed_tick == context->tick) || traffic->timed_at)
		return;
	if (fresh > 0) {
		traffic->timed_sequence = traffic->highest;
		begin_timing(context, traffic, TIMED_BY_SEQUENCE);
	} else if (is_pure_ack(context) && is_new_timestamp(context, traffic)) {
		traffic->timed_timestamp = context->options.timestamp;
		begin_timing(context, traffic, TIMED_BY_TIMESTAMP);
	}
}

/* A first packet without a SYN begins the stream where it is. */
static __always_inline void begin_traffic(const struct context *context, struct traffic *traffic)
{
	traffic->begun = 1;
	traffic->initial_sequence = context->sequence;
	traffic->highest = context->sequence + !!(context->flags & TCP_SYN);
}

/*
 * A segment below the highest: one that fills a fresh gap was overtaken; a
 * repetition takes a round trip at least.
 */
static __always_inline void note_late(struct context *context, const struct subflow *subflow, struct traffic *traffic)
{
	__u64 patience = (__u64)rtt_of(subflow) * NANOSECONDS_PER_MICROSECOND;
	int in_gap = traffic->gap_seen && !is_after(traffic->gap_begin, context->sequence) &&
		     is_after(traffic->gap_end, context->sequence);

	if (!patience)
		patience = SHORTEST_PATIENCE_NS;
	if (in_gap && context->now - traffic->gap_seen < patience)
		traffic->reordered += context->segments;
	else
		traffic->retransmitted += context->segments;
	/* Nobody knows which of the two is answered. */
	if (traffic->timed_by == TIMED_BY_SEQUENCE)
		traffic->timed_at = 0;
}

static __always_inline void note_gap(const struct context *context, struct traffic *traffic)
{
	traffic->gap_begin = traffic->highest;
	traffic->gap_end = context->sequence;
	traffic->gap_seen = context->now;
}

static __always_inline void note_order(struct context *context, const struct subflow *subflow, struct traffic *traffic,
				       __s32 ahead)
{
	if (ahead > 0)
		note_gap(context, traffic);
	else
		note_late(context, subflow, traffic);
}

/* Sets the positions in context, those before this packet. */
static __always_inline void record(struct context *context, struct subflow *subflow)
{
	struct traffic *traffic = &subflow->traffic[context->direction & 1];
	struct traffic *other = &subflow->traffic[~context->direction & 1];
	__u32 begin = context->sequence + !!(context->flags & TCP_SYN);
	__s32 ahead, fresh, is_first = !traffic->begun;

	if (unlikely(is_first))
		begin_traffic(context, traffic);
	else if (unlikely(context->flags & TCP_SYN))
		traffic->timed_at = 0; /* repeated */
	ahead = begin - traffic->highest;
	fresh = ahead + context->payload;
	context->position = traffic->position + ahead;
	context->sent = ahead > 0 ? context->position : traffic->position;
	traffic->packets += context->segments;
	if (context->payload) {
		traffic->bytes += context->payload;
		if (unlikely(ahead))
			note_order(context, subflow, traffic, ahead);
		if (fresh > 0) {
			traffic->position += fresh;
			traffic->highest += fresh;
		}
	}
	if (other->timed_at)
		match_answer(context, other);
	time_segment(context, traffic, context->payload ? fresh : is_first && context->flags & TCP_SYN);
	if (is_new_timestamp(context, traffic))
		traffic->last_timestamp = context->options.timestamp;
}

#endif
