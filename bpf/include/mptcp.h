/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the SYNs say about the connection (RFC 8684, sections 3.1 and 3.2).
 * Only SYN and SYN/ACK segments are looked at: a handful for each subflow.
 */
#ifndef BRAID_MPTCP_H
#define BRAID_MPTCP_H

#include "transport.h"
#include "sha256.h"

enum {
	TCP_OPTIONS_MAX = 40,
	OPTION_END = 0,
	OPTION_NOP = 1,
	OPTION_MPTCP = 30,
	PADDED_TIMESTAMPS = 12,
	TIMESTAMPS_HEAD = 0x0101080a, /* two NOPs before the option */
	SUBTYPE_CAPABLE = 0,
	SUBTYPE_JOIN = 1,
	SUBTYPE_DSS = 2,
	SUBTYPE_ADD_ADDR = 3,
	SUBTYPE_REMOVE_ADDR = 4,
	SUBTYPE_PRIO = 5,
	SUBTYPE_FAIL = 6,
	SUBTYPE_FAST_CLOSE = 7,
	FLAG_BACKUP = 1, /* of MP_JOIN and MP_PRIO */
	FLAG_ECHO = 1,   /* of ADD_ADDR */
	LENGTH_CAPABLE_SYN = 4,
	LENGTH_CAPABLE_SYN_ACK = 12,
	LENGTH_JOIN_SYN = 12,
	VERSION_1 = 1,
	NO_OPTION = -1,
	ANY_SUBTYPES = 0xffff,
	OPTION_BYTES = 32, /* of an option that is copied */
};

/* Flags in the fourth byte of DSS. */
enum {
	DSS_ACK = 0x01,
	DSS_ACK_8_BYTES = 0x02,
	DSS_MAPPING = 0x04,
	DSS_SEQUENCE_8_BYTES = 0x08,
	DSS_FINAL = 0x10,
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

static __always_inline __u32 word_at(const __u8 *b)
{
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
		option->key[0] = word_at(&options->byte[offset + 4]);
		option->key[1] = word_at(&options->byte[offset + 8]);
	}
	if (subtype == SUBTYPE_JOIN && length == LENGTH_JOIN_SYN) {
		option->subtype = SUBTYPE_JOIN;
		option->token = word_at(&options->byte[offset + 4]);
	}
}

/*
 * How long an option is with its kind and its length; 0 where that cannot be. Without a
 * branch: the verifier would follow both ways at each of 40 options.
 */
static __always_inline __u32 size_of_option(const __u8 *option)
{
	__u32 kind = option[0], is_nop = ((kind ^ OPTION_NOP) - 1) >> 31;
	__u32 size = (option[1] & (is_nop - 1)) | is_nop;

	return size + is_nop < 2 ? 0 : size;
}

/*
 * Where the first MPTCP option of one of these subtypes (bits) is, and its size; NO_OPTION
 * where there is none. Options that do not add up end the walk. For global functions,
 * which the verifier checks once and not for each caller.
 */
static __always_inline int walk_to_suboption(const struct options *options, __u32 length, __u32 subtypes,
					     __u32 *size)
{
	__u32 at = 0;
	int i;

	for (i = 0; i < TCP_OPTIONS_MAX; i++) {
		if (at >= length || at >= TCP_OPTIONS_MAX || options->byte[at] == OPTION_END)
			break;
		*size = size_of_option(&options->byte[at]);
		if (!*size || at + *size > length)
			break;
		if (options->byte[at] == OPTION_MPTCP && *size >= 4 && subtypes >> (options->byte[at + 2] >> 4) & 1)
			return at;
		at += *size;
	}
	return NO_OPTION;
}

/* Of a SYN: one whose first MPTCP option is none of these counts as one without MPTCP. */
__noinline int find_mptcp_option(struct __sk_buff *skb, __u32 offset, __u32 length,
				 struct mptcp_option *option)
{
	struct options options = {};
	__u32 size;
	int at;

	if (!option)
		return 0;
	option->subtype = NO_OPTION;
	option->has_key = 0;
	length = size_within(length, TCP_OPTIONS_MAX);
	if (!length || bpf_skb_load_bytes(skb, offset, options.byte, length))
		return 0;
	at = walk_to_suboption(&options, length, ANY_SUBTYPES, &size);
	if (at < 0)
		return 0;
	read_mptcp_option(&options, at, size, option);
	return option->subtype != NO_OPTION;
}

/* The token of a connection end: the first 32 bits of the hash of its key. */
static __always_inline __u32 token_of(const struct mptcp_option *option)
{
	return sha256_first_word(option->key[0], option->key[1]);
}

#endif
