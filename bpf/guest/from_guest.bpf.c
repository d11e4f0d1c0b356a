//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * from-guest: the ingress of the host's end of a guest's interface, before anything
 * else there. It learns connections and their keys, puts the real port into the guest's
 * joins, and keeps the guest's echoes from a peer that announced nothing.
 */
#include "guest.h"

/* For Go. */
SHARED(enum, guest_limit);

static const struct option_nops {
	__u8 byte[OPTION_BYTES];
} nops = { {
	1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
} };

static __always_inline void key_of(struct flow_key *key, struct __sk_buff *skb, const struct packet *packet)
{
	key->guest = packet->source;
	key->peer = packet->destination;
	key->guest_port = packet->source_port;
	key->peer_port = packet->destination_port;
	key->token = networks_of(skb, packet->network);
}

/*
 * A connection that begins. One that was there with these ports is over, or will be reset.
 * Global, as those below: the stack of all that are called at once is small.
 */
__noinline int begin(struct __sk_buff *skb, struct packet *packet, __u32 kind)
{
	struct flow flow = { .kind = kind }, *before;
	struct flow_key key;
	void *flows;

	if (!packet)
		return TCX_NEXT;
	flows = flows_of(skb->ifindex);
	if (!flows)
		return TCX_NEXT;
	key_of(&key, skb, packet);
	before = bpf_map_lookup_elem(flows, &key);
	if (before && before->kind == FLOW_JOIN)
		end_join(flows, before);
	bpf_map_update_elem(flows, &key, &flow, BPF_ANY);
	return TCX_NEXT;
}

/* The connection of a join. */
static __always_inline struct flow *joined(void *flows, __u32 token, struct flow_key *at)
{
	struct flow *found;

	token_key(at, token);
	found = token ? bpf_map_lookup_elem(flows, at) : 0;
	if (!found || found->kind != FLOW_TOKEN)
		return 0;
	*at = found->first;
	found = bpf_map_lookup_elem(flows, at);
	return found && found->kind == FLOW_FIRST ? found : 0;
}

/* The bit of the announced port that the guest joins; 0 where the port is a real one. */
static __always_inline __u32 translated(const struct flow *first, const struct flow_key *at, const struct packet *packet)
{
	__u32 place = bpf_ntohs(packet->destination_port) - FIRST_ANNOUNCED_PORT;
	const __u64 *one = (const void *)&at->peer, *other = (const void *)&packet->destination;

	if (place >= ANNOUNCED_PORTS || one[0] != other[0] || one[1] != other[1])
		return 0;
	return first->offered & ~first->barred & 1U << place;
}

static __always_inline void hears(__u32 index)
{
	struct guest_counts *counts = bpf_map_lookup_elem(&guest_counts, &index);

	if (counts)
		counts->unheard = 0;
}

static __always_inline void count_join(void *flows, struct flow *first, const struct flow_key *key, struct flow *join,
				      __u32 bit, __u32 index)
{
	bpf_map_update_elem(flows, key, join, BPF_ANY);
	__sync_fetch_and_add(&first->joins, 1);
	__sync_fetch_and_add(&first->ever_joined, 1);
	if (!bit)
		return;
	__sync_fetch_and_or(&first->used, bit);
	COUNT(index, joins);
	hears(index);
}

