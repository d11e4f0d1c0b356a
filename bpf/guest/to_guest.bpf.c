//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * to-guest: the egress of the host's end of a guest's interface, behind everything else
 * there. It gives answers to joins, and errors about them, the port that the guest joined,
 * and tells the guest of ports, on connections that last and that have too few subflows.
 *
 * No packet has room for an announcement, and one without it is not to be lost: a clone
 * goes its way as it was, and the packet becomes a pure ACK that announces.
 */
#include "guest.h"
#include "hmac.h"
#include "quoted.h"

static __always_inline void key_of(struct flow_key *key, struct __sk_buff *skb, const struct packet *packet)
{
	key->guest = packet->destination;
	key->peer = packet->source;
	key->guest_port = packet->destination_port;
	key->peer_port = packet->source_port;
	key->token = networks_of(skb, packet->network);
}

/*
 * Writes the announced port into what an ICMP error quotes of a join: a router quotes the
 * real port, and the guest knows no such socket.
 */
static __noinline int translate_quoted(struct __sk_buff *skb, void *flows)
{
	struct quoted quoted = {};
	struct flow_key key = {};
	__be16 port, protocol;
	struct flow *join;
	__u32 network;

	protocol = behind_tags(skb, &network);
	if (!find_quoted_at(skb, protocol, network, &quoted))
		return 0;
	key.guest = quoted.source;
	key.peer = quoted.destination;
	key.guest_port = quoted.source_port;
	key.peer_port = quoted.destination_port;
	key.token = networks_of(skb, network);
	join = bpf_map_lookup_elem(flows, &key);
	if (!join || join->kind != FLOW_JOIN)
		return 0;
	port = join->other_port;
	if (port != key.peer_port && !bpf_skb_store_bytes(skb, quoted.ports + 2, &port, sizeof(port), 0))
		bpf_l4_csum_replace(skb, quoted.checksum, key.peer_port, port, sizeof(port));
	return 1;
}

static __always_inline __u32 bit_of(__u32 place)
{
	return place < ANNOUNCED_PORTS ? 1U << place : 0;
}

/* What the peer itself announces is left to it: the bits of its id and its port. */
__noinline int barred_by(struct __sk_buff *skb, struct packet *packet)
{
	struct suboption option = {};
	__u32 bits;

	if (!packet || !find_suboption(skb, packet->options, packet->options_length, 1 << SUBTYPE_ADD_ADDR, &option))
		return 0;
	if (option.byte[2] & FLAG_ECHO)
		return 0;
	bits = bit_of((__u32)option.byte[ID_AT] - FIRST_ANNOUNCED_ID);
	if (option.length == LENGTH_ADD_IPV4_PORT)
		bits |= bit_of((word_at(option.byte + 8) >> 16) - FIRST_ANNOUNCED_PORT);
	if (option.length == LENGTH_ADD_IPV6_PORT)
		bits |= bit_of((word_at(option.byte + 20) >> 16) - FIRST_ANNOUNCED_PORT);
	return bits;
}

/* The peer's answer to a connection that begins: one that takes no joins here gets none. */
__noinline int forbids_joins(struct __sk_buff *skb, struct packet *packet)
{
	struct suboption option = {};

	if (!packet || !is_syn_ack(packet))
		return 0;
	return find_suboption(skb, packet->options, packet->options_length, 1 << SUBTYPE_CAPABLE, &option) &&
	       option.byte[3] & CAPABLE_NO_JOINS;
}

static __always_inline int lasts(const struct guest *guest, const struct flow *flow, const struct packet *packet,
				 __u64 now)
{
	__u32 moved = bpf_ntohl(packet->acknowledgement) - flow->sent + bpf_ntohl(packet->sequence) - flow->received;

	if (flow->announcements || (!guest->bytes && !guest->time))
		return 1;
	return (guest->bytes && moved >= guest->bytes) || (guest->time && now - flow->began >= guest->time);
}

/* Whether the guest is to be told now, by this packet. */
static __always_inline int is_due(const struct guest *guest, struct flow *flow, const struct packet *packet)
{
	__u32 joins = guest->once ? flow->ever_joined : flow->joins, fruitless = flow->announcements - joins;
	__u64 now, before = flow->announced;

	if (likely(joins >= guest->joins) || packet->flags & (TCP_FIN | TCP_RST))
		return 0;
	now = bpf_ktime_get_coarse_ns();
	if (fruitless > MOST_DOUBLINGS)
		fruitless = flow->announcements > joins ? MOST_DOUBLINGS : 0;
	if (now - before < (__u64)ANNOUNCE_EVERY << fruitless || !lasts(guest, flow, packet, now))
		return 0;
	return __sync_val_compare_and_swap(&flow->announced, before, now) == before;
}

/* The next port that may be announced; ANNOUNCED_PORTS for none. */
static __always_inline __u32 next_place(const struct flow *flow, __be16 real_port)
{
	__u32 taken = flow->used | flow->barred | bit_of((__u32)bpf_ntohs(real_port) - FIRST_ANNOUNCED_PORT);
	__u32 i, place = 0;

#pragma clang loop unroll(full)
	for (i = 0; i < ANNOUNCED_PORTS; i++) {
		place = (flow->announcements + i) & (ANNOUNCED_PORTS - 1);
		if (!(taken >> place & 1))
			return place;
	}
	return ANNOUNCED_PORTS;
}

