/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Numbers of one's own in the option in which the ends of a connection ask each other
 * (docs/transport.md): each has a type from 128 to 255, which Braid never uses itself, and
 * 16 bits. They stand on pure ACKs, behind what Braid asks for, where there is room for
 * four bytes more, or for eight where Braid asks for nothing. ACKs get lost: say it again
 * and again, and take what is no longer said as withdrawn.
 *
 *     #include "braid_program.h"
 *     #include "braid_option.h"
 *
 * What is read comes from the peer, or from whoever can forge its segments: let the rule's
 * match say from whom, and bound what the number does.
 */
#ifndef BRAID_OPTION_H
#define BRAID_OPTION_H

#include "braid_program.h"

enum {
	BRAID_OWN_TYPES = 128, /* the first one */

	/* As in requests.h, which is for programs in the stack. */
	BRAID_OPTION_KIND = 253,
	BRAID_EXPERIMENT = 0xb81d,
	BRAID_NUMBER_BYTES = 4, /* and of what is before the first one */
	BRAID_NUMBERS_AT_MOST = TCP_OPTIONS_MAX / BRAID_NUMBER_BYTES - 1,
};

/* What there is of an option: its place, 0 where there is none, and that of the number. */
struct braid_own_place {
	struct option_place option;
	__u32 number; /* offset of its type in the frame; 0: not there */
	__u32 value;
};

/* The options of a segment, with room to look behind them. */
struct braid_options {
	__u8 byte[TCP_OPTIONS_MAX + 2 * BRAID_NUMBER_BYTES];
};

/* The offset of Braid's option in these bytes; TCP_OPTIONS_MAX where there is none, above where they do not add up. */
static __always_inline __u32 braid_option_at(const struct braid_options *options, __u32 length)
{
	__u32 at = 0;
	int i;

	for (i = 0; i < TCP_OPTIONS_MAX; i++) {
		__u32 kind, size, is_nop;

		if (at >= length)
			return TCP_OPTIONS_MAX;
		barrier_var(at);
		if (at >= TCP_OPTIONS_MAX)
			return TCP_OPTIONS_MAX;
		kind = options->byte[at];
		if (kind == OPTION_END)
			return TCP_OPTIONS_MAX;
		is_nop = ((kind ^ OPTION_NOP) - 1) >> 31;
		size = (options->byte[at + 1] & (is_nop - 1)) | is_nop;
		if (size + is_nop < 2 || at + size > length)
			return TCP_OPTIONS_MAX + 1;
		if (kind == BRAID_OPTION_KIND && size >= BRAID_NUMBER_BYTES && options->byte[at + 2] == BRAID_EXPERIMENT >> 8 &&
		    options->byte[at + 3] == (BRAID_EXPERIMENT & 0xff))
			return at;
		at += size;
	}
	return TCP_OPTIONS_MAX;
}

/* Finds the first number of a type in Braid's option, as the kernel's receiver reads it. */
static __always_inline void braid_number_in(const struct braid_options *options, __u32 at, __u32 length, __u32 type,
					    const struct context *packet, struct braid_own_place *place)
{
	__u32 i;

	for (i = 1; i <= BRAID_NUMBERS_AT_MOST; i++) {
		__u32 here = at + i * BRAID_NUMBER_BYTES;

		if ((i + 1) * BRAID_NUMBER_BYTES > length)
			return;
		barrier_var(here);
		if (here >= TCP_OPTIONS_MAX || options->byte[here + 1] != BRAID_NUMBER_BYTES)
			return;
		if (options->byte[here] != type)
			continue;
		place->number = options_at(packet) + here;
		place->value = options->byte[here + 2] << 8 | options->byte[here + 3];
		return;
	}
}

/* 0 where the packet's options do not add up. A function of its own: the verifier checks it once. */
__noinline int braid_find_own(struct __sk_buff *skb, struct context *packet, __u32 type, struct braid_own_place *place)
{
	struct braid_options options = {};
	__u32 length, at;

	if (!packet || !place)
		return 0;
	place->option.offset = 0;
	place->option.length = 0;
	place->number = 0;
	place->value = 0;
	length = option_bytes_of(packet->options_length);
	if (!length)
		return !packet->options_length;
	if (bpf_skb_load_bytes(skb, options_at(packet), options.byte, length))
		return 0;
	at = braid_option_at(&options, length);
	if (at >= TCP_OPTIONS_MAX)
		return at == TCP_OPTIONS_MAX;
	place->option.offset = options_at(packet) + at;
	place->option.length = options.byte[at + 1];
	braid_number_in(&options, at, place->option.length, type, packet, place);
	return 1;
}

/* Reads the number of a type of one's own; 1 where the packet has it. */
static __always_inline int braid_read_own(struct __sk_buff *skb, struct context *packet, __u8 type, __u16 *number)
{
	struct braid_own_place place;

	if (type < BRAID_OWN_TYPES || !braid_find_own(skb, packet, type, &place) || !place.number)
		return 0;
	*number = place.value;
	return 1;
}

/* Puts a number behind the last one of Braid's option; what follows the option moves on. */
static __always_inline int braid_extend(struct __sk_buff *skb, struct context *packet, const struct braid_own_place *place,
					struct option_bytes *number)
{
	__u32 end = place->option.offset + place->option.length, tail = options_end(packet) - end;
	struct option_bytes length = {};

	if (!insert_option(skb, packet, number, BRAID_NUMBER_BYTES))
		return 0;
	length.byte[0] = place->option.length + BRAID_NUMBER_BYTES;
	replace_bytes(skb, packet, place->option.offset + 1, 1, &length);
	tail = size_within(tail, TCP_OPTIONS_MAX - BRAID_NUMBER_BYTES);
	if (!tail || bpf_skb_load_bytes(skb, end, number->byte + BRAID_NUMBER_BYTES, tail))
		return 1;
	return replace_bytes(skb, packet, end, tail + BRAID_NUMBER_BYTES, number);
}

/* Has a pure ACK say the number of a type of one's own; 0 where it has no room for it, and on other packets. */
__noinline int braid_write_own(struct __sk_buff *skb, struct context *packet, __u32 type, __u32 number)
{
	struct braid_own_place place = {};
	struct option_bytes bytes = {};

	if (!packet || type < BRAID_OWN_TYPES || type > 0xff || !is_pure_ack(packet) || !braid_find_own(skb, packet, type, &place))
		return 0;
	if (place.number) {
		bytes.byte[0] = number >> 8;
		bytes.byte[1] = number;
		return replace_bytes(skb, packet, place.number + 2, 2, &bytes);
	}
	if (place.option.offset) {
		bytes.byte[0] = type;
		bytes.byte[1] = BRAID_NUMBER_BYTES;
		bytes.byte[2] = number >> 8;
		bytes.byte[3] = number;
		return braid_extend(skb, packet, &place, &bytes);
	}
	bytes.byte[0] = BRAID_OPTION_KIND;
	bytes.byte[1] = 2 * BRAID_NUMBER_BYTES;
	bytes.byte[2] = BRAID_EXPERIMENT >> 8;
	bytes.byte[3] = BRAID_EXPERIMENT & 0xff;
	bytes.byte[4] = type;
	bytes.byte[5] = BRAID_NUMBER_BYTES;
	bytes.byte[6] = number >> 8;
	bytes.byte[7] = number;
	return insert_option(skb, packet, &bytes, 2 * BRAID_NUMBER_BYTES);
}

#endif
