/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* MPTCP options of any segment, for those who need all of their bytes. */
#ifndef BRAID_SUBOPTION_H
#define BRAID_SUBOPTION_H

#include "mptcp.h"

/* An MPTCP option, where it is in the frame, and how long. */
struct suboption {
	__u8 byte[OPTION_BYTES];
	__u32 offset;
	__u32 length;
};

/* Finds an option of one of these subtypes (bits), of up to OPTION_BYTES. */
__noinline int find_suboption(struct __sk_buff *skb, __u32 offset, __u32 length, __u32 subtypes, struct suboption *found)
{
	struct options options = {};
	__u32 size;
	int at;

	length = size_within(length, TCP_OPTIONS_MAX);
	if (!found || !length || bpf_skb_load_bytes(skb, offset, options.byte, length))
		return 0;
	at = walk_to_suboption(&options, length, subtypes, &size);
	if (at < 0)
		return 0;
	found->length = size;
	found->offset = offset + at;
	size = size_within(size, OPTION_BYTES);
	return size && !bpf_skb_load_bytes(skb, found->offset, found->byte, size);
}

#endif
