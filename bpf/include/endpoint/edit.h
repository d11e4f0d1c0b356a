/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Edits of one segment. They keep all checksums right, also where the NIC has yet
 * to fill them in, and the frame's VLAN tag in its place. An edit that cannot be
 * made leaves the packet as it was and returns 0; one that was made returns 1,
 * and every pointer into the packet is void then.
 *
 * All of them work with offsets and are global functions: the verifier checks
 * each once, whoever calls it.
 */
#ifndef BRAID_EDIT_H
#define BRAID_EDIT_H

#include "options.h"
#include "../checksum.h"

enum { ANY_SUBTYPE = 0xff };

/* Offsets within the headers. */
enum {
	IPV4_LENGTH_AT = 2,
	IPV4_TTL_AT = 8,
	IPV4_CHECKSUM_AT = 10,
	IPV6_LENGTH_AT = 4,
	TCP_DOFF_AT = 12,
	TCP_WINDOW_AT = 14,
};

/* Bytes of options, as many as a segment can have. */
struct option_bytes {
	__u8 byte[TCP_OPTIONS_MAX];
};

/*
 * The stack of a program is small, and these edits are called from deep within.
 * Nothing is kept here from one edit to the next.
 */
struct edit_scratch {
	struct option_bytes before;
	struct option_bytes after;
	struct option_bytes option; /* for those who call */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct edit_scratch);
} edit_scratch SEC(".maps");

static const struct option_bytes nops = { {
	1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
	1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
} };

/* Zeros, or 0. */
static __always_inline struct edit_scratch *scratch(void)
{
	__u32 zero = 0;
	struct edit_scratch *scratch = bpf_map_lookup_elem(&edit_scratch, &zero);

	if (scratch) {
		__builtin_memset(&scratch->before, 0, sizeof(scratch->before));
		__builtin_memset(&scratch->after, 0, sizeof(scratch->after));
	}
	return scratch;
}

/* For an option that is to be put into a packet: zeros, or 0. */
static __always_inline struct option_bytes *new_option(void)
{
	__u32 zero = 0;
	struct edit_scratch *scratch = bpf_map_lookup_elem(&edit_scratch, &zero);

	if (!scratch)
		return 0;
	__builtin_memset(&scratch->option, 0, sizeof(scratch->option));
	return &scratch->option;
}

/* Where an option is: its offset from the frame's beginning, and its length. */
struct option_place {
	__u32 offset;
	__u32 length;
};

static __always_inline __u32 options_end(const struct context *context)
{
	return options_at(context) + context->options_length;
}

/* Lengths of options that go into a header are whole words. */
static __always_inline __u32 padded(__u32 length)
{
	return (length + 3) & ~3U;
}

/* As find_option, but -1 when the options up to there do not add up. */
__noinline int look_for_option(struct __sk_buff *skb, struct context *context, __u32 kind, __u32 subtype,
			       struct option_place *place)
{
	__u8 byte[TCP_OPTIONS_MAX + 4] = {};
	__u32 at = 0, length;
	int i;

	if (!context || !place)
		return 0;
	length = option_bytes_of(context->options_length);
	if (!length || bpf_skb_load_bytes(skb, options_at(context), byte, length))
		return 0;
	for (i = 0; i < TCP_OPTIONS_MAX; i++) {
		__u32 here, size, is_nop, is_end;

		if (at >= length)
			return 0;
		/* The verifier of Linux 6.1 knows of no copy what it knows of a register. */
		barrier_var(at);
		if (at >= TCP_OPTIONS_MAX)
			return 0;
		here = byte[at];
		/* Without branches: the verifier would follow each of their ways. */
		is_nop = ((here ^ OPTION_NOP) - 1) >> 31;
		is_end = (here - 1) >> 31;
		size = (byte[at + 1] & (is_nop - 1) & (is_end - 1)) | is_nop | ((length - at) & -is_end);
		if (size + is_nop + 2 * is_end < 2 || at + size > length)
			return -1;
		if (here == kind && (here != OPTION_MPTCP || subtype == ANY_SUBTYPE || byte[at + 2] >> 4 == subtype)) {
			place->offset = options_at(context) + at;
			place->length = size;
			return 1;
		}
		if (is_end)
			return 0;
		at += size;
	}
	return 0;
}

