/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A packet of a connection that becomes a pure ACK, which announces an address (ADD_ADDR). */
#ifndef BRAID_BARE_ACK_H
#define BRAID_BARE_ACK_H

#include "checksum.h"
#include "mptcp.h"

enum {
	CARRIES = 0xb4a0, /* tc_index of a clone */
	ID_AT = 3,
};

struct announcement {
	__u8 option[OPTION_BYTES]; /* as it was announced */
	__u32 length;
};

struct carried {
	struct announcement announcement;
	__be32 sequence;
};

/* A new packet, as it is written. */
struct segment {
	struct tcphdr header;
	__u8 options[TCP_OPTIONS_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct segment);
} scratch SEC(".maps");

static __always_inline int is_bare_ack(const struct __sk_buff *skb, const struct packet *packet)
{
	return !(packet->flags & (TCP_SYN | TCP_FIN | TCP_RST)) && skb->len == packet->options + packet->options_length;
}

static __always_inline __u16 bare_checksum(const struct packet *packet, __u32 length)
{
	return pseudo_header_sum(packet->family, &packet->source, &packet->destination, length);
}

/* The length in IP's header, and the checksum of IPv4's. */
static __always_inline int set_ip_length(struct __sk_buff *skb, const struct packet *packet, __u32 tcp_length)
{
	__u32 network = packet->network, transport = packet->options - sizeof(struct tcphdr);
	struct iphdr ip;
	__be16 length;

	if (packet->family == AF_INET6) {
		length = bpf_htons(transport - network - sizeof(struct ipv6hdr) + tcp_length);
		return !bpf_skb_store_bytes(skb, network + 4, &length, sizeof(length), 0);
	}
	if (transport != network + sizeof(ip) || bpf_skb_load_bytes(skb, network, &ip, sizeof(ip)))
		return 0;
	ip.tot_len = bpf_htons(sizeof(ip) + tcp_length);
	ip.check = 0;
	ip.check = ~folded((__u32)bpf_csum_diff(0, 0, &ip, sizeof(ip), 0));
	return !bpf_skb_store_bytes(skb, network, &ip, sizeof(ip), 0);
}

/* Timestamps, where they fit beside it, and the announcement; the length of all. */
static __always_inline __u32 write_options(struct segment *segment, const __u32 *timestamps,
					   const struct announcement *announcement)
{
	__u32 *words = (__u32 *)segment->options, length = (announcement->length + 3) & ~3U;
	const __u32 *option = (const __u32 *)announcement->option;
	int i, with = timestamps[0] == bpf_htonl(0x0101080a) && PADDED_TIMESTAMPS + length <= TCP_OPTIONS_MAX;

#pragma clang loop unroll(full)
	for (i = 0; i < TCP_OPTIONS_MAX / 4; i++)
		words[i] = 0x01010101;
	if (!with) {
#pragma clang loop unroll(full)
		for (i = 0; i < OPTION_BYTES / 4; i++)
			words[i] = option[i];
		return length;
	}
#pragma clang loop unroll(full)
	for (i = 0; i < 3; i++)
		words[i] = timestamps[i];
#pragma clang loop unroll(full)
	for (i = 0; i < (TCP_OPTIONS_MAX - PADDED_TIMESTAMPS) / 4; i++)
		words[3 + i] = option[i];
	return PADDED_TIMESTAMPS + length;
}

/*
 * The checksum is the NIC's to complete where it was before; programs are not told, but
 * it shows in what is there.
 */
static __always_inline int set_checksum(struct segment *segment, const struct packet *packet, __u32 length, int partial)
{
	segment->header.check = bare_checksum(packet, length);
	if (partial)
		return 1;
	if (length > sizeof(*segment))
		return 0;
	barrier_var(length);
	segment->header.check = ~folded((__u32)bpf_csum_diff(0, 0, segment, length, 0));
	return 1;
}

/* Makes a clone the pure ACK that brings the announcement. */
__noinline int become_ack(struct __sk_buff *skb, struct packet *packet, struct carried *carried)
{
	__u32 transport, zero = 0, length, timestamps[3] = {};
	struct segment *segment = bpf_map_lookup_elem(&scratch, &zero);
	int partial;

	if (!packet || !carried || !segment)
		return 0;
	transport = packet->options - sizeof(struct tcphdr);
	if (bpf_skb_load_bytes(skb, transport, &segment->header, sizeof(segment->header)))
		return 0;
	if (packet->options_length >= PADDED_TIMESTAMPS && bpf_skb_load_bytes(skb, packet->options, timestamps, sizeof(timestamps)))
		return 0;
	partial = segment->header.check == bare_checksum(packet, skb->len - transport);
	length = sizeof(segment->header) + write_options(segment, timestamps, &carried->announcement);
	segment->header.seq = carried->sequence;
	segment->header.flags = TCP_ACK;
	segment->header.doff = length / 4 << 4;
	segment->header.urg_ptr = 0;
	if (length > sizeof(*segment) || bpf_skb_change_tail(skb, transport + length, 0))
		return 0;
	if (!set_ip_length(skb, packet, length))
		return 0;
	if (!set_checksum(segment, packet, length, partial))
		return 0;
	length = size_within(length, sizeof(*segment));
	if (!length)
		return 0;
	return !bpf_skb_store_bytes(skb, transport, segment, length, 0);
}

#endif
