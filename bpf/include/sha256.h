/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * SHA-256 of exactly eight bytes: how RFC 8684 makes a connection's token (the
 * first 32 bits) and its initial data sequence number (the last 64) from a key.
 * One block, run once for each connection.
 */
#ifndef BRAID_SHA256_H
#define BRAID_SHA256_H

#include "kernel.h"

static const __u32 sha256_constants[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static __always_inline __u32 rotate_right(__u32 word, int bits)
{
	return word >> bits | word << (32 - bits);
}

static __always_inline __u32 sha256_schedule(const __u32 w[16], int i)
{
	__u32 w15 = w[(i + 1) & 15], w2 = w[(i + 14) & 15];

	return w[i & 15] + w[(i + 9) & 15] +
	       (rotate_right(w15, 7) ^ rotate_right(w15, 18) ^ w15 >> 3) +
	       (rotate_right(w2, 17) ^ rotate_right(w2, 19) ^ w2 >> 10);
}

struct sha256_state {
	__u32 word[8];
};

static const struct sha256_state sha256_begin = { {
	0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
} };

/* One block; w is used up. */
static __always_inline void sha256_compress(struct sha256_state *state, __u32 w[16])
{
	__u32 a = state->word[0];
	__u32 b = state->word[1];
	__u32 c = state->word[2];
	__u32 d = state->word[3];
	__u32 e = state->word[4];
	__u32 f = state->word[5];
	__u32 g = state->word[6];
	__u32 h = state->word[7];
	int i;

	for (i = 0; i < 64; i++) {
		__u32 t1, t2;

		if (i >= 16)
			w[i & 15] = sha256_schedule(w, i);
		t1 = h + (rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25)) +
		     ((e & f) ^ (~e & g)) + sha256_constants[i] + w[i & 15];
		t2 = (rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22)) +
		     ((a & b) ^ (a & c) ^ (b & c));
		h = g;
		g = f;
		f = e;
		e = d + t1;
		d = c;
		c = b;
		b = a;
		a = t1 + t2;
	}
	state->word[0] += a;
	state->word[1] += b;
	state->word[2] += c;
	state->word[3] += d;
	state->word[4] += e;
	state->word[5] += f;
	state->word[6] += g;
	state->word[7] += h;
}

/* The parts of the hash that anyone wants. */
struct key_hash {
	__u32 first;
	__u32 last[2];
};

static __always_inline void sha256_of_key(__u32 high, __u32 low, struct key_hash *hash)
{
	/* The message, its end mark, and its length in bits. */
	__u32 w[16] = { high, low, 0x80000000, [15] = 64 };
	struct sha256_state state = sha256_begin;

	sha256_compress(&state, w);
	hash->first = state.word[0];
	hash->last[0] = state.word[6];
	hash->last[1] = state.word[7];
}

__noinline __u32 sha256_first_word(__u32 high, __u32 low)
{
	struct key_hash hash;

	sha256_of_key(high, low, &hash);
	return hash.first;
}

#endif
