/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Announcements that wait, and the packets that bring them in the end. */
#ifndef BRAID_ANNOUNCEMENTS_H
#define BRAID_ANNOUNCEMENTS_H

#include "mptcp.h"
#include "mptcp_sockets.h"

enum hold_limit {
	MAX_INTERFACES = 4096,
	MAX_CARRIED = 4096,
	PLACES = 8,           /* for announcements of a connection; a power of two */
	OPTION_BYTES = 32,
	CARRIES = 0xb4a1,     /* tc_index of a clone */
	MAX_ANSWERS = 1000,   /* to a join that is kept back, before one is let go */
	PLACE_EVERY = 250000000, /* ns, from one place to the next where no agent says how many there are */
};

enum {
	OPTION_TIMESTAMPS = 8,
	PADDED_TIMESTAMPS = 12,
	SUBTYPE_ADD_ADDR = 3,
	FLAG_ECHO = 1,
	ID_AT = 3,
	LENGTH_ADD_IPV4 = 16, /* each with its HMAC */
	LENGTH_ADD_IPV6_PORT = 30,
	LONGEST_ACK = sizeof(struct ethhdr) + 60 + 60,
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_SK_STORAGE_GET_F_CREATE = 1,
	BPF_F_INGRESS = 1,
};

/* What a connection of a pod waits for; whichever comes first. Neither: for nothing. */
struct wait {
	__u64 bytes; /* in both directions together; 0: they do not count */
	__u64 time;  /* ns; 0: it does not count */
	__u32 room;  /* that of its tenant: see rooms */
	__u32 pad;
};

/*
 * For how many more connections of a tenant there is room on the node's paths: see
 * agent/crowd.
 */
struct room {
	__u64 until; /* ns; from then on a place comes by and by */
	__s32 left;
	__u32 pad;
};

struct announcement {
	__u8 option[OPTION_BYTES]; /* as it was announced */
	__u32 length;
};

/* Those of a connection, kept with the socket of the subflow that brought them. */
struct held {
	__u64 began;   /* ns, when the first one was announced */
	__u32 lasts;   /* 1: the connection waits no more */
	__u32 waiting; /* a bit for each place */
	struct announcement announcement[PLACES]; /* by the lowest bits of their ids */
};

struct ends {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
};

struct carried {
	struct announcement announcement;
	__be32 sequence;
};

/* The part of struct bpf_tcp_sock up to what is read. */
struct bpf_tcp_sock {
	__u32 unread[5];
	__u32 snd_nxt;
	__u32 unread_too[10];
	__u32 segs_out;
	__u32 unread_either[3];
	__u64 bytes_received;
	__u64 bytes_acked;
};

static void *(*const bpf_sk_fullsock)(void *sk) = (void *)95;
static struct bpf_tcp_sock *(*const bpf_tcp_sock)(void *sk) = (void *)96;
static void *(*const bpf_sk_storage_get)(void *map, void *sk, void *value, __u64 flags) = (void *)107;
static long (*const bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 offset, const void *from, __u32 len, __u64 flags) = (void *)9;
static long (*const bpf_clone_redirect)(struct __sk_buff *skb, __u32 ifindex, __u64 flags) = (void *)13;
static __s64 (*const bpf_csum_diff)(const void *from, __u32 from_size, const void *to, __u32 to_size, __u32 seed) = (void *)28;
static long (*const bpf_skb_change_tail)(struct __sk_buff *skb, __u32 len, __u64 flags) = (void *)38;

