/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What one end of a connection asks of the other, in TCP options: docs/transport.md has
 * the format. An option of kind 253 with Braid's experiment identifier (RFC 6994) holds
 * requests of four bytes: type, length, and a number of 16 bits. The user timeout has an
 * option of its own (RFC 5482). Nothing here touches a socket.
 */
#ifndef BRAID_REQUESTS_H
#define BRAID_REQUESTS_H

#include "request_format.h"
#include "tcp_sockets.h"

enum {
	MAX_CONGESTION_CONTROLS = 16,
	MAX_STRATEGIES = 4,
	REQUEST_ROOM = 16, /* for the types, so that the verifier sees the bound */

	USER_TIMEOUT_IN_MINUTES = 0x8000, /* and of the inactivity timeout */
	LEAST_INACTIVITY_TIMEOUT = 2,     /* s: one until the first probe, and one for the answer */
	MOST_DELAYED_ACK = 200, /* ms: the kernel's own, which sockets have anyhow */
	RATE_MANTISSA_BITS = 11,
};

/* Numbers as they are asked for, in the machine's order. */
struct requests {
	__u32 given; /* a bit for each type */
	__u32 number[REQUEST_ROOM];
};

/* What is accepted of what peers ask for; nothing where it is all zeros. */
struct acceptance {
	__u32 allowed;             /* a bit for each type */
	__u32 most_user_timeout;   /* ms */
	__u32 most_initial_window; /* segments */
	__u32 least_delayed_ack;   /* us */
	__u64 least_rate;          /* bytes a second */
	__u32 least_delay_threshold;   /* ms */
	__u32 most_inactivity_timeout; /* s */
	__u32 strategy[MAX_STRATEGIES]; /* the hashes of their names; 0 for none */
	__u32 congestion_controls;
	__u32 hash[MAX_CONGESTION_CONTROLS]; /* of their names */
	struct congestion congestion_control[MAX_CONGESTION_CONTROLS];
};

/* What comes of requests. */
struct verdict {
	__u32 accepted; /* a bit for each type */
	__u32 refused;  /* likewise; what makes no sense is neither */
	__u64 value[REQUESTS]; /* in the units of the kernel's option; an index of a congestion control */
};

/* Reads the option's requests; those of a type that is not known say nothing. */
static __always_inline void read_requests(const __u8 *option, __u32 length, struct requests *requests)
{
	__u32 i;

#pragma unroll
	for (i = 0; i < REQUESTS_AT_MOST; i++) {
		const __u8 *one = option + REQUEST_BYTES * (i + 1);
		__u8 type = one[0];

		if (REQUEST_BYTES * (i + 2) > length || one[1] != REQUEST_BYTES)
			return;
		if (type == REQUEST_USER_TIMEOUT || type >= REQUESTS || requests->given & 1U << type)
			continue;
		requests->given |= 1U << type;
		requests->number[type & (REQUEST_ROOM - 1)] = one[2] << 8 | one[3];
	}
}

/* RFC 5482: a timeout of 0 is none. */
static __always_inline void read_user_timeout(const __u8 *option, struct requests *requests)
{
	requests->given |= 1U << REQUEST_USER_TIMEOUT;
	requests->number[REQUEST_USER_TIMEOUT] = option[2] << 8 | option[3];
}

/* Bytes a second; 0 for none. */
static __always_inline __u64 rate_of(__u32 number)
{
	__u64 mantissa = number & ((1U << RATE_MANTISSA_BITS) - 1);

	return (mantissa << (number >> RATE_MANTISSA_BITS & 31)) * (1000 / 8);
}

static __always_inline void judge_user_timeout(const struct acceptance *acceptance, __u32 number, struct verdict *verdict)
{
	__u32 time = number & (USER_TIMEOUT_IN_MINUTES - 1);
	__u64 timeout = time * (number & USER_TIMEOUT_IN_MINUTES ? 60000ULL : 1000);

	if (!time)
		return;
	if (timeout > acceptance->most_user_timeout)
		timeout = acceptance->most_user_timeout;
	verdict->value[REQUEST_USER_TIMEOUT] = timeout;
	verdict->accepted |= 1U << REQUEST_USER_TIMEOUT;
}

static __always_inline void judge_initial_window(const struct acceptance *acceptance, __u32 number, struct verdict *verdict)
{
	if (!number)
		return;
	if (number > acceptance->most_initial_window)
		number = acceptance->most_initial_window;
	verdict->value[REQUEST_INITIAL_WINDOW] = number;
	verdict->accepted |= 1U << REQUEST_INITIAL_WINDOW;
}

static __always_inline void judge_congestion_control(const struct acceptance *acceptance, __u32 number,
						     struct verdict *verdict)
{
	__u32 i;