/*
 * Finds the first option of this kind and, where kind is 30, of this subtype or of
 * any. Options that do not add up end the search. The end mark is a kind as well:
 * its length is that of all that follows.
 */
__noinline int find_option(struct __sk_buff *skb, struct context *context, __u32 kind, __u32 subtype,
			   struct option_place *place)
{
	return context && place && look_for_option(skb, context, kind, subtype, place) == 1;
}

static __always_inline int overwrite(struct __sk_buff *skb, struct context *context, __u32 offset, __u32 length,
				     const void *bytes)
{
	struct edit_scratch *copy = scratch();
	__s64 difference;

	length = option_bytes_of(length);
	if (!copy || !length || offset < options_at(context) || offset + length > options_end(context))
		return 0;
	if (bpf_skb_load_bytes(skb, offset, &copy->before, length))
		return 0;
	length = option_bytes_of(length);
	if (!length || bpf_skb_store_bytes(skb, offset, bytes, length, 0))
		return 0;
	length = option_bytes_of(length);
	if (length)
		bpf_skb_load_bytes(skb, offset, &copy->after, length);
	difference = bpf_csum_diff(&copy->before, sizeof(copy->before), &copy->after, sizeof(copy->after), 0);
	/* What begins at an odd byte counts with its bytes swapped. */
	if ((offset - context->transport) & 1)
		difference = (__u32)difference >> 8 | (__u32)difference << 24;
	bpf_l4_csum_replace(skb, context->transport + TCP_CHECKSUM_AT, 0, (__u32)difference, 0);
	return 1;
}

/*
 * Writes `length` of these bytes over what is there. The offset is the frame's and
 * must lie within the options.
 */
__noinline int replace_bytes(struct __sk_buff *skb, struct context *context, __u32 offset, __u32 length,
			     struct option_bytes *bytes)
{
	return context && bytes ? overwrite(skb, context, offset, length, bytes) : 0;
}

/* Overwrites an option with NOPs: nothing moves. */
__noinline int remove_option(struct __sk_buff *skb, struct context *context, __u32 offset, __u32 length)
{
	return context ? overwrite(skb, context, offset, length, &nops) : 0;
}

/* Makes the lengths of IP and TCP those of `options` bytes of options. */
static __always_inline void set_lengths(struct __sk_buff *skb, struct context *context, __u32 options)
{
	__u32 checksum = context->transport + TCP_CHECKSUM_AT;
	__u32 before = sizeof(struct tcphdr) + context->options_length, after = sizeof(struct tcphdr) + options;
	__be16 from, to;

	bpf_skb_load_bytes(skb, context->transport + TCP_DOFF_AT, &from, sizeof(from));
	to = (from & bpf_htons(0x0fff)) | bpf_htons(after / 4 << 12);
	bpf_skb_store_bytes(skb, context->transport + TCP_DOFF_AT, &to, sizeof(to), 0);
	bpf_l4_csum_replace(skb, checksum, from, to, sizeof(to));
	bpf_l4_csum_replace(skb, checksum, bpf_htons(before), bpf_htons(after), BPF_F_PSEUDO_HDR | sizeof(to));
	if (context->family == AF_INET) {
		bpf_skb_load_bytes(skb, context->network + IPV4_LENGTH_AT, &from, sizeof(from));
		to = bpf_htons(bpf_ntohs(from) - before + after);
		bpf_skb_store_bytes(skb, context->network + IPV4_LENGTH_AT, &to, sizeof(to), 0);
		bpf_l3_csum_replace(skb, context->network + IPV4_CHECKSUM_AT, from, to, sizeof(to));
	} else {
		/* No checksum of the header itself makes up for the change. */
		to = bpf_htons(context->transport - context->network - sizeof(struct ipv6hdr) + after);
		bpf_skb_store_bytes(skb, context->network + IPV6_LENGTH_AT, &to, sizeof(to), BPF_F_RECOMPUTE_CSUM);
	}
	context->options_length = options;
}

