// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Each of the header's edits, one by one. */
#include "braid_program.h"

BRAID_BLOCK(remove_kind)
{
	struct option_place place;

	if (!braid_find_option(skb, packet, value, &place))
		return BRAID_NO_MATCH;
	return braid_remove_option(skb, packet, &place) ? BRAID_ACTED : BRAID_NEXT;
}

BRAID_BLOCK(remove_subtype)
{
	struct option_place place;

	if (!braid_find_mptcp_option(skb, packet, value, &place))
		return BRAID_NO_MATCH;
	return braid_remove_option(skb, packet, &place) ? BRAID_ACTED : BRAID_NEXT;
}

BRAID_BLOCK(window)
{
	return braid_set_window(skb, packet, value) ? BRAID_ACTED : BRAID_NEXT;
}

/* Writes the urgent pointer, which nothing reads without its flag. */
BRAID_BLOCK(urgent)
{
	__be16 from, to = bpf_htons(value);

	if (bpf_skb_load_bytes(skb, packet->transport + 18, &from, sizeof(from)))
		return BRAID_NEXT;
	if (bpf_skb_store_bytes(skb, packet->transport + 18, &to, sizeof(to), 0))
		return BRAID_NEXT;
	return braid_checksum(skb, packet, from, to, sizeof(to)) ? BRAID_ACTED : BRAID_NEXT;
}

BRAID_BLOCK(first_byte)
{
	__u8 byte;

	if (!braid_load_payload(skb, packet, 0, &byte, 1))
		return BRAID_NO_MATCH;
	return byte == value ? BRAID_MATCH : BRAID_NO_MATCH;
}

char _license[] SEC("license") = "Dual BSD/GPL";
