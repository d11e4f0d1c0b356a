//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The programs of the baseline of eMPTCP: two entries, four selectors and four actors. */
#include "emptcp.h"

/* The entry of every packet: the selector chain comes from a map and goes into the
 * packet's metadata; one array look-up and one tail call. */
SEC("tc")
int selector_entry(struct __sk_buff *skb)
{
	struct blocks *blocks;
	__u32 zero = 0;

	blocks = bpf_map_lookup_elem(&selector_chain, &zero);
	if (!blocks)
		return TCX_NEXT;
	set_blocks(skb, blocks);
	if (number_of(blocks->block[0]))
		bpf_tail_call(skb, &selectors, number_of(blocks->block[0]));
	return TCX_NEXT;
}

/* Between the halves: the action chain by its number; a hash look-up and a tail
 * call for each selected packet. */
SEC("tc")
int action_entry(struct __sk_buff *skb)
{
	__u32 number = skb->cb[CHAIN_WORD];
	struct blocks *blocks;

	blocks = bpf_map_lookup_elem(&action_chains, &number);
	if (!blocks)
		return TCX_NEXT;
	set_blocks(skb, blocks);
	return next_action(skb);
}

SEC("tc")
int subflow_selector(struct __sk_buff *skb)
{
	__u32 block = take_block(skb);
	struct headers headers;
	struct tuple tuple;

	if (!parse(skb, &headers))
		return selected(skb, block, 0);
	tuple_of(&headers, &tuple);
	return selected(skb, block, bpf_map_lookup_elem(&subflow_chains, &tuple));
}

SEC("tc")
int ip_pair_selector(struct __sk_buff *skb)
{
	__u32 block = take_block(skb);
	struct headers headers;
	struct ip_pair pair;

	if (!parse(skb, &headers))
		return selected(skb, block, 0);
	pair.local = headers.ip->saddr;
	pair.remote = headers.ip->daddr;
	return selected(skb, block, bpf_map_lookup_elem(&pair_chains, &pair));
}

/* The token is not in a packet of an established subflow: it is known by the
 * 4-tuple. One hash look-up for it, and one of an array for the parameter. */
SEC("tc")
int connection_selector(struct __sk_buff *skb)
{
	__u32 block = take_block(skb), parameter = parameter_of(block), *token;
	struct condition *condition;
	struct headers headers;
	struct tuple tuple;

	condition = bpf_map_lookup_elem(&conditions, &parameter);
	if (!condition || !parse(skb, &headers))
		return selected(skb, block, 0);
	tuple_of(&headers, &tuple);
	token = bpf_map_lookup_elem(&tokens, &tuple);
	return selected(skb, block, token && *token == condition->token ? &condition->action_chain : 0);
}

/* The types are bits of MPTCP's subtypes; one walk over the options. */
SEC("tc")
int packet_type_selector(struct __sk_buff *skb)
{
	__u32 block = take_block(skb), parameter = parameter_of(block);
	struct condition *condition;
	struct headers headers;
	__u8 *option;

	condition = bpf_map_lookup_elem(&conditions, &parameter);
	if (!condition || !parse(skb, &headers))
		return selected(skb, block, 0);
	option = find_option(&headers, OPTION_MPTCP, -1, 4);
	return selected(skb, block, option && condition->types >> (option[2] >> 4) & 1 ? &condition->action_chain : 0);
}

/* RFC 1624, in place, as there: the cheapest way, and wrong for a packet whose
 * checksum is still to be made. */
static __always_inline void replace_window(struct tcphdr *tcp, __be16 window)
{
	__u32 sum = (__u16)~tcp->check + (__u16)~tcp->window + window;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	tcp->check = ~sum;
	tcp->window = window;
}

/* The window is the parameter, in units of the subflow's scale. */
SEC("tc")
int rate_limit_action(struct __sk_buff *skb)
{
	__u32 block = take_block(skb);
	struct headers headers;

	if (parse(skb, &headers))
		replace_window(headers.tcp, bpf_htons(parameter_of(block)));
	return next_action(skb);
}

