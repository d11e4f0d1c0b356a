/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The chain of eMPTCP ("eMPTCP: A Framework to Fully Extend Multipath TCP", IEEE/ACM
 * ToN 2024, section IV), made again from its description: what Braid's chains are
 * measured beside, and nothing else. Each comment says which of the paper's
 * decisions a cost comes from. Where the paper leaves a choice, the cheaper one was
 * taken: a yardstick must not flatter what is measured with it.
 */
#ifndef BRAID_BASELINE_EMPTCP_H
#define BRAID_BASELINE_EMPTCP_H

#include "checksum.h"
#include "segment.h"

enum {
	/* The context of a chain (fig. 4) is words of the packet's metadata. One of the
	 * five holds the number of the action chain between the two halves. */
	MAX_BLOCKS = 4,
	CHAIN_WORD = 4,

	MAX_PROGRAMS = 32,
	MAX_CONDITIONS = 64,
	MAX_ACTION_CHAINS = 1024,

	SUBTYPE_JOIN = 1,
	SUBTYPE_DSS = 2,
	SUBTYPE_PRIO = 5,
};

/* Numbers of the programs in their arrays; 0 ends a chain. */
enum selector_number {
	SUBFLOW_SELECTOR = 1,
	IP_PAIR_SELECTOR,
	CONNECTION_SELECTOR,
	PACKET_TYPE_SELECTOR,
};

enum action_number {
	ACTION_ENTRY = 0,
	RATE_LIMIT_ACTION,
	SET_BACKUP_ACTION,
	GET_SUBFLOW_ACTION,
	RECORD_ACTION,
};

/* How a selector's result is combined with that of the ones before. */
enum combination {
	AND = 0,
	OR = 1,
};

/*
 * A selector chain, or an action chain. A block is a word (fig. 4): in its lowest
 * byte the number of the program, then the combination, then two bytes of
 * parameters.
 */
struct blocks {
	__u32 block[MAX_BLOCKS];
};

/* What does not fit into the two bytes of a parameter ("Address" in fig. 4). */
struct condition {
	__u32 token;
	__u32 types;
	__u32 action_chain;
};

struct ip_pair {
	__be32 local;
	__be32 remote;
};

struct event {
	struct tuple tuple;
	__u32 token;
};

/* One program array for each half; all blocks are reached through a variable index,
 * because the chain's order is data. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, MAX_PROGRAMS);
	__type(key, __u32);
	__type(value, __u32);
} selectors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, MAX_PROGRAMS);
	__type(key, __u32);
	__type(value, __u32);
} actions SEC(".maps");

/* One selector chain for the whole hook: an array, the cheapest map there is. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct blocks);
} selector_chain SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ACTION_CHAINS);
	__type(key, __u32);
	__type(value, struct blocks);
} action_chains SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CONDITIONS);
	__type(key, __u32);
	__type(value, struct condition);
} conditions SEC(".maps");

/* Each selector has the table of what it selects: to which action chain it leads. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct tuple);
	__type(value, __u32);
} subflow_chains SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct ip_pair);
	__type(value, __u32);
} pair_chains SEC(".maps");

/* The connection of a subflow; the agent of eMPTCP learns it from MP_CAPABLE and
 * MP_JOIN. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct tuple);
	__type(value, __u32);
} tokens SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct tuple);
	__type(value, struct metrics);
} metrics SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} events SEC(".maps");

static long (*const ringbuf_output)(void *ringbuf, void *data, __u64 size, __u64 flags) = (void *)130;

/* Takes the context of this block, and moves that of the next one to the front. */
static __always_inline __u32 take_block(struct __sk_buff *skb)
{
	__u32 block = skb->cb[0];

	skb->cb[0] = skb->cb[1];
	skb->cb[1] = skb->cb[2];
	skb->cb[2] = skb->cb[3];
	skb->cb[3] = 0;
	return block;
}

static __always_inline __u32 number_of(__u32 block)
{
	return block & 0xff;
}

static __always_inline __u32 combination_of(__u32 block)
{
	return block >> 8 & 0xff;
}

static __always_inline __u32 parameter_of(__u32 block)
{
	return block >> 16;
}

static __always_inline void set_blocks(struct __sk_buff *skb, const struct blocks *blocks)
{
	skb->cb[0] = blocks->block[0];
	skb->cb[1] = blocks->block[1];
	skb->cb[2] = blocks->block[2];
	skb->cb[3] = blocks->block[3];
}

/* The end of every action: the next one, if there is one. */
static __always_inline int next_action(struct __sk_buff *skb)
{
	__u32 number = number_of(skb->cb[0]);

	if (number)
		bpf_tail_call(skb, &actions, number);
	return TCX_NEXT;
}

/*
 * The end of every selector. A match of an OR selector selects the packet, that of
 * an AND selector does unless another selector follows; a miss of an AND selector
 * ends the chain.
 */
static __always_inline int selected(struct __sk_buff *skb, __u32 block, const __u32 *action_chain)
{
	__u32 number = number_of(skb->cb[0]);

	if (!action_chain && (combination_of(block) == AND || !number))
		return TCX_NEXT;
	if (number && (!action_chain || combination_of(block) == AND)) {
		bpf_tail_call(skb, &selectors, number);
		return TCX_NEXT;
	}
	if (!action_chain)
		return TCX_NEXT;
	skb->cb[CHAIN_WORD] = *action_chain;
	bpf_tail_call(skb, &actions, ACTION_ENTRY);
	return TCX_NEXT;
}

#endif
