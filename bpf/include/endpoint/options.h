/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The TCP options of a packet, read at most once a packet and only for those who
 * ask. Nearly all packets have them in the same order: timestamps, then DSS.
 */
#ifndef BRAID_OPTIONS_H
#define BRAID_OPTIONS_H

#include "parse.h"
#include "../mptcp.h"

enum {
	OPTION_WINDOW_SCALE = 3,
	OPTION_SACK = 5,
	OPTION_TIMESTAMPS = 8,
	LENGTH_TIMESTAMPS = 10,
	LENGTH_WINDOW_SCALE = 3,
	NOP_NOP_TIMESTAMPS = 0x0101080a,
	SHORTEST_MPTCP = 3,
	SHORTEST_DSS = 4,
	MOST_WINDOW_SCALE = 14,
};

enum {
	MOST_DSS = 28,
};

static __always_inline __u32 options_at(const struct context *context)
{
	return context->transport + sizeof(struct tcphdr);
}

/* From 1 to 40, else 0. The verifier of Linux 6.1 forgets it over a call: each use asks anew. */
static __always_inline __u32 option_bytes_of(__u32 length)
{
	return size_within(length, TCP_OPTIONS_MAX);
}

static __always_inline __u32 types_of_subtype(__u32 subtype, __u32 flags)
{
	switch (subtype) {
	case SUBTYPE_CAPABLE:
		return TYPE_MP_CAPABLE;
	case SUBTYPE_JOIN:
		return TYPE_MP_JOIN;
	case SUBTYPE_DSS:
		return TYPE_DSS;
	case SUBTYPE_ADD_ADDR:
		return flags & FLAG_ECHO ? TYPE_ADD_ADDR_ECHO : TYPE_ADD_ADDR;
	case SUBTYPE_REMOVE_ADDR:
		return TYPE_REMOVE_ADDR;
	case SUBTYPE_PRIO:
		return TYPE_MP_PRIO;
	case SUBTYPE_FAIL:
		return TYPE_MP_FAIL;
	case SUBTYPE_FAST_CLOSE:
		return TYPE_FAST_CLOSE;
	}
	return 0;
}

/* The types that the header alone tells. */
static __always_inline __u32 types_of_header(const struct context *context)
{
	__u32 types = 0;

	if (context->payload)
		types = TYPE_DATA;
	else if (is_pure_ack(context))
		types = TYPE_PURE_ACK;
	if (likely(!(context->flags & (TCP_SYN | TCP_FIN | TCP_RST))))
		return types;
	return types | (context->flags & TCP_SYN ? TYPE_SYN : 0) | (context->flags & TCP_FIN ? TYPE_FIN : 0) |
	       (context->flags & TCP_RST ? TYPE_RESET : 0);
}

/* The data acknowledgement's length in a DSS with these flags. */
static __always_inline __u32 data_ack_length(__u32 flags)
{
	if (!(flags & DSS_ACK))
		return 0;
	return flags & DSS_ACK_8_BYTES ? 8 : 4;
}

/* What a mapping takes: the data sequence, the subflow's sequence, the length. */
static __always_inline __u32 mapping_length(__u32 flags)
{
	if (!(flags & DSS_MAPPING))
		return 0;
	return flags & DSS_SEQUENCE_8_BYTES ? 14 : 10;
}

static __always_inline void note_dss(struct options_seen *seen, __u32 offset, __u32 length, __u32 flags)
{
	seen->types |= TYPE_DSS | (flags & DSS_ACK ? TYPE_DATA_ACK : 0);
	seen->dss = offset;
	seen->dss_length = length;
}

/* at: the mapping's first byte; 12 bytes can be read. */
static __always_inline void note_mapping(struct options_seen *seen, const __u8 *at, __u32 flags)
{
	if (flags & DSS_SEQUENCE_8_BYTES) {
		seen->data_sequence = (__u64)word_at(at) << 32 | word_at(at + 4);
		seen->data_sequence_bytes = 8;
		seen->mapped_at = word_at(at + 8);
	} else {
		seen->data_sequence = word_at(at);
		seen->data_sequence_bytes = 4;
		seen->mapped_at = word_at(at + 4);
	}
}

/*
 * Reads timestamps and a DSS behind them where they are. Returns 0 where anything
 * is unlike that.
 */
