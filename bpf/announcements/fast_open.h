/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TCP Fast Open (RFC 7413) of connections that may get further subflows. Linux 6.18 has a sender go far beyond the
 * connection's window where there was data in the SYN and several subflows carry what follows: the receiver drops that,
 * and the connection crawls (docs/kernel-notes.md). So the SYN of a pod's MPTCP socket asks for no cookie. Who has one
 * goes on with it: its data would make the connection plain TCP where the peer takes it only later.
 */
#ifndef BRAID_FAST_OPEN_H
#define BRAID_FAST_OPEN_H

#include "checksum.h"
#include "mptcp.h"

enum {
	OPTION_FAST_OPEN = 34,
	OPTION_EXPERIMENT = 254, /* with this number: fast open, before it had a kind of its own */
	EXPERIMENT_NUMBER = 0xf989,
	FAST_OPEN_MAX = 20, /* bytes, as the kernel writes it: from a word on, with NOPs up to the next one */
};

static __always_inline int is_fast_open(const __u8 *option, __u32 size)
{
	return option[0] == OPTION_FAST_OPEN ||
	       (option[0] == OPTION_EXPERIMENT && size >= 4 && (option[2] << 8 | option[3]) == EXPERIMENT_NUMBER);
}

/* Where the option is, and its size; NO_OPTION where there is none. */
static __always_inline int walk_to_fast_open(const struct options *options, __u32 length, __u32 *size)
{
	__u32 at = 0;
	int i;

	for (i = 0; i < TCP_OPTIONS_MAX; i++) {
		if (at >= length || at >= TCP_OPTIONS_MAX || options->byte[at] == OPTION_END)
			break;
		*size = size_of_option(&options->byte[at]);
		if (!*size || at + *size > length)
			break;
		if (is_fast_open(&options->byte[at], *size))
			return at;
		at += *size;
	}
	return NO_OPTION;
}

/* Whether nothing but NOPs follows up to the next word: what another stack writes there stays. */
static __always_inline int is_padded(const struct options *options, __u32 end)
{
	__u32 i;

	end = size_within(end, TCP_OPTIONS_MAX);
	for (i = 0; i < 3; i++)
		if (i < (-end & 3) && options->byte[end + i] != OPTION_NOP)
			return 0;
	return 1;
}

/* Puts NOPs in the place of so many bytes of options. */
static __always_inline int blank(struct __sk_buff *skb, const struct packet *packet, __u32 at, __u32 size)
{
	__u32 before[FAST_OPEN_MAX / 4] = {}, nops[FAST_OPEN_MAX / 4];
	__s64 sum;

	__builtin_memset(nops, OPTION_NOP, sizeof(nops));
	size = size_within(size, FAST_OPEN_MAX);
	if (!size || bpf_skb_load_bytes(skb, at, before, size))
		return 0;
	sum = bpf_csum_diff(before, size, nops, size, 0);
	if (sum < 0 || bpf_l4_csum_replace(skb, packet->options - sizeof(struct tcphdr) + TCP_CHECKSUM_AT, 0, sum, 0))
		return 0;
	return !bpf_skb_store_bytes(skb, at, nops, size, BPF_F_RECOMPUTE_CSUM);
}

/* Of a SYN without data. Global, so that the verifier looks at it once. */
__noinline int refuse_fast_open(struct __sk_buff *skb)
{
	struct options options = {};
	struct packet packet;
	__u32 length, size;
	int at;

	if (!parse_packet(skb, &packet) || (packet.flags & (TCP_SYN | TCP_ACK)) != TCP_SYN ||
	    skb->len != packet.options + packet.options_length)
		return 0;
	length = size_within(packet.options_length, TCP_OPTIONS_MAX);
	if (!length || bpf_skb_load_bytes(skb, packet.options, options.byte, length))
		return 0;
	at = walk_to_fast_open(&options, length, &size);
	if (at < 0 || at & 3 || !is_padded(&options, at + size))
		return 0;
	size = (size + 3) & ~3U;
	return at + size <= length && blank(skb, &packet, packet.options + at, size);
}

#endif