/* By the host's ends of the pods' interfaces. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_INTERFACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, struct wait);
} waits SEC(".maps");

/* By the first interface of a tenant; one that has no entry has no bound. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_INTERFACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, struct room);
} rooms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct held);
} held_announcements SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_CARRIED);
	__type(key, struct ends);
	__type(value, struct carried);
} carried_announcements SEC(".maps");

/* The answers to joins that were kept back. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} kept_back SEC(".maps");

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

static __always_inline void ends_of(struct ends *ends, const struct packet *packet)
{
	ends->source = packet->source;
	ends->destination = packet->destination;
	ends->source_port = packet->source_port;
	ends->destination_port = packet->destination_port;
}

static __always_inline __u32 lowest(__u32 bits)
{
	__u32 place;

#pragma clang loop unroll(full)
	for (place = 0; place < PLACES - 1; place++)
		if (bits >> place & 1)
			break;
	return place;
}

static __always_inline int is_bare_ack(const struct __sk_buff *skb, const struct packet *packet)
{
	return !(packet->flags & (TCP_SYN | TCP_FIN | TCP_RST)) && skb->len == packet->options + packet->options_length;
}

static __always_inline int announces(const struct options *options, __u32 at, __u32 size)
{
	return options->byte[at] == OPTION_MPTCP && options->byte[at + 2] >> 4 == SUBTYPE_ADD_ADDR &&
	       !(options->byte[at + 2] & FLAG_ECHO) && size >= LENGTH_ADD_IPV4 && size <= LENGTH_ADD_IPV6_PORT;
}

/* Finds an ADD_ADDR that is no echo. Global, and the step without branches: see mptcp.h. */
__noinline int find_announcement(struct __sk_buff *skb, __u32 offset, __u32 length, struct announcement *found)
{
	struct options options = {};
	__u32 at = 0;
	int i;

	length = size_within(length, TCP_OPTIONS_MAX);
	if (!found || !length || bpf_skb_load_bytes(skb, offset, options.byte, length))
		return 0;
	for (i = 0; i < TCP_OPTIONS_MAX; i++) {
		__u32 kind, size, is_nop;

		if (at >= length || at >= TCP_OPTIONS_MAX)
			return 0;
		kind = options.byte[at];
		if (kind == OPTION_END)
			return 0;
		is_nop = ((kind ^ OPTION_NOP) - 1) >> 31;
		size = (options.byte[at + 1] & (is_nop - 1)) | is_nop;
		if (size + is_nop < 2 || at + size > length)
			return 0;
		if (announces(&options, at, size)) {
			found->length = size;
			offset += at;
			size = size_within(size, OPTION_BYTES);
			return size && !bpf_skb_load_bytes(skb, offset, found->option, size);
		}
		at += size;
	}
	return 0;
}

static __always_inline __u16 folded(__u64 sum)
{
	sum = (__u32)sum + (sum >> 32);
	sum = (__u32)sum + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline __u64 sum_of(const struct address *address)
{
	return (__u64)address->word[0] + address->word[1] + address->word[2] + address->word[3];
}

/* Of IPv4, the mark of the mapped form does not count. */
static __always_inline __u16 pseudo_header_sum(const struct packet *packet, __u32 length)
{
	__u64 sum = (__u64)bpf_htonl(length) + bpf_htonl(IPPROTO_TCP);

	if (packet->family == AF_INET)
		return folded(sum + packet->source.word[3] + packet->destination.word[3]);
	return folded(sum + sum_of(&packet->source) + sum_of(&packet->destination));
}

/* The length in IP's header, and the checksum of IPv4's. */
static __always_inline int set_ip_length(struct __sk_buff *skb, const struct packet *packet, __u32 tcp_length)
{
	__u32 network = sizeof(struct ethhdr), transport = packet->options - sizeof(struct tcphdr);
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
	segment->header.check = pseudo_header_sum(packet, length);
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
	partial = segment->header.check == pseudo_header_sum(packet, skb->len - transport);
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

static __always_inline int carry(struct __sk_buff *skb)
{
	struct carried *found, carried;
	struct packet packet;
	struct ends ends;

	skb->tc_index = 0;
	if (!parse_packet(skb, &packet))
		return TC_ACT_SHOT;
	ends_of(&ends, &packet);
	found = bpf_map_lookup_elem(&carried_announcements, &ends);
	if (!found)
		return TC_ACT_SHOT;
	carried = *found;
	bpf_map_delete_elem(&carried_announcements, &ends);
	return become_ack(skb, &packet, &carried) ? TCX_NEXT : TC_ACT_SHOT;
}

#endif
