/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The addresses of IPv4 and IPv6, in one form. */
#ifndef BRAID_ADDRESS_H
#define BRAID_ADDRESS_H

#include "kernel.h"

/* An IPv6 address, or an IPv4 address in its mapped form (::ffff:a.b.c.d). */
struct address {
	__be32 word[4];
};

/*
 * Addresses are written as they are read again, in words of 64 bits, and both ports as
 * one word: a load that spans two stores has to wait for both.
 */
static __always_inline __u64 two_words(__be32 first, __be32 second)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return (__u64)second << 32 | first;
#else
	return (__u64)first << 32 | second;
#endif
}

static __always_inline void map_ipv4(struct address *to, __be32 from)
{
	__u64 *halves = (void *)to;

	halves[0] = 0;
	halves[1] = two_words(bpf_htonl(0xffff), from);
}

#endif
