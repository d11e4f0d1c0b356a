//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * straight: what a compiler could make of one chain: the packet parsed once, the
 * rules' parameters constants of the program, one look-up for the subflow's record,
 * and the blocks inline. What a chain that is compiled for each endpoint would cost;
 * constants that leave a block out are seen by the verifier, which removes it.
 */
#include "segment.h"

volatile const __u32 selector_count = 4;
volatile const __u32 action_count = 4;
volatile const __be32 local;
volatile const __be32 remote;
volatile const __be16 local_port;
volatile const __be16 remote_port;
volatile const __u32 token;
volatile const __u32 types;
volatile const __u16 window;

/* The subflow's record: the token and the metrics, found at once. */
struct record {
	struct metrics metrics;
	__u32 token;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct tuple);
	__type(value, struct record);
} records SEC(".maps");

static __always_inline int matches(const struct headers *headers, const struct tuple *tuple,
				   const struct record *record, const __u8 *mptcp)
{
	if (tuple->local != local || tuple->remote != remote ||
	    tuple->local_port != local_port || tuple->remote_port != remote_port)
		return 0;
	if (selector_count > 1 && headers->ip->daddr != remote)
		return 0;
	if (selector_count > 2 && record->token != token)
		return 0;
	return selector_count < 4 || (mptcp && types >> (mptcp[2] >> 4) & 1);
}

/* The same edit as eMPTCP's. */
static __always_inline void limit(struct tcphdr *tcp)
{
	__u32 sum = (__u16)~tcp->check + (__u16)~tcp->window + bpf_htons(window);

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	tcp->check = ~sum;
	tcp->window = bpf_htons(window);
}

static __always_inline void record_packet(struct metrics *known, const struct headers *headers)
{
	__u8 *option = find_option(headers, OPTION_TIMESTAMPS, -1, 10);
	__be32 stamps[2];

	__sync_fetch_and_add(&known->packets, 1);
	__sync_fetch_and_add(&known->bytes, payload_of(headers));
	if (!option)
		return;
	__builtin_memcpy(stamps, option + 2, sizeof(stamps));
	known->changed += known->timestamp != stamps[0];
	known->timestamp = stamps[0];
	known->echoed = stamps[1];
}

SEC("tc")
int straight(struct __sk_buff *skb)
{
	struct record *record;
	struct headers headers;
	struct tuple tuple;
	__u8 *mptcp = 0;

	if (!parse(skb, &headers))
		return TCX_NEXT;
	tuple_of(&headers, &tuple);
	record = bpf_map_lookup_elem(&records, &tuple);
	if (!record)
		return TCX_NEXT;
	if (selector_count > 3)
		mptcp = find_option(&headers, OPTION_MPTCP, -1, 4);
	if (!matches(&headers, &tuple, record, mptcp))
		return TCX_NEXT;
	limit(headers.tcp);
	/* A data segment has no room for MP_PRIO, and is no SYN: flags tell. */
	if (action_count > 1 && !payload_of(&headers))
		skb->mark |= 1;
	if (action_count > 2 && (headers.tcp->flags & TCP_SYN))
		skb->mark |= 2;
	if (action_count > 3)
		record_packet(&record->metrics, &headers);
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
