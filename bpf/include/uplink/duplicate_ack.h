/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Duplicate acknowledgements by which a sender would send beyond the connection's window.
 *
 * The end of that window is DATA_ACK and the window of the segment that has it (RFC 8684, section
 * 3.3.4). Linux takes the window that TCP knows, and TCP takes no smaller one from a segment that acknowledges nothing new.
 * While a subflow lacks a segment and others bring data, its duplicates have ever larger DATA_ACKs and ever smaller
 * windows. The sender adds the last window that was larger, and sends more than there is room for. The receiver
 * acknowledges that to TCP, and drops it; MPTCP's timer alone sends it again, at every turn what the
 * application has written at once (docs/kernel-notes.md).
 *
 * So a duplicate has an older DATA_ACK here, over which the sender passes. The other subflows, which brought the data,
 * acknowledge it. The receiver's node does it, and the sender's: either may be somebody else's.
 */
#ifndef BRAID_UPLINK_DUPLICATE_ACK_H
#define BRAID_UPLINK_DUPLICATE_ACK_H

#include "../checksum.h"
#include "../suboption.h"
#include "maps.h"

enum {
	ACKNOWLEDGED_BITS = 14,  /* entries */
	OLDER_SHORT = 1 << 14,   /* times 65,536, than a DATA_ACK of 4 bytes */
	OLDER_LONG = 1,          /* than the upper half of one of 8 */
	SACK_HEAD = 0x010105,    /* two NOPs before the option */
	SHORTEST_SELECTIVE = 20, /* options that have room for SACK and a DATA_ACK */
	REPEATED_WITHIN = 1 << 24, /* bytes; a number that is further behind is of a connection that has begun since */
};

/* Whose acknowledgement: of a pod of this node, or of the other end. */
enum acknowledgement {
	ACK_SENT = 0,
	ACK_RECEIVED = 1,
};

/*
 * What flows acknowledged last by a segment without data: the number, and in the upper half by which flow.
 * Flows may have the same entry: then nothing of them is taken for a duplicate.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << ACKNOWLEDGED_BITS);
	__type(key, __u32);
	__type(value, __u64);
} acknowledged SEC(".maps");

/* The DATA_ACKs that were made older, by enum acknowledgement. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} withdrawn SEC(".maps");

/* Whether it tells of what came behind a missing segment, where the kernel writes that. */
static __always_inline int is_selective(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 words[PADDED_TIMESTAMPS / 4 + 1];
	const __u32 mask = bpf_htonl(0xffffff00), head = bpf_htonl(SACK_HEAD << 8);

	if (bpf_skb_load_bytes(skb, packet->options, words, sizeof(words)))
		return 0;
	return ((words[0] == bpf_htonl(TIMESTAMPS_HEAD) ? words[PADDED_TIMESTAMPS / 4] : words[0]) & mask) == head;
}

/*
 * A number that is older by so many times 65,536, whose halves have the same sum as its own: a checksum stays as it is,
 * whether it is whole or begun for a NIC to complete, which nobody can tell here, and so do those of tunnels.
 */
static __always_inline __u32 older_of_same_sum(__u32 number, __u16 by)
{
	__u16 upper = (number >> 16) - by;

	return (__u32)upper << 16 | folded((number >> 16) + (number & 0xffff) + (__u16)~upper);
}

/*
 * Makes the DATA_ACK of a segment that lacks one before it older. What has more in its DSS, as the end of the data,
 * stays as it is. Global, so that the verifier looks at it once.
 */
__noinline int withdraw_data_ack(struct __sk_buff *skb, const struct packet *packet, __u32 whose)
{
	struct suboption found = {};
	__u32 flags, at;
	__be32 older;
	__u64 *count;

	if (!packet || !is_selective(skb, packet) ||
	    !find_suboption(skb, packet->options, packet->options_length, 1 << SUBTYPE_DSS, &found))
		return 0;
	flags = found.byte[3];
	if ((flags & (DSS_ACK | DSS_MAPPING | DSS_FINAL)) != DSS_ACK || found.length < (flags & DSS_ACK_8_BYTES ? 12 : 8))
		return 0;
	at = found.offset + 4;
	older = bpf_htonl(older_of_same_sum(word_at(&found.byte[4]), flags & DSS_ACK_8_BYTES ? OLDER_LONG : OLDER_SHORT));
	if ((at - packet->options) & 1 || bpf_skb_store_bytes(skb, at, &older, sizeof(older), 0))
		return 0;
	count = bpf_map_lookup_elem(&withdrawn, &whose);
	if (count)
		++*count;
	return 1;
}

/*
 * Notes what a plain segment without data acknowledges, and makes the DATA_ACK of a duplicate older, and of one that was
 * overtaken. Once for each segment: a second look would find a duplicate.
 */
static __always_inline void note_acknowledgement(struct __sk_buff *skb, const struct packet *packet,
						 const struct flow_key *key, __u32 whose)
{
	__u32 mixed = mix_ends(key), index = (mixed >> (32 - ACKNOWLEDGED_BITS) & ~1U) | whose;
	__u32 number = bpf_ntohl(packet->acknowledgement);
	__u64 *entry, before;

	if (skb->len != packet->options + packet->options_length)
		return;
	entry = bpf_map_lookup_elem(&acknowledged, &index);
	if (!entry)
		return;
	before = *entry;
	if (before >> 32 != mixed || (__u32)before - number >= REPEATED_WITHIN)
		*entry = (__u64)mixed << 32 | number;
	else if (packet->options_length >= SHORTEST_SELECTIVE)
		withdraw_data_ack(skb, packet, whose);
}

#endif
