/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The form in which the ends of a connection ask each other (docs/transport.md), and how
 * what is due is put into the options of a segment, whoever writes it: a socket's own stack
 * or the host of a guest.
 */
#ifndef BRAID_REQUEST_FORMAT_H
#define BRAID_REQUEST_FORMAT_H

#include "kernel.h"
#include "shared.h"

enum request_format {
	OPTION_EXPERIMENT = 253,
	OPTION_USER_TIMEOUT = 28,
	OPTION_SPACE = 40, /* of all options of a segment */
	EXPERIMENT = 0xb81d,
	REQUEST_BYTES = 4, /* and of what is before the first one */
	REQUESTS_AT_MOST = OPTION_SPACE / REQUEST_BYTES - 1,
};

SHARED(enum, request_format);

/* Types of requests, below 128 (braid_option.h); the user timeout's never is in an option of requests. */
enum request {
	REQUEST_USER_TIMEOUT,       /* as in RFC 5482: a bit for minutes, else seconds */
	REQUEST_INITIAL_WINDOW,     /* segments */
	REQUEST_CONGESTION_CONTROL, /* the hash of its name */
	REQUEST_DELAYED_ACK,        /* at most, in ms */
	REQUEST_RATE,               /* at most: 5 bits of exponent, 11 of mantissa, in kbit/s */
	REQUEST_CREDIT,             /* a rate, as a share of what the receiver can take */
	REQUEST_SCHEDULE,           /* the hash of a strategy's name */
	REQUEST_DELAY_THRESHOLD,    /* ms: above it a thin stream takes another subflow */
	REQUEST_INACTIVITY_TIMEOUT, /* in the form of the user timeout */
	REQUESTS,
};

SHARED(enum, request);

enum {
	OPTION_WORDS = 16,  /* more than there are types of requests */
	ROUNDS_AT_ONCE = 3, /* at first, one may be lost */
};

#define ASKS_AFTER 100000000ULL   /* ns: the age at which a connection asks for more than an initial window */
#define ROUND_AFTER 1000000000ULL /* ns: all is asked again */

/* What of all that is due a segment says. */
struct portion {
	__u32 words;        /* requests */
	__u32 user_timeout; /* 1: and that */
};

/* Types in the order in which they are written: credits are out of date first. */
static __always_inline __u32 in_turn(__u32 turn)
{
	if (turn == REQUEST_INITIAL_WINDOW)
		return REQUEST_CREDIT;
	return turn <= REQUEST_CREDIT ? turn - 1 : turn;
}

static __always_inline __be32 request_word(__u32 type, __u32 number)
{
	return bpf_htonl(type << 24 | REQUEST_BYTES << 16 | (number & 0xffff));
}

/* What is before so many requests. */
static __always_inline __be32 option_head(__u32 words)
{
	return bpf_htonl((__u32)OPTION_EXPERIMENT << 24 | REQUEST_BYTES * (words + 1) << 16 | EXPERIMENT);
}

static __always_inline __be32 user_timeout_word(__u32 number)
{
	return bpf_htonl((__u32)OPTION_USER_TIMEOUT << 24 | REQUEST_BYTES << 16 | (number & 0xffff));
}

/* The bytes of so many requests, and of the user timeout where it is due. */
static __always_inline __u32 bytes_of(__u32 words, __u32 timeout)
{
	return REQUEST_BYTES * (words + !!words + timeout);
}

/* How much of it finds room. One word is for the user timeout alone. */
static __always_inline struct portion portion_of(__u32 words, __u32 timeout, __u32 room)
{
	struct portion portion;

	if (room >= 2 * REQUEST_BYTES && words > room / REQUEST_BYTES - 1)
		words = room / REQUEST_BYTES - 1;
	else if (room < 2 * REQUEST_BYTES)
		words = 0;
	portion.words = words;
	portion.user_timeout = timeout && room >= bytes_of(words, 1);
	return portion;
}

/* What is due still, after a portion of it. */
static __always_inline __u32 due_after(__u32 due, struct portion portion)
{
	__u32 turn;

#pragma unroll
	for (turn = REQUEST_INITIAL_WINDOW; turn < REQUESTS; turn++) {
		__u32 type = in_turn(turn);

		if (!portion.words || !(due & 1U << type))
			continue;
		due &= ~(1U << type);
		portion.words--;
	}
	return portion.user_timeout ? due & ~(1U << REQUEST_USER_TIMEOUT) : due;
}

#endif