/* Appends MP_PRIO and a NOP to a segment without payload. */
static __always_inline void append_priority(struct __sk_buff *skb, const struct headers *headers, __u8 backup)
{
	__u32 ip = sizeof(struct ethhdr), tcp = ip + sizeof(struct iphdr);
	__u32 end = tcp + header_length(headers->tcp), add = 4;
	__u8 option[4] = {OPTION_MPTCP, 3, SUBTYPE_PRIO << 4 | backup, OPTION_NOP};
	__be16 old_total = headers->ip->tot_len, total = bpf_htons(bpf_ntohs(old_total) + add);
	__be16 old_word = *(__be16 *)&headers->tcp->doff, word;
	__u8 doff[2] = {headers->tcp->doff + 0x10, headers->tcp->flags};
	__be32 written;

	__builtin_memcpy(&word, doff, sizeof(word));
	__builtin_memcpy(&written, option, sizeof(written));
	if (bpf_skb_change_tail(skb, end + add, 0))
		return;
	bpf_skb_store_bytes(skb, end, option, sizeof(option), 0);
	bpf_skb_store_bytes(skb, tcp + 12, doff, sizeof(doff), 0);
	bpf_skb_store_bytes(skb, ip + 2, &total, sizeof(total), 0);
	bpf_l3_csum_replace(skb, ip + 10, old_total, total, sizeof(total));
	bpf_l4_csum_replace(skb, tcp + 16, 0, written, sizeof(written));
	bpf_l4_csum_replace(skb, tcp + 16, old_word, word, sizeof(word));
	bpf_l4_csum_replace(skb, tcp + 16, 0, bpf_htons(add), 0x10 | sizeof(__be16));
}

/* Only a segment without payload, with room and without MP_PRIO gets one. */
SEC("tc")
int set_backup_action(struct __sk_buff *skb)
{
	__u32 block = take_block(skb);
	struct headers headers;

	if (!parse(skb, &headers) || payload_of(&headers))
		return next_action(skb);
	if ((headers.tcp->flags & (TCP_SYN | TCP_FIN | TCP_RST)) || header_length(headers.tcp) > 56)
		return next_action(skb);
	if (!find_option(&headers, OPTION_MPTCP, SUBTYPE_PRIO, 3))
		append_priority(skb, &headers, parameter_of(block) & 1);
	return next_action(skb);
}

/* Tells of a new subflow; other packets than its SYN are known by their flags. */
SEC("tc")
int get_subflow_action(struct __sk_buff *skb)
{
	struct headers headers;
	struct event event;
	__u8 *option;

	take_block(skb);
	if (!parse(skb, &headers) || (headers.tcp->flags & (TCP_SYN | TCP_ACK)) != TCP_SYN)
		return next_action(skb);
	option = find_option(&headers, OPTION_MPTCP, SUBTYPE_JOIN, 12);
	if (!option)
		return next_action(skb);
	tuple_of(&headers, &event.tuple);
	__builtin_memcpy(&event.token, option + 4, sizeof(event.token));
	ringbuf_output(&events, &event, sizeof(event), 0);
	return next_action(skb);
}

/* Packets, bytes and what a round-trip time is made of: one hash look-up, and a
 * walk to the timestamps. */
SEC("tc")
int record_action(struct __sk_buff *skb)
{
	struct metrics *known, none = {};
	struct headers headers;
	struct tuple tuple;
	__be32 stamps[2];
	__u8 *option;

	take_block(skb);
	if (!parse(skb, &headers))
		return next_action(skb);
	tuple_of(&headers, &tuple);
	known = bpf_map_lookup_elem(&metrics, &tuple);
	if (!known) {
		bpf_map_update_elem(&metrics, &tuple, &none, BPF_NOEXIST);
		return next_action(skb);
	}
	__sync_fetch_and_add(&known->packets, 1);
	__sync_fetch_and_add(&known->bytes, payload_of(&headers));
	option = find_option(&headers, OPTION_TIMESTAMPS, -1, 10);
	if (option) {
		__builtin_memcpy(stamps, option + 2, sizeof(stamps));
		known->changed += known->timestamp != stamps[0];
		known->timestamp = stamps[0];
		known->echoed = stamps[1];
	}
	return next_action(skb);
}

char _license[] SEC("license") = "Dual BSD/GPL";
