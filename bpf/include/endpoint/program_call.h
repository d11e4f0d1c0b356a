/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Calls blocks of one's own.
 *
 * A block is called by a tail call from a function of its own, call_block: what a
 * tail call replaces is that function's frame alone, so the block returns to the
 * chain, with its verdict, and the chain goes on where it was. Nothing has to be
 * saved and nothing parsed again from the beginning.
 *
 * What that asks of the callers: the frames above call_block must be smaller than
 * 256 bytes in all (the verifier says so if not: keep the context in a map), and
 * none of them may be the callback of bpf_loop, where tail calls are not defined.
 */
#ifndef BRAID_PROGRAM_CALL_H
#define BRAID_PROGRAM_CALL_H

#include "program_context.h"
#include "../transport.h"

enum program_slot {
	MAX_BLOCKS = 64,
	NO_BLOCK = -1, /* the slot is empty, or the kernel's limit of tail calls is reached */
};

/* What run_block returns besides enum result. */
enum program_result {
	NOT_SELECTED = 3, /* the block is a selector, and the packet does not match */
	NO_ANSWER = 4,    /* of ask_block: there is no block */
};

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, MAX_BLOCKS);
	__type(key, __u32);
	__type(value, __u32);
} custom_blocks SEC(".maps");

/* What a block must not change: its neighbours and other programs go by them. */
struct marks {
	__u32 mark;
	__u32 priority;
	__u32 queue_mapping;
	__u32 tc_index;
};

/*
 * Returns what the block in the slot returns. The compiler must not learn that
 * this function knows one value only.
 */
__noinline int call_block(struct __sk_buff *skb, __u32 slot)
{
	int verdict = NO_BLOCK;

	bpf_tail_call(skb, &custom_blocks, slot);
	barrier_var(verdict);
	return verdict;
}

static __always_inline void keep_marks(const struct __sk_buff *skb, struct marks *marks)
{
	marks->mark = skb->mark;
	marks->priority = skb->priority;
	marks->queue_mapping = skb->queue_mapping;
	marks->tc_index = skb->tc_index;
}

static __always_inline void restore_marks(struct __sk_buff *skb, const struct marks *marks)
{
	skb->mark = marks->mark;
	skb->priority = marks->priority;
	skb->queue_mapping = marks->queue_mapping;
	skb->tc_index = marks->tc_index;
}

/* Headers are where they were before the call, in the linear area; else 0. */
static __always_inline const void *same_header(const struct __sk_buff *skb, __u32 offset, __u32 size)
{
	const void *header;

	offset &= TRANSPORT_MASK;
	barrier_var(offset);
	header = (const void *)(unsigned long)skb->data + offset;
	return header + size > (const void *)(unsigned long)skb->data_end ? 0 : header;
}

/* The length of the packet from the IP header on, as that says; 0 where it cannot be read. */
static __always_inline __u32 length_again(const struct __sk_buff *skb, const struct context *context)
{
	__u32 field = context->network + (context->family == AF_INET ? 2 : 4);
	const __be16 *length = same_header(skb, field, sizeof(*length));

	if (!length)
		return 0;
	if (!*length)
		return skb->len - context->network; /* BIG TCP */
	return bpf_ntohs(*length) + (context->family == AF_INET ? 0 : sizeof(struct ipv6hdr));
}

/*
 * Reads anew what the block may have changed: lengths, flags, options. Headers that
 * do not add up any more count as having no options, so that nothing is edited.
 * Global, so that its frame is not above call_block's.
 */
__noinline int read_again(struct __sk_buff *skb, struct context *context)
{
	const struct tcphdr *tcp;
	__u32 header, headers, whole;

	if (!context)
		return 0;
	context->options.read = 0;
	context->options_length = 0;
	whole = length_again(skb, context);
	tcp = same_header(skb, context->transport, sizeof(*tcp));
	if (!tcp)
		return 0;
	header = (tcp->doff >> 4) * 4;
	headers = context->transport - context->network + header;
	if (header < sizeof(*tcp) || headers > whole)
		return 0;
	context->options_length = header - sizeof(*tcp);
	context->payload = whole - headers;
	context->flags = tcp->flags;
	context->sequence = bpf_ntohl(tcp->seq);
	context->acknowledgement = bpf_ntohl(tcp->ack_seq);
	context->window = bpf_ntohs(tcp->window);
	return 1;
}

static __always_inline int result_of(int verdict)
{
	switch (verdict) {
	case BRAID_ACTED:
		return ACTED;
	case BRAID_DROP:
		return DROPPED;
	case BRAID_NO_MATCH:
		return NOT_SELECTED;
	}
	return UNTOUCHED;
}

/* Where the next block finds its copies; the caller fills them. */
static __always_inline struct block_input *block_copies(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&block_context, &zero);
}

/* Runs the block in the slot: an enum result, NOT_SELECTED or NO_ANSWER. */
static __always_inline int ask_block(struct __sk_buff *skb, struct context *context, __u32 slot)
{
	struct marks marks;
	int verdict;

	keep_marks(skb, &marks);
	verdict = call_block(skb, slot);
	if (verdict == NO_BLOCK)
		return NO_ANSWER;
	restore_marks(skb, &marks);
	read_again(skb, context);
	return result_of(verdict);
}

/* The same for an action: where there is no block, there is nothing to do. */
static __always_inline int run_block(struct __sk_buff *skb, struct context *context, __u32 slot)
{
	int result = ask_block(skb, context, slot);

	return result == NO_ANSWER ? UNTOUCHED : result;
}

#endif
