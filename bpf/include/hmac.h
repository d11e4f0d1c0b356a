/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * HMAC-SHA256 (RFC 2104) of a short message under a key of 16 bytes: how RFC 8684,
 * section 3.4.1, has an announced address signed.
 */
#ifndef BRAID_HMAC_H
#define BRAID_HMAC_H

#include "sha256.h"

enum {
	HMAC_MESSAGE = 24, /* bytes, at most */
	HMAC_INNER = 0x36363636,
	HMAC_OUTER = 0x5c5c5c5c,
	SHA256_END = 0x80, /* the byte that ends a message */
	BITS_OF_BLOCK = 512,
	BITS_OF_HASH = 256,
};

struct hmac {
	__u32 key[4];    /* the words of the key, each in the machine's order */
	__u8 message[HMAC_MESSAGE];
	__u32 length;    /* of the message, in bytes */
	__u32 result[2]; /* the last 64 bits, likewise */
};

struct sha256_block {
	__u32 word[16];
};

/* Global: the verifier follows the rounds once, and not for each of the four blocks. */
__noinline int sha256_add(struct sha256_state *state, struct sha256_block *block)
{
	if (!state || !block)
		return 0;
	sha256_compress(state, block->word);
	return 1;
}

static __always_inline void hmac_begin(struct sha256_state *state, struct sha256_block *block, const __u32 key[4],
				       __u32 pad)
{
	int i;

	*state = sha256_begin;
#pragma clang loop unroll(full)
	for (i = 0; i < 16; i++)
		block->word[i] = (i < 4 ? key[i] : 0) ^ pad;
	sha256_add(state, block);
	__builtin_memset(block, 0, sizeof(*block));
}

/* Fills in the result. What follows the message must be zeros. */
__noinline int hmac_sha256(struct hmac *hmac)
{
	struct sha256_state inner, outer;
	struct sha256_block block;
	__u32 length;
	int i;

	if (!hmac)
		return 0;
	length = hmac->length;
	if (length >= HMAC_MESSAGE)
		return 0;
	hmac->message[length] = SHA256_END;
	hmac_begin(&inner, &block, hmac->key, HMAC_INNER);
#pragma clang loop unroll(full)
	for (i = 0; i < HMAC_MESSAGE / 4; i++)
		block.word[i] = bpf_htonl(((__u32 *)hmac->message)[i]);
	block.word[15] = BITS_OF_BLOCK + 8 * length;
	sha256_add(&inner, &block);
	hmac_begin(&outer, &block, hmac->key, HMAC_OUTER);
#pragma clang loop unroll(full)
	for (i = 0; i < 8; i++)
		block.word[i] = inner.word[i];
	block.word[8] = (__u32)SHA256_END << 24;
	block.word[15] = BITS_OF_BLOCK + BITS_OF_HASH;
	sha256_add(&outer, &block);
	hmac->result[0] = outer.word[6];
	hmac->result[1] = outer.word[7];
	return 1;
}

#endif
