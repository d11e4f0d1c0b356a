/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the SYNs say about the connection (RFC 8684, sections 3.1 and 3.2).
 * Only SYN and SYN/ACK segments are looked at: a handful for each subflow.
 */
#ifndef BRAID_MPTCP_H
#define BRAID_MPTCP_H

#include "packet.h"
#include "sha256.h"

enum {
	TCP_OPTIONS_MAX = 40,
	OPTION_END = 0,
	OPTION_NOP = 1,
	OPTION_MPTCP = 30,
	SUBTYPE_CAPABLE = 0,
	SUBTYPE_JOIN = 1,
	LENGTH_CAPABLE_SYN = 4,
	LENGTH_CAPABLE_SYN_ACK = 12,
	LENGTH_JOIN_SYN = 12,
	VERSION_1 = 1,
	NO_OPTION = -1,
};

struct mptcp_option {
	__s32 subtype; /* NO_OPTION when the segment carries none */
	__u32 token;   /* of MP_JOIN */
	__u32 key[2];  /* of MP_CAPABLE in a SYN/ACK, the upper half first */
	__u8 has_key;
};

/* A copy of the options, padded so that a read at any offset stays inside. */
struct options {
	__u8 byte[TCP_OPTIONS_MAX + 16];
};

static __always_inline __u32 read_be32(const struct options *options, __u32 offset)
{
	const __u8 *b = &options->byte[offset];

	return (__u32)b[0] << 24 | (__u32)b[1] << 16 | (__u32)b[2] << 8 | b[3];
}

static __always_inline void read_mptcp_option(const struct options *options, __u32 offset,
					      __u32 length, struct mptcp_option *option)
{
	__u8 subtype = options->byte[offset + 2] >> 4;

	if (subtype == SUBTYPE_CAPABLE && (options->byte[offset + 2] & 0xf) == VERSION_1 &&
	    (length == LENGTH_CAPABLE_SYN || length == LENGTH_CAPABLE_SYN_ACK)) {
		option->subtype = SUBTYPE_CAPABLE;
		option->has_key = length == LENGTH_CAPABLE_SYN_ACK;
		option->key[0] = read_be32(options, offset + 4);
		option->key[1] = read_be32(options, offset + 8);
	}
	if (subtype == SUBTYPE_JOIN && length == LENGTH_JOIN_SYN) {
		option->subtype = SUBTYPE_JOIN;
		option->token = read_be32(options, offset + 4);
	}
}

/*
 * Walks the options of a SYN. An option list that does not add up ends the walk:
 * the segment then counts as one without MPTCP.
 *
 * The verifier follows every way through the loop, and 40 options make many: the
 * step over an option has no branch, and the function is global, so that it is
 * checked once and not for each caller.
 */
__noinline int find_mptcp_option(struct __sk_buff *skb, __u32 offset, __u32 length,
				 struct mptcp_option *option)
{
	struct options options = {};
	__u32 at = 0;
	int i;

	if (!option)
		return 0;
	option->subtype = NO_OPTION;
	option->has_key = 0;
	/* Two comparisons: the verifier of Linux 6.1 does not see through one of both. */
	if (length > TCP_OPTIONS_MAX)
		return 0;
	barrier_var(length);
	if (length < sizeof(__u32))
		return 0;
	if (bpf_skb_load_bytes(skb, offset, options.byte, length))
		return 0;
	for (i = 0; i < TCP_OPTIONS_MAX; i++) {
		__u32 kind, size, is_nop;

		if (at >= length || at >= TCP_OPTIONS_MAX)
			return 0;
		kind = options.byte[at];
		if (kind == OPTION_END)
			return 0;
		is_nop = ((kind ^ OPTION_NOP) - 1) >> 31;
		size = (options.byte[at + 1] & (is_nop - 1)) | is_nop;
		if (size + is_nop < 2 || at + size > length)
			return 0;
		if (kind == OPTION_MPTCP && size >= 4) {
			read_mptcp_option(&options, at, size, option);
			return option->subtype != NO_OPTION;
		}
		at += size;
	}
	return 0;
}

/* The token of a connection end: the first 32 bits of the hash of its key. */
static __always_inline __u32 token_of(const struct mptcp_option *option)
{
	return sha256_first_word(option->key[0], option->key[1]);
}

#endif