/* The SYN of a join; 0 where the token is unknown. */
__noinline int join(struct __sk_buff *skb, struct packet *packet, __u32 token)
{
	struct flow flow = { .kind = FLOW_JOIN }, *first, *before;
	struct flow_key key;
	void *flows;
	__u32 bit;

	if (!packet)
		return TCX_NEXT;
	flows = flows_of(skb->ifindex);
	if (!flows)
		return TCX_NEXT;
	first = joined(flows, token, &flow.first);
	if (!first)
		return 0;
	bit = translated(first, &flow.first, packet);
	key_of(&key, skb, packet);
	if (bit)
		key.peer_port = flow.first.peer_port;
	flow.other_port = packet->destination_port;
	before = bpf_map_lookup_elem(flows, &key);
	if (before && !before->ended && before->kind == FLOW_JOIN && before->other_port == flow.other_port)
		goto again;
	if (before && !before->ended && bit) {
		COUNT(skb->ifindex, refused);
		return TC_ACT_SHOT;
	}
	count_join(flows, first, &key, &flow, bit, skb->ifindex);
	if (!bit)
		return TCX_NEXT;
	flow.kind = FLOW_GUEST;
	flow.other_port = key.peer_port;
	key.peer_port = packet->destination_port;
	bpf_map_update_elem(flows, &key, &flow, BPF_ANY);
again:
	if (bit)
		set_port(skb, packet, 2, packet->destination_port, flow.first.peer_port);
	return TCX_NEXT;
}

/* Any SYN of the guest. */
__noinline int synchronize(struct __sk_buff *skb, struct packet *packet)
{
	struct suboption option = {};
	int verdict = 0;

	if (!packet)
		return TCX_NEXT;
	find_suboption(skb, packet->options, packet->options_length, 1 << SUBTYPE_CAPABLE | 1 << SUBTYPE_JOIN, &option);
	if (option.byte[2] >> 4 == SUBTYPE_JOIN && option.length == LENGTH_JOIN_SYN)
		verdict = join(skb, packet, word_at(option.byte + 4));
	if (verdict)
		return verdict;
	if (option.byte[2] == VERSION_1 && option.length == LENGTH_CAPABLE_SYN)
		return begin(skb, packet, FLOW_OPENING);
	return begin(skb, packet, FLOW_PLAIN);
}

static __always_inline int has_keys(const struct suboption *option)
{
	return option->byte[2] == VERSION_1 && (option->length == LENGTH_CAPABLE_ACK || option->length == LENGTH_CAPABLE_DATA ||
						option->length == LENGTH_CAPABLE_CHECKSUM);
}

/* Keeps a connection and its keys. */
__noinline int remember(struct __sk_buff *skb, struct packet *packet, struct suboption *option, __u32 token)
{
	struct flow flow = { .kind = FLOW_FIRST };
	struct flow_key key;
	void *flows;

	if (!packet || !option)
		return TCX_NEXT;
	flows = flows_of(skb->ifindex);
	if (!flows)
		return TCX_NEXT;
	key_of(&key, skb, packet);
	flow.began = bpf_ktime_get_coarse_ns();
	flow.sent = bpf_ntohl(packet->sequence);
	flow.received = bpf_ntohl(packet->acknowledgement);
	flow.key[0] = word_at(option->byte + 12);
	flow.key[1] = word_at(option->byte + 16);
	flow.key[2] = word_at(option->byte + 4);
	flow.key[3] = word_at(option->byte + 8);
	bpf_map_update_elem(flows, &key, &flow, BPF_ANY);
	__builtin_memset(&flow, 0, sizeof(flow));
	flow.kind = FLOW_TOKEN;
	flow.first = key;
	token_key(&key, token);
	if (token)
		bpf_map_update_elem(flows, &key, &flow, BPF_ANY);
	COUNT(skb->ifindex, connections);
	return TCX_NEXT;
}

/* What follows the SYN: the third ACK, or the first data, has both keys, or MPTCP was refused. */
__noinline int learn(struct __sk_buff *skb, struct packet *packet)
{
	struct suboption option = {};

	if (!packet)
		return TCX_NEXT;
	if (!find_suboption(skb, packet->options, packet->options_length, 1 << SUBTYPE_CAPABLE, &option) || !has_keys(&option))
		return begin(skb, packet, FLOW_PLAIN);
	return remember(skb, packet, &option, sha256_first_word(word_at(option.byte + 12), word_at(option.byte + 16)));
}

