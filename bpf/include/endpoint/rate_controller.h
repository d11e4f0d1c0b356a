/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The control loop behind a window: it compares what was delivered with what was asked
 * for, and changes the factor by which the window differs from rate times round trip.
 */
#ifndef BRAID_RATE_CONTROLLER_H
#define BRAID_RATE_CONTROLLER_H

#include "rate_limit.h"

enum {
	LOOP_INTERVAL = 100 * MILLISECOND,
	LOOP_INTERVAL_SHORT = 20 * MILLISECOND,
	FACTOR_ONE = 1 << 16,
	FACTOR_LOWEST = FACTOR_ONE / 64,
	FACTOR_SHARED = FACTOR_ONE * 5 / 8, /* lowest, of one that shares the connection's */
	FACTOR_HIGHEST = FACTOR_ONE * 64, /* where the RTT is assumed */
	FACTOR_MEASURED = FACTOR_ONE, /* times three more than the sharers, where it is not */
	REPAID_IN = 4,              /* what is owed is at most a second's bytes through this */
};

/*
 * How far a factor may go, and how much may be owed. Subflows that share a window are
 * kept close to it: data that waits for one of them keeps the others waiting too.
 */
struct bounds {
	__u32 lowest;
	__u32 highest;
	__u32 sharers;
};

/*
 * How much the factor changes: half way towards what was asked for over what was
 * delivered, for the effect comes late; at most to the double or half.
 */
static __always_inline __u32 next_factor(__u32 factor, __u64 wanted, __u64 delivered, __u8 was_bound,
					 const struct bounds *bounds)
{
	__u64 next;

	if (!delivered)
		return factor;
	next = factor * (wanted + delivered) / (2 * delivered);
	/* A sender that has nothing more to send needs no larger window. */
	if (next > factor && !was_bound)
		return factor;
	if (next > 2 * (__u64)factor)
		next = 2 * (__u64)factor;
	if (next < factor / 2)
		next = factor / 2;
	if (next < bounds->lowest)
		return bounds->lowest;
	return next > bounds->highest ? bounds->highest : next;
}

static __always_inline void count_anew(struct rate_loop *loop)
{
	loop->delivered = 0;
	loop->bound = 0;
}

/*
 * What an interval should have delivered, with a part of what is owed from before.
 * What a sender did not ask for is not owed to it.
 */
static __always_inline __u64 wanted_with_debt(struct rate_loop *loop, __u64 rate, __u64 elapsed, __u32 sharers)
{
	__s64 wanted = rate * (elapsed / 1000) / MICROSECONDS, most = rate / (REPAID_IN * sharers);
	__s64 owed = loop->owed + wanted - (__s64)loop->delivered;
	__u64 repaid;

	if (most > 1 << 30)
		most = 1 << 30;
	if (owed > most)
		owed = most;
	if (owed < -most)
		owed = -most;
	if (owed > 0 && !loop->bound)
		owed = 0;
	loop->owed = owed;
	repaid = (owed < 0 ? -owed : owed) * (elapsed / 1000) / MICROSECONDS;
	if (owed >= 0)
		return wanted + repaid;
	return repaid > (__u64)wanted / 2 ? (__u64)wanted / 2 : wanted - repaid;
}

/*
 * At the end of an interval, compares. One in which far too much was delivered
 * ends early.
 */
static __always_inline int run_loop(struct rate_loop *loop, __u64 rate, __u32 rtt, __u64 now,
				    const struct bounds *bounds)
{
	__u64 began = loop->began, interval = LOOP_INTERVAL;
	__u64 elapsed = now > began ? now - began : 0; /* another processor's packet may be newer */

	if (!loop->factor || !began || elapsed > 10 * (__u64)SECOND) {
		loop->factor = loop->factor ? loop->factor : FACTOR_ONE;
		loop->owed = 0;
		loop->began = now;
		count_anew(loop);
		return 1;
	}
	if (interval < 2000ULL * rtt)
		interval = 2000ULL * rtt;
	if (loop->delivered > rate * (interval / MILLISECOND) / 800 && elapsed > LOOP_INTERVAL_SHORT && elapsed > 1000ULL * rtt)
		interval = 0;
	/* Of two processors that see the same end, one compares. */
	if (elapsed < interval || __sync_val_compare_and_swap(&loop->began, began, now) != began)
		return 0;
	loop->factor = next_factor(loop->factor, wanted_with_debt(loop, rate, elapsed, bounds->sharers),
				   loop->delivered, loop->bound, bounds);
	count_anew(loop);
	return 1;
}

#endif