/* Whether IP's length ends the packet with its options; a length of 0 is of BIG TCP. */
static __always_inline int length_is_plain(struct __sk_buff *skb, const struct context *context)
{
	__u32 at = IPV4_LENGTH_AT, length = options_end(context) - context->network;
	__be16 field;

	if (context->family != AF_INET) {
		at = IPV6_LENGTH_AT;
		length -= sizeof(struct ipv6hdr);
	}
	return !bpf_skb_load_bytes(skb, context->network + at, &field, sizeof(field)) && bpf_ntohs(field) == length;
}

/* A pure ACK in one piece that nothing hides behind: the only packets that grow. */
static __always_inline int may_grow(struct __sk_buff *skb, const struct context *context)
{
	return is_pure_ack(context) && !skb->gso_size && skb->len >= options_end(context) &&
	       !(context->options_length & 3) && length_is_plain(skb, context);
}

/*
 * What some drivers leave behind a short frame is cut off first, so that what is
 * added then is zeros.
 */
static __always_inline int grow(struct __sk_buff *skb, __u32 end, __u32 to)
{
	if (skb->len > end && bpf_skb_change_tail(skb, end, 0))
		return 0;
	return !bpf_skb_change_tail(skb, to, 0);
}

/*
 * Puts an option, filled up with NOPs to whole words, into a pure ACK. There is no
 * room for it in a data segment, and none in a pure ACK that is full of SACK
 * blocks.
 */
__noinline int insert_option(struct __sk_buff *skb, struct context *context, struct option_bytes *option, __u32 length)
{
	struct option_place mark = {};
	struct edit_scratch *copy;
	__u32 end, more;
	int ends;

	length = option_bytes_of(length);
	if (!context || !option || !length || !may_grow(skb, context))
		return 0;
	more = padded(length);
	end = options_end(context);
	if (context->options_length + more > TCP_OPTIONS_MAX)
		return 0;
	ends = look_for_option(skb, context, OPTION_END, ANY_SUBTYPE, &mark);
	if (ends < 0)
		return 0;
	if (!grow(skb, end, end + more))
		return 0;
	/* What follows an end mark would not be read. */
	if (ends)
		remove_option(skb, context, mark.offset, mark.length);
	copy = scratch();
	more = option_bytes_of(more);
	if (!more || !copy)
		return 0;
	bpf_skb_store_bytes(skb, end, &nops, more, 0);
	length = option_bytes_of(length);
	if (length)
		bpf_skb_store_bytes(skb, end, option, length, 0);
	more = option_bytes_of(more);
	if (more)
		bpf_skb_load_bytes(skb, end, &copy->after, more);
	bpf_l4_csum_replace(skb, context->transport + TCP_CHECKSUM_AT, 0,
			    (__u32)bpf_csum_diff(0, 0, &copy->after, sizeof(copy->after), 0), 0);
	set_lengths(skb, context, context->options_length + more);
	return 1;
}

/*
 * Makes this option and, if wished, the timestamps all that a pure ACK carries.
 * Its other options must be no more than DSS without a mapping and timestamps:
 * what they say is said again by the next ACK. The packet never shrinks.
 */