/* Writes NOPs over the option; what is behind it in the buffers is zeros in both. */
static __always_inline void blank(struct __sk_buff *skb, const struct packet *packet, const struct suboption *option)
{
	__u32 transport = packet->options - sizeof(struct tcphdr), length = size_within(option->length, OPTION_BYTES);
	struct suboption after = {};
	__s64 difference;

	if (!length || bpf_skb_store_bytes(skb, option->offset, &nops, length, 0))
		return;
	length = size_within(option->length, OPTION_BYTES);
	if (length)
		bpf_skb_load_bytes(skb, option->offset, after.byte, length);
	difference = bpf_csum_diff(option->byte, OPTION_BYTES, after.byte, OPTION_BYTES, 0);
	/* What begins at an odd byte counts with its bytes swapped. */
	if ((option->offset - transport) & 1)
		difference = (__u32)difference >> 8 | (__u32)difference << 24;
	bpf_l4_csum_replace(skb, transport + TCP_CHECKSUM_AT, 0, (__u32)difference, 0);
}

/* Takes the echo of what was announced here out of a pure ACK; says whether there was one. */
__noinline int swallow_echo(struct __sk_buff *skb, struct packet *packet)
{
	struct suboption option = {};

	if (!packet || !find_suboption(skb, packet->options, packet->options_length, 1 << SUBTYPE_ADD_ADDR, &option))
		return 0;
	if (!(option.byte[2] & FLAG_ECHO) || (__u8)(option.byte[ID_AT] - FIRST_ANNOUNCED_ID) >= ANNOUNCED_PORTS)
		return 0;
	blank(skb, packet, &option);
	COUNT(skb->ifindex, echoes);
	return 1;
}

/* A packet of a connection whose keys are known. */
static __always_inline void of_connection(struct __sk_buff *skb, struct packet *packet, struct flow *first)
{
	if (likely(!first || first->kind != FLOW_FIRST || !first->unechoed) || !is_bare_ack(skb, packet))
		return;
	if (swallow_echo(skb, packet))
		__sync_fetch_and_add(&first->unechoed, -1);
}

/* A packet of a join. */
static __always_inline void of_join(struct __sk_buff *skb, void *flows, struct packet *packet, struct flow *join,
				    struct flow_key *key)
{
	__be16 real = join->kind == FLOW_GUEST ? join->other_port : packet->destination_port;
	struct flow *as_seen;

	if (unlikely(packet->flags & (TCP_FIN | TCP_RST))) {
		key->peer_port = real;
		as_seen = bpf_map_lookup_elem(flows, key);
		if (as_seen && as_seen->kind == FLOW_JOIN)
			end_join(flows, as_seen);
	}
	if (is_bare_ack(skb, packet)) {
		*key = join->first;
		of_connection(skb, packet, bpf_map_lookup_elem(flows, key));
	}
	set_port(skb, packet, 2, packet->destination_port, real);
}

SEC("tc")
int from_guest(struct __sk_buff *skb)
{
	void *flows = flows_of(skb->ifindex);
	struct packet packet;
	struct flow_key key;
	struct flow *flow;

	if (!flows || !parse_any_packet(skb, &packet))
		return TCX_NEXT;
	if (unlikely(packet.flags & TCP_SYN))
		return is_first_syn(&packet) ? synchronize(skb, &packet) : TCX_NEXT;
	key_of(&key, skb, &packet);
	flow = bpf_map_lookup_elem(flows, &key);
	if (!flow)
		return TCX_NEXT;
	if (unlikely(flow->kind == FLOW_OPENING))
		return learn(skb, &packet);
	if (flow->kind == FLOW_JOIN || flow->kind == FLOW_GUEST) {
		of_join(skb, flows, &packet, flow, &key);
		return TCX_NEXT;
	}
	if (unlikely(packet.flags & (TCP_FIN | TCP_RST)))
		flow->ended = 1;
	if (flow->kind == FLOW_FIRST)
		of_connection(skb, &packet, flow);
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
