//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * from-relay: the ingress of the node's end of a relay's interface. Nothing comes further
 * than here: it goes to the client, or enters the node where the client's packets do.
 */
#include "proxy.h"

static __always_inline int to_the_client(struct __sk_buff *skb, const struct relay *relay)
{
	/* The frame as the client's gateway would make it. */
	if (bpf_skb_store_bytes(skb, 0, relay->ethernet + 6, 6, 0) || bpf_skb_store_bytes(skb, 6, relay->ethernet, 6, 0))
		return TC_ACT_SHOT;
	if (relay->has_peer)
		return bpf_redirect_peer(relay->client, 0);
	skb->tc_index = FROM_RELAY;
	return bpf_redirect(relay->client, 0);
}

static __always_inline int as_the_client(struct __sk_buff *skb, const struct relay *relay, const struct packet *packet)
{
	struct relayed_key key = {
		.client = packet->source, .server = packet->destination, .interface = relay->client,
		.client_port = packet->source_port, .server_port = packet->destination_port,
	};
	__u32 join = 1;

	if (is_first_syn(packet) && !bpf_map_lookup_elem(&relayed_flows, &key) &&
	    bpf_map_update_elem(&relayed_joins, &key, &join, BPF_ANY))
		return TC_ACT_SHOT;
	if (bpf_skb_store_bytes(skb, 0, relay->ethernet, sizeof(relay->ethernet), 0))
		return TC_ACT_SHOT;
	skb->tc_index = FROM_RELAY;
	return bpf_redirect(relay->client, BPF_F_INGRESS);
}

SEC("tc")
int from_relay(struct __sk_buff *skb)
{
	__u32 interface = skb->ifindex;
	struct relay *relay = bpf_map_lookup_elem(&relays, &interface);
	struct packet packet = {};
	struct relayed_key key;
	struct relayed *flow;

	/* Relays send TCP alone, and what else their namespaces say concerns nobody. */
	if (!relay || !parse_packet(skb, &packet))
		return TC_ACT_SHOT;
	key.client = packet.destination;
	key.server = packet.source;
	key.client_port = packet.destination_port;
	key.server_port = packet.source_port;
	key.interface = relay->client;
	flow = bpf_map_lookup_elem(&relayed_flows, &key);
	if (flow && flow->state != RELAYED_PASSES)
		return to_the_client(skb, relay);
	return as_the_client(skb, relay, &packet);
}

char _license[] SEC("license") = "Dual BSD/GPL";
