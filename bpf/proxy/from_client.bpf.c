//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * from-client: the ingress of the node's end of a client's interface, before Braid's other
 * programs there, which are to see what the relay sends and not what it gets.
 */
#include "proxy.h"
#include "mptcp.h"

static __always_inline void key_of(struct relayed_key *key, const struct packet *packet, __u32 interface)
{
	key->client = packet->source;
	key->server = packet->destination;
	key->client_port = packet->source_port;
	key->server_port = packet->destination_port;
	key->interface = interface;
}

static __always_inline int goes_on(__u32 outcome)
{
	__u64 *count = bpf_map_lookup_elem(&outcomes, &outcome);

	if (count)
		__sync_fetch_and_add(count, 1);
	return TCX_NEXT;
}

/* Whether its connections may be relayed at all. */
static __always_inline int is_wanted(struct __sk_buff *skb, const struct packet *packet)
{
	struct client_address from = { .address = packet->source, .interface = skb->ifindex };
	__u32 zero = 0, *stopped = bpf_map_lookup_elem(&draining, &zero);
	struct mptcp_option option;

	if (!stopped || *stopped || !bpf_map_lookup_elem(&client_addresses, &from))
		return 0;
	/* A client that speaks MPTCP needs nobody. */
	return !find_mptcp_option(skb, packet->options, packet->options_length, &option);
}

/* Whether the server answered without MPTCP lately. */
static __always_inline int is_plain(const struct packet *packet)
{
	struct peer to = { .address = packet->destination, .port = packet->destination_port };
	__u64 *until = bpf_map_lookup_elem(&plain_peers, &to);

	return until && *until >= bpf_ktime_get_ns();
}

static __always_inline int hand_over(struct __sk_buff *skb, const struct relayed_key *key)
{
	__u32 *so_far = bpf_map_lookup_elem(&handed, &key->interface), *read = bpf_map_lookup_elem(&handed_read, &key->interface);
	struct held *held;
	__u32 length;

	if (!so_far || !read || (__s32)(*so_far - *read) >= MAX_UNREAD)
		return 0;
	held = bpf_ringbuf_reserve(&held_segments, sizeof(*held), 0);
	if (!held)
		return 0;
	held->key = *key;
	length = size_within(skb->len, MAX_FIRST_FRAME);
	held->length = length;
	if (!length || bpf_skb_load_bytes(skb, 0, held->frame, length))
		held->length = 0;
	bpf_ringbuf_submit(held, 0);
	__sync_fetch_and_add(so_far, 1);
	return 1;
}

/* The first SYN of a connection. What cannot be held goes on untouched. */
__noinline int hold(struct __sk_buff *skb, struct packet *packet)
{
	struct relayed_key key;
	struct relayed flow = { .state = RELAYED_HELD };

	if (!packet || skb->len > MAX_FIRST_FRAME || !is_wanted(skb, packet))
		return TCX_NEXT;
	if (is_plain(packet))
		return goes_on(OUTCOME_PLAIN_PEER);
	key_of(&key, packet, skb->ifindex);
	if (bpf_map_lookup_elem(&relayed_joins, &key))
		return TC_ACT_SHOT; /* a subflow has this port: the client comes again */
	if (bpf_map_update_elem(&relayed_flows, &key, &flow, BPF_ANY))
		return goes_on(OUTCOME_NO_ROOM);
	if (hand_over(skb, &key))
		return TC_ACT_SHOT;
	bpf_map_delete_elem(&relayed_flows, &key);
	return goes_on(OUTCOME_NO_ROOM);
}

static __always_inline int passes_on(struct __sk_buff *skb)
{
	skb->tc_index = 0;
	return TCX_NEXT;
}

SEC("tc")
int from_client(struct __sk_buff *skb)
{
	__u32 interface = skb->ifindex;
	struct packet packet = {};
	struct relayed_key key;
	struct relayed *flow;
	struct client *client;

	if (skb->tc_index == FROM_RELAY)
		return passes_on(skb);
	client = bpf_map_lookup_elem(&clients, &interface);
	if (!client || !parse_packet(skb, &packet))
		return TCX_NEXT;
	key_of(&key, &packet, interface);
	flow = bpf_map_lookup_elem(&relayed_flows, &key);
	if (is_first_syn(&packet) && (!flow || flow->state == RELAYED_ENDED))
		return hold(skb, &packet);
	if (!flow || flow->state == RELAYED_PASSES)
		return TCX_NEXT;
	if (flow->state == RELAYED_HELD)
		return TC_ACT_SHOT;
	return to_relay(skb, client->relay);
}

char _license[] SEC("license") = "Dual BSD/GPL";