static __always_inline int read_usual_options(hook_frame *frame, struct context *context)
{
	__u32 length = context->options_length, at = (context->transport & TRANSPORT_MASK) + sizeof(struct tcphdr);
	struct options_seen *seen = &context->options;
	__u32 size, flags, ack;
	__u8 *option, *mapping;

	option = frame_begin(frame) + at;
	if (length < PADDED_TIMESTAMPS || (void *)(option + PADDED_TIMESTAMPS) > frame_end(frame))
		return 0;
	if (*(__u32 *)option != bpf_htonl(NOP_NOP_TIMESTAMPS))
		return 0;
	seen->timestamps = at + 2;
	seen->timestamp = bpf_ntohl(*(__u32 *)(option + 4));
	seen->echoed = bpf_ntohl(*(__u32 *)(option + 8));
	if (length == PADDED_TIMESTAMPS)
		return 1;
	option += PADDED_TIMESTAMPS;
	length -= PADDED_TIMESTAMPS;
	if ((void *)(option + SHORTEST_DSS) > frame_end(frame))
		return 0;
	size = option[1];
	flags = option[3];
	if (option[0] != OPTION_MPTCP || option[2] >> 4 != SUBTYPE_DSS || size > length || size + 3 < length)
		return 0;
	ack = data_ack_length(flags);
	if (size < SHORTEST_DSS + ack + mapping_length(flags))
		return 0;
	mapping = option + SHORTEST_DSS + ack;
	if (flags & DSS_MAPPING) {
		if ((void *)(mapping + 12) > frame_end(frame))
			return 0;
		note_mapping(seen, mapping, flags);
	}
	note_dss(seen, at + PADDED_TIMESTAMPS, size, flags);
	return 1;
}

/* A copy of the options, padded so that a read at any offset stays inside. */
struct options_copy {
	__u8 byte[TCP_OPTIONS_MAX + 32];
};

static __always_inline void note_mptcp(struct options_seen *seen, const __u8 *option, __u32 offset, __u32 length)
{
	__u32 subtype = option[2] >> 4;

	if (subtype == SUBTYPE_DSS) {
		__u32 flags = option[3], ack = data_ack_length(flags);

		if (length < SHORTEST_DSS + ack + mapping_length(flags))
			return;
		if (flags & DSS_MAPPING)
			note_mapping(seen, ack == 8 ? option + 12 : ack ? option + 8 : option + 4, flags);
		note_dss(seen, offset, length, flags);
		return;
	}
	seen->types |= types_of_subtype(subtype, option[2] & 0xf);
	if (subtype == SUBTYPE_JOIN || subtype == SUBTYPE_PRIO)
		seen->backup = option[2] & FLAG_BACKUP;
	if (subtype == SUBTYPE_JOIN && length == LENGTH_JOIN_SYN)
		seen->token = word_at(option + 4);
	if (!seen->mptcp) {
		seen->mptcp = offset;
		seen->mptcp_length = length;
	}
}

/* One option that lies whole within the list. */
__noinline int note_option(struct context *context, struct options_copy *copy, __u32 at)
{
	struct options_seen *seen;
	__u32 kind, length, offset;
	const __u8 *option;

	if (!context || !copy || at >= TCP_OPTIONS_MAX)
		return 0;
	seen = &context->options;
	option = &copy->byte[at];
	kind = option[0];
	length = option[1];
	offset = context->transport + sizeof(struct tcphdr) + at;
	if (kind == OPTION_TIMESTAMPS && length == LENGTH_TIMESTAMPS) {
		seen->timestamps = offset;
		seen->timestamp = word_at(option + 2);
		seen->echoed = word_at(option + 6);
	} else if (kind == OPTION_SACK) {
		seen->sack = offset;
	} else if (kind == OPTION_WINDOW_SCALE && length == LENGTH_WINDOW_SCALE) {
		seen->window_scale = 1 + (option[2] > MOST_WINDOW_SCALE ? MOST_WINDOW_SCALE : option[2]);
	} else if (kind == OPTION_MPTCP && length >= SHORTEST_MPTCP) {
		note_mptcp(seen, option, offset, length);
	}
	return 0;
}

/* Walks the whole list; one that does not add up ends there. */
__noinline int walk_options(hook_frame *frame, struct context *context)
{
	struct options_copy copy = {};
	__u32 length, at = 0;
	int i;

	if (!context)
		return 0;
	length = option_bytes_of(context->options_length);
	if (!length || load_bytes(frame, options_at(context), copy.byte, length))
		return 0;
	for (i = 0; i < TCP_OPTIONS_MAX; i++) {
		__u32 size;

		if (at >= length || at >= TCP_OPTIONS_MAX || copy.byte[at] == OPTION_END)
			return 1;
		size = size_of_option(&copy.byte[at]);
		if (!size || at + size > length)
			return 0;
		if (copy.byte[at] != OPTION_NOP)
			note_option(context, &copy, at);
		at += size;
	}
	return 1;
}

static __always_inline void forget_options(struct context *context)
{
	__builtin_memset(&context->options, 0, sizeof(context->options));
}

/* Where nothing was read since they were forgotten. */
static __always_inline void read_first_options(hook_frame *frame, struct context *context)
{
	if (context->options_length && !read_usual_options(frame, context)) {
		forget_options(context);
		walk_options(frame, context);
	}
	context->options.read = 1;
}

/* Reads the options unless they were. */
static __always_inline void read_options(hook_frame *frame, struct context *context)
{
	if (context->options.read)
		return;
	forget_options(context);
	read_first_options(frame, context);
}

#endif
