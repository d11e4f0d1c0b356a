/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Duplicate acknowledgements by which a peer would send beyond the connection's window.
 *
 * The end of that window is DATA_ACK and the window of the segment that has it (RFC 8684, section
 * 3.3.4). Linux takes the window that TCP knows, and TCP takes no smaller one from a segment that acknowledges nothing new.
 * While a subflow lacks a segment and others bring data, its duplicates have ever larger DATA_ACKs and ever smaller
 * windows. The sender adds the last window that was larger, and sends more than there is room for. The receiver
 * acknowledges that to TCP, and drops it; MPTCP's timer alone sends it again, at every turn what the
 * application has written at once (docs/kernel-notes.md).
 *
 * So a duplicate has an older DATA_ACK here, over which the sender passes. The other subflows, which brought the data,
 * acknowledge it.
 */
#ifndef BRAID_DUPLICATE_ACK_H
#define BRAID_DUPLICATE_ACK_H

#include "announcements.h"

enum {
	RECEIVES = 65536, /* bytes by a subflow: those of short connections have no room in a map */
	OLDER = 1 << 30,  /* than a DATA_ACK of 4 bytes */
	SACK_HEAD = 0x010105, /* two NOPs before the option */
};

/* What a socket has acknowledged last by a pure ACK, in network byte order. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __be32);
} acknowledged SEC(".maps");

/* The DATA_ACKs that were made older. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} withdrawn SEC(".maps");

/* Whether it tells of what came behind a missing segment, where the kernel writes that. */
static __always_inline int is_selective(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 offset = packet->options, length = packet->options_length, words[PADDED_TIMESTAMPS / 4 + 1];
	const __u32 mask = bpf_htonl(0xffffff00), head = bpf_htonl(SACK_HEAD << 8);

	if (length < sizeof(words) || bpf_skb_load_bytes(skb, offset, words, sizeof(words)))
		return 0;
	return ((words[0] == bpf_htonl(TIMESTAMPS_HEAD) ? words[PADDED_TIMESTAMPS / 4] : words[0]) & mask) == head;
}

/* Makes a DATA_ACK older. What has more in its DSS, as the end of the data, stays as it is. */
static __always_inline void withdraw_data_ack(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 flags, before, after, zero = 0, checksum = packet->options - sizeof(struct tcphdr) + TCP_CHECKSUM_AT;
	struct suboption found = {};
	__u64 *count;

	if (!find_suboption(skb, packet->options, packet->options_length, 1 << SUBTYPE_DSS, &found))
		return;
	flags = found.byte[3];
	if ((flags & (DSS_ACK | DSS_MAPPING | DSS_FINAL)) != DSS_ACK || found.length < (flags & DSS_ACK_8_BYTES ? 12 : 8))
		return;
	before = word_at(&found.byte[4]);
	after = bpf_htonl(before - (flags & DSS_ACK_8_BYTES ? 1 : OLDER));
	before = bpf_htonl(before);
	if (bpf_l4_csum_replace(skb, checksum, before, after, sizeof(after)) ||
	    bpf_skb_store_bytes(skb, found.offset + 4, &after, sizeof(after), 0))
		return;
	count = bpf_map_lookup_elem(&withdrawn, &zero);
	if (count)
		++*count;
}

/* Notes what the socket acknowledges, and makes the DATA_ACK of a duplicate older. */
static __always_inline void note_ack(struct __sk_buff *skb, const struct tcp_sock *tcp, void *socket)
{
	struct packet packet;
	__be32 *last, before;

	if (likely(tcp->bytes_received < RECEIVES || !tcp->is_mptcp || skb->len > LONGEST_ACK))
		return;
	if (!parse_packet(skb, &packet) || !is_bare_ack(skb, &packet))
		return;
	last = bpf_sk_storage_get(&acknowledged, socket, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!last)
		return;
	before = *last;
	*last = packet.acknowledgement;
	if (likely(before != packet.acknowledgement))
		return;
	if (tcp->out_of_order_queue.rb_node || is_selective(skb, &packet))
		withdraw_data_ack(skb, &packet);
}

#endif