/* ADD_ADDR of the peer's address and a port; the peer's key comes first. */
__noinline int sign(struct packet *packet, struct flow *flow, __u32 place, struct announcement *announcement)
{
	struct hmac hmac = {};
	__u8 *option;
	__be16 port;
	__u32 at;

	if (!packet || !flow || !announcement)
		return 0;
	option = announcement->option;
	port = bpf_htons(FIRST_ANNOUNCED_PORT + place);
	option[0] = OPTION_MPTCP;
	option[2] = SUBTYPE_ADD_ADDR << 4;
	option[ID_AT] = FIRST_ANNOUNCED_ID + place;
	if (packet->family == AF_INET) {
		__builtin_memcpy(option + 4, &packet->source.word[3], 4);
		__builtin_memcpy(option + 8, &port, sizeof(port));
		__builtin_memcpy(hmac.message, option + ID_AT, 7);
		hmac.length = 7;
	} else {
		__builtin_memcpy(option + 4, &packet->source, 16);
		__builtin_memcpy(option + 20, &port, sizeof(port));
		__builtin_memcpy(hmac.message, option + ID_AT, 19);
		hmac.length = 19;
	}
	__builtin_memcpy(hmac.key, flow->key, sizeof(hmac.key));
	if (!hmac_sha256(&hmac))
		return 0;
	hmac.result[0] = bpf_htonl(hmac.result[0]);
	hmac.result[1] = bpf_htonl(hmac.result[1]);
	if (packet->family == AF_INET)
		__builtin_memcpy(option + 10, hmac.result, sizeof(hmac.result));
	else
		__builtin_memcpy(option + 22, hmac.result, sizeof(hmac.result));
	at = packet->family == AF_INET ? LENGTH_ADD_IPV4_PORT : LENGTH_ADD_IPV6_PORT;
	option[1] = at;
	/* NOPs up to a whole word. */
	if (packet->family == AF_INET)
		option[18] = option[19] = OPTION_NOP;
	else
		option[30] = option[31] = OPTION_NOP;
	announcement->length = at;
	return 1;
}

static __always_inline void note(struct flow *flow, __u32 place, __u32 index)
{
	struct guest_counts *counts;

	__sync_fetch_and_or(&flow->offered, 1U << place);
	__sync_fetch_and_add(&flow->announcements, 1);
	__sync_fetch_and_add(&flow->unechoed, 1);
	COUNT(index, announcements);
	if (flow->announcements != UNHEARD_ANNOUNCEMENTS || flow->ever_joined)
		return;
	counts = bpf_map_lookup_elem(&guest_counts, &index);
	if (counts)
		__sync_fetch_and_add(&counts->unheard, 1);
}

/* Sends a clone on, and makes the packet an announcement. */
static __always_inline int announce(struct __sk_buff *skb, struct packet *packet, struct flow *flow)
{
	__u32 place = next_place(flow, packet->source_port), before = skb->tc_index;
	struct carried carried = {};

	if (place >= ANNOUNCED_PORTS || !sign(packet, flow, place, &carried.announcement))
		return TCX_NEXT;
	note(flow, place, skb->ifindex);
	/* Behind what the clone carries. */
	carried.sequence = bpf_htonl(bpf_ntohl(packet->sequence) + skb->len - packet->options - packet->options_length);
	skb->tc_index = CARRIES;
	if (bpf_clone_redirect(skb, skb->ifindex, 0)) {
		skb->tc_index = before;
		return TCX_NEXT;
	}
	skb->tc_index = before;
	return become_ack(skb, packet, &carried) ? TCX_NEXT : TC_ACT_SHOT;
}

static __always_inline int of_connection(struct __sk_buff *skb, struct packet *packet, struct flow *flow)
{
	__u32 index = skb->ifindex;
	struct guest *guest = bpf_map_lookup_elem(&guests, &index);

	if (!guest || flow->ended)
		return TCX_NEXT;
	if (unlikely(packet->options_length >= SHORTEST_ANNOUNCEMENT) && is_bare_ack(skb, packet))
		flow->barred |= barred_by(skb, packet);
	return is_due(guest, flow, packet) ? announce(skb, packet, flow) : TCX_NEXT;
}

SEC("tc")
int to_guest(struct __sk_buff *skb)
{
	void *flows = flows_of(skb->ifindex);
	struct packet packet;
	struct flow_key key;
	struct flow *flow;

	if (!flows)
		return TCX_NEXT;
	if (unlikely(skb->tc_index == CARRIES)) {
		skb->tc_index = 0;
		return TCX_NEXT;
	}
	if (!parse_any_packet(skb, &packet)) {
		translate_quoted(skb, flows);
		return TCX_NEXT;
	}
	key_of(&key, skb, &packet);
	flow = bpf_map_lookup_elem(flows, &key);
	if (!flow)
		return TCX_NEXT;
	if (unlikely(packet.flags & (TCP_FIN | TCP_RST))) {
		if (flow->kind == FLOW_JOIN)
			end_join(flows, flow);
		flow->ended = 1;
	}
	if (flow->kind == FLOW_FIRST)
		return of_connection(skb, &packet, flow);
	if (unlikely(flow->kind == FLOW_OPENING) && forbids_joins(skb, &packet))
		flow->kind = FLOW_PLAIN;
	if (flow->kind == FLOW_JOIN)
		set_port(skb, &packet, 0, packet.source_port, flow->other_port);
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
