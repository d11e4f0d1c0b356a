/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * For programs of one's own: selectors and actions that a chain calls by an action of
 * type RunProgram. docs/programs.md is the tutorial; docs/examples has whole ones.
 *
 *     #include "braid_program.h"
 *
 *     BRAID_BLOCK(large)
 *     {
 *             return packet->payload >= value ? BRAID_MATCH : BRAID_NO_MATCH;
 *     }
 *
 *     char _license[] SEC("license") = "Dual BSD/GPL";
 *
 * In the body there are
 *     skb      the packet: for the functions below
 *     packet   struct context: what was parsed of it
 *     subflow  struct braid_subflow: the record of its subflow
 *     value    the action's parameter
 * all of them copies but the packet itself. Return enum braid_verdict.
 *
 * Functions that change the packet return 1 when they did and 0 when they could
 * not, and then nothing has changed. They keep checksums right, keep `packet` up
 * to date, and make every pointer into the packet void; offsets stay good.
 */
#ifndef BRAID_PROGRAM_H
#define BRAID_PROGRAM_H

#include "endpoint/program_context.h"
#include "endpoint/edit.h"
#include "braid_ends.h"

#define BRAID_UNUSED __attribute__((unused))

#define BRAID_BLOCK(name)                                                                        \
	static __always_inline int name##_block(struct __sk_buff *skb, struct context *packet,   \
						const struct braid_subflow *subflow, __s64 value); \
	SEC("tc") int name(struct __sk_buff *skb)                                                \
	{                                                                                        \
		__u32 zero = 0;                                                                  \
		struct block_input *input = bpf_map_lookup_elem(&block_context, &zero);          \
                                                                                                 \
		if (!input)                                                                      \
			return BRAID_NEXT;                                                       \
		return name##_block(skb, &input->packet, &input->subflow, input->value);         \
	}                                                                                        \
	static __always_inline int name##_block(struct __sk_buff *skb BRAID_UNUSED,              \
						struct context *packet BRAID_UNUSED,             \
						const struct braid_subflow *subflow BRAID_UNUSED, \
						__s64 value BRAID_UNUSED)

/* A segment that only acknowledges: no payload, no SYN, FIN or RST. */
static __always_inline int braid_is_pure_ack(const struct context *packet)
{
	return is_pure_ack(packet);
}

/* The ends of the packet's subflow, by which braid_ends_of_socket knows it too. */
static __always_inline void braid_ends_of_packet(const struct context *packet, struct braid_ends *ends)
{
	ends->local = packet->key.local;
	ends->remote = packet->key.remote;
	ends->local_port = packet->key.local_port;
	ends->remote_port = packet->key.remote_port;
}

/* The six bits of the differentiated services code point. */
static __always_inline __u32 braid_dscp(struct __sk_buff *skb, const struct context *packet)
{
	__u8 first[2] = {};

	if (bpf_skb_load_bytes(skb, packet->network, first, sizeof(first)))
		return 0;
	if (packet->family == AF_INET)
		return first[1] >> 2;
	return (first[0] & 0xf) << 2 | first[1] >> 6;
}

/* Copies `length` bytes of payload, from `at` on; 1 when they are there. */
static __always_inline int braid_load_payload(struct __sk_buff *skb, const struct context *packet, __u32 at,
					      void *to, __u32 length)
{
	if (at + length > packet->payload)
		return 0;
	return !bpf_skb_load_bytes(skb, options_end(packet) + at, to, length);
}

/* Finds the first TCP option of a kind: its offset in the frame, and its length. */
static __always_inline int braid_find_option(struct __sk_buff *skb, struct context *packet, __u32 kind,
					     struct option_place *place)
{
	return find_option(skb, packet, kind, ANY_SUBTYPE, place);
}

/* Finds the first MPTCP option of a subtype (RFC 8684, section 8). */
static __always_inline int braid_find_mptcp_option(struct __sk_buff *skb, struct context *packet, __u32 subtype,
						   struct option_place *place)
{
	return find_option(skb, packet, OPTION_MPTCP, subtype, place);
}

/* Overwrites an option that was found with NOPs. */
static __always_inline int braid_remove_option(struct __sk_buff *skb, struct context *packet,
					       const struct option_place *place)
{
	return remove_option(skb, packet, place->offset, place->length);
}

/* Overwrites bytes within the options; the offset is the frame's. */
static __always_inline int braid_replace_bytes(struct __sk_buff *skb, struct context *packet, __u32 offset,
					       __u32 length, struct option_bytes *bytes)
{
	return replace_bytes(skb, packet, offset, length, bytes);
}

/*
 * Puts an option into a pure ACK, filled up with NOPs to whole words. Only pure
 * ACKs have room for one, and of them not those that are full of SACK blocks.
 */
static __always_inline int braid_insert_option(struct __sk_buff *skb, struct context *packet,
					       struct option_bytes *option, __u32 length)
{
	return insert_option(skb, packet, option, length);
}

/*
 * Lowers the receive window, as it stands in the header: in units of 1 << scale.
 * A window is never raised, and that of a SYN is left alone.
 */
static __always_inline int braid_set_window(struct __sk_buff *skb, struct context *packet, __u32 window)
{
	return window < packet->window && set_window(skb, packet, window);
}

/*
 * Makes the TCP checksum right after 2 or 4 bytes of TCP at an even offset were
 * written with bpf_skb_store_bytes: from and to are as they stand in the packet.
 */
static __always_inline int braid_checksum(struct __sk_buff *skb, const struct context *packet, __be32 from,
					  __be32 to, __u32 size)
{
	return !bpf_l4_csum_replace(skb, packet->transport + TCP_CHECKSUM_AT, from, to, size);
}

#endif
