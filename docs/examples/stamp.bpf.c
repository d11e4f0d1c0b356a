// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * An actor: puts `value` into pure ACKs, as an experimental TCP option (RFC 6994)
 * that the block at the other end, or a capture, can read.
 */
#include "braid_program.h"

enum {
	KIND_EXPERIMENT = 253,
	STAMP_LENGTH = 8,
	EXPERIMENT = 0xb5a1, /* choose one of your own */
};

static __always_inline void write_stamp(struct option_bytes *option, __u32 value)
{
	option->byte[0] = KIND_EXPERIMENT;
	option->byte[1] = STAMP_LENGTH;
	option->byte[2] = EXPERIMENT >> 8;
	option->byte[3] = EXPERIMENT & 0xff;
	option->byte[4] = value >> 24;
	option->byte[5] = value >> 16;
	option->byte[6] = value >> 8;
	option->byte[7] = value;
}

BRAID_BLOCK(stamp)
{
	struct option_bytes option = {};
	struct option_place there;

	if (!braid_is_pure_ack(packet) || braid_find_option(skb, packet, KIND_EXPERIMENT, &there))
		return BRAID_NEXT;
	write_stamp(&option, value);
	return braid_insert_option(skb, packet, &option, STAMP_LENGTH) ? BRAID_ACTED : BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