__noinline int replace_options(struct __sk_buff *skb, struct context *context, struct option_bytes *option,
			       __u32 length, __u32 keep_timestamps)
{
	__u32 kept = keep_timestamps ? PADDED_TIMESTAMPS : 0;
	struct edit_scratch *copy = scratch();
	__u32 had, at, all;

	length = option_bytes_of(length);
	if (!context || !option || !length || !copy || !may_grow(skb, context))
		return 0;
	at = options_at(context);
	had = option_bytes_of(context->options_length);
	all = kept + padded(length);
	if (all < had)
		all = had;
	had = option_bytes_of(had);
	if (!had || all > TCP_OPTIONS_MAX || bpf_skb_load_bytes(skb, at, &copy->before, had))
		return 0;
	if (kept && bpf_skb_load_bytes(skb, context->options.timestamps, &copy->after, LENGTH_TIMESTAMPS))
		return 0;
	if (!grow(skb, at + had, at + all))
		return 0;
	all = option_bytes_of(all);
	if (!all)
		return 0;
	bpf_skb_store_bytes(skb, at, &nops, all, 0);
	if (kept)
		bpf_skb_store_bytes(skb, at + kept - LENGTH_TIMESTAMPS, &copy->after, LENGTH_TIMESTAMPS, 0);
	length = option_bytes_of(length);
	if (length)
		bpf_skb_store_bytes(skb, at + kept, option, length, 0);
	all = option_bytes_of(all);
	if (all)
		bpf_skb_load_bytes(skb, at, &copy->after, all);
	bpf_l4_csum_replace(skb, context->transport + TCP_CHECKSUM_AT, 0,
			    (__u32)bpf_csum_diff(&copy->before, sizeof(copy->before), &copy->after, sizeof(copy->after), 0), 0);
	set_lengths(skb, context, all);
	return 1;
}

/* The fields of TCP's header that a new window changes; they are neighbours. */
struct window_fields {
	__be16 window;
	__u16 checksum;
};

/* What the checksum of a segment holds that the NIC is to complete. */
static __always_inline __u16 bare_checksum(const struct context *context)
{
	return pseudo_header_sum(context->family, &context->key.local, &context->key.remote,
				 sizeof(struct tcphdr) + context->options_length + context->payload);
}

/*
 * Writes the window of a segment whose checksum is complete, and 0 for any other.
 * Whether it is is not told to programs: one that the NIC is to complete is known by
 * its value, and what only looks like one, or stands for several segments, is left to
 * the kernel's own function. It costs more than all of this.
 */
static __always_inline int set_window_in_place(struct __sk_buff *skb, const struct context *context, __be16 to)
{
	__u32 at = context->transport & TRANSPORT_MASK;
	struct window_fields fields;
	struct tcphdr *tcp = (void *)(unsigned long)skb->data + at;

	if ((void *)(tcp + 1) > (void *)(unsigned long)skb->data_end || skb->gso_size)
		return 0;
	if (tcp->check == bare_checksum(context))
		return 0;
	fields.window = to;
	fields.checksum = ~folded((__u16)~tcp->check + (__u32)(__u16)~tcp->window + to);
	return !bpf_skb_store_bytes(skb, at + TCP_WINDOW_AT, &fields, sizeof(fields), 0);
}

/*
 * Writes the receive window as it stands in the header, before scaling. That of a
 * SYN stays: it is not scaled, and says what the connection can do.
 */
__noinline int set_window(struct __sk_buff *skb, struct context *context, __u32 window)
{
	__be16 from, to = bpf_htons((__u16)window);

	if (!context || context->flags & TCP_SYN || window > 0xffff)
		return 0;
	if (likely(set_window_in_place(skb, context, to))) {
		context->window = window;
		return 1;
	}
	if (bpf_skb_load_bytes(skb, context->transport + TCP_WINDOW_AT, &from, sizeof(from)))
		return 0;
	if (bpf_l4_csum_replace(skb, context->transport + TCP_CHECKSUM_AT, from, to, sizeof(to)))
		return 0;
	bpf_skb_store_bytes(skb, context->transport + TCP_WINDOW_AT, &to, sizeof(to), 0);
	context->window = window;
	return 1;
}

#endif