	for (i = 0; i < MAX_CONGESTION_CONTROLS && i < acceptance->congestion_controls; i++) {
		if (acceptance->hash[i] != number)
			continue;
		verdict->value[REQUEST_CONGESTION_CONTROL] = i;
		verdict->accepted |= 1U << REQUEST_CONGESTION_CONTROL;
		return;
	}
	verdict->refused |= 1U << REQUEST_CONGESTION_CONTROL;
}

static __always_inline void judge_delayed_ack(const struct acceptance *acceptance, __u32 number, struct verdict *verdict)
{
	__u32 delay = number * 1000;

	if (!number || number > MOST_DELAYED_ACK)
		return;
	if (delay < acceptance->least_delayed_ack)
		delay = acceptance->least_delayed_ack;
	verdict->value[REQUEST_DELAYED_ACK] = delay;
	verdict->accepted |= 1U << REQUEST_DELAYED_ACK;
}

static __always_inline void judge_rate(const struct acceptance *acceptance, __u32 number, struct verdict *verdict)
{
	__u64 rate = rate_of(number);

	if (!rate)
		return;
	if (rate < acceptance->least_rate)
		rate = acceptance->least_rate;
	verdict->value[REQUEST_RATE] = rate;
	verdict->accepted |= 1U << REQUEST_RATE;
}

static __always_inline void judge_schedule(const struct acceptance *acceptance, __u32 number, struct verdict *verdict)
{
	__u32 i;

#pragma unroll
	for (i = 0; i < MAX_STRATEGIES; i++) {
		if (!number || acceptance->strategy[i] != number)
			continue;
		verdict->value[REQUEST_SCHEDULE] = number;
		verdict->accepted |= 1U << REQUEST_SCHEDULE;
		return;
	}
	verdict->refused |= 1U << REQUEST_SCHEDULE;
}

static __always_inline void judge_delay_threshold(const struct acceptance *acceptance, __u32 number, struct verdict *verdict)
{
	if (!number)
		return;
	if (number < acceptance->least_delay_threshold)
		number = acceptance->least_delay_threshold;
	verdict->value[REQUEST_DELAY_THRESHOLD] = number;
	verdict->accepted |= 1U << REQUEST_DELAY_THRESHOLD;
}

static __always_inline void judge_inactivity_timeout(const struct acceptance *acceptance, __u32 number,
						     struct verdict *verdict)
{
	__u32 time = number & (USER_TIMEOUT_IN_MINUTES - 1), timeout = time * (number & USER_TIMEOUT_IN_MINUTES ? 60 : 1);

	if (!time)
		return;
	if (timeout > acceptance->most_inactivity_timeout)
		timeout = acceptance->most_inactivity_timeout;
	if (timeout < LEAST_INACTIVITY_TIMEOUT)
		timeout = LEAST_INACTIVITY_TIMEOUT;
	verdict->value[REQUEST_INACTIVITY_TIMEOUT] = timeout;
	verdict->accepted |= 1U << REQUEST_INACTIVITY_TIMEOUT;
}

static __always_inline void judge(const struct acceptance *acceptance, const struct requests *requests,
				  struct verdict *verdict)
{
	__u32 asked = requests->given & acceptance->allowed;

	verdict->refused = requests->given & ~acceptance->allowed;
	if (asked & 1U << REQUEST_USER_TIMEOUT)
		judge_user_timeout(acceptance, requests->number[REQUEST_USER_TIMEOUT], verdict);
	if (asked & 1U << REQUEST_INITIAL_WINDOW)
		judge_initial_window(acceptance, requests->number[REQUEST_INITIAL_WINDOW], verdict);
	if (asked & 1U << REQUEST_CONGESTION_CONTROL)
		judge_congestion_control(acceptance, requests->number[REQUEST_CONGESTION_CONTROL], verdict);
	if (asked & 1U << REQUEST_DELAYED_ACK)
		judge_delayed_ack(acceptance, requests->number[REQUEST_DELAYED_ACK], verdict);
	if (asked & 1U << REQUEST_RATE)
		judge_rate(acceptance, requests->number[REQUEST_RATE], verdict);
	if (asked & 1U << REQUEST_SCHEDULE)
		judge_schedule(acceptance, requests->number[REQUEST_SCHEDULE], verdict);
	if (asked & 1U << REQUEST_DELAY_THRESHOLD)
		judge_delay_threshold(acceptance, requests->number[REQUEST_DELAY_THRESHOLD], verdict);
	if (asked & 1U << REQUEST_INACTIVITY_TIMEOUT)
		judge_inactivity_timeout(acceptance, requests->number[REQUEST_INACTIVITY_TIMEOUT], verdict);
}

#endif
