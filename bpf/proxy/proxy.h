/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What leads the plain TCP of a client (a guest, or a pod) through a relay on its node.
 *
 * Each client's relay has a network namespace of its own, which one pair of interfaces
 * joins to the node. Whatever the relay sends to the server enters the node at the
 * client's interface, as though the client had sent it, and the server's answers are
 * taken only where they would leave for the client: whatever judges, translates, routes
 * and counts the client's packets does the same with those of its relay. Nothing of the
 * node's own stack is configured.
 *
 * The client's SYN is held, and its bytes are handed to the proxy, which asks the server
 * first. Then the proxy puts it into the relay's namespace, where a socket answers, or
 * lets it go on its way untouched, where the true refusal comes from.
 */
#ifndef BRAID_PROXY_H
#define BRAID_PROXY_H

#include "packet.h"
#include "shared.h"

enum proxy_limit {
	MAX_CLIENTS = 1024,
	MAX_RELAYED = 65536,     /* connections of a node */
	MAX_PLAIN_PEERS = 16384,
	MAX_FIRST_FRAME = 160,   /* of a SYN without data */
	MAX_HANDED_OVER = 1 << 20, /* bytes of SYNs that the proxy has not read yet */
	MAX_UNREAD = 256,        /* SYNs of one client among these: whoever floods fills no more */
};

enum {
	/* In skb->tc_index: this one comes from a relay, and goes on. Neither CARRIES nor ARRIVAL. */
	FROM_RELAY = 0xb4b0,
};

enum relayed_state {
	RELAYED_HELD = 1,   /* the server is asked */
	RELAYED_OPEN = 2,   /* the relay has both ends */
	RELAYED_PASSES = 3, /* it is the client's own */
	RELAYED_ENDED = 4,  /* what comes late is still the relay's; a SYN begins anew */
};

/* What became of clients' connections, since the proxy began. The programs count those of the
 * first kinds, and the proxy itself the others. */
enum proxy_outcome {
	OUTCOME_PLAIN_PEER,  /* untouched: the server answered without MPTCP before */
	OUTCOME_NO_ROOM,     /* untouched: tables or the ring are full */
	OUTCOME_BUSY,        /* untouched: too many connections, or servers being asked */
	OUTCOME_NO_ANSWER,   /* untouched: the server refused, or did not answer in time */
	OUTCOME_RELAYED,
	OUTCOMES,
	OUTCOME_NOW = OUTCOMES, /* how many are relayed at the moment, or about to be */
	OUTCOME_RESET,          /* relayed first: too much waited for who did not read */
};

struct relayed_key {
	struct address client;
	struct address server;
	__be16 client_port;
	__be16 server_port;
	__u32 interface; /* the client's, on the node */
};

struct relayed {
	__u32 state;
};

/* A held SYN, as it came. */
struct held {
	struct relayed_key key;
	__u32 length;
	__u8 frame[MAX_FIRST_FRAME];
};

struct client {
	__u32 relay; /* the node's end of its relay's interface */
};

struct client_address {
	struct address address;
	__u32 interface;
};

struct relay {
	__u32 client;     /* the client's interface on the node */
	__u32 has_peer;   /* 1: its other end is in another namespace, and not a machine's */
	__u8 ethernet[12]; /* as the client's own frames begin */
};

struct peer {
	struct address address;
	__u32 port; /* in network byte order */
};

SHARED(enum, proxy_limit);
SHARED(enum, relayed_state);
SHARED(enum, proxy_outcome);
SHARED(struct, held);

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CLIENTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, struct client);
} clients SEC(".maps");

/* Addresses from which a client may be relayed: nobody is relayed under another's. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CLIENTS * 8);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct client_address);
	__type(value, __u32);
} client_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CLIENTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex of the node's end */
	__type(value, struct relay);
} relays SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_RELAYED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct relayed_key);
	__type(value, struct relayed);
} relayed_flows SEC(".maps");

/* Further subflows of the relays' connections, by ends as the server sees them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_RELAYED);
	__type(key, struct relayed_key);
	__type(value, __u32);
} relayed_joins SEC(".maps");

/* Who answered without MPTCP, and until when that counts (bpf_ktime_get_ns). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_PLAIN_PEERS);
	__type(key, struct peer);
	__type(value, __u64);
} plain_peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OUTCOME_RESET + 1); /* further ones go behind: an agent may be older or newer */
	__type(key, __u32); /* enum proxy_outcome */
	__type(value, __u64);
} outcomes SEC(".maps");

/* 1: no further connection is relayed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} draining SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, MAX_HANDED_OVER);
} held_segments SEC(".maps");

/* How many SYNs of each client were handed over so far. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CLIENTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, __u32);
} handed SEC(".maps");

/* How many of these the proxy has read, which it writes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CLIENTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, __u32);
} handed_read SEC(".maps");

static long (*const bpf_redirect_peer)(__u32 ifindex, __u64 flags) = (void *)155;

/* The locally administered address of each relay's own interface. */
static const __u8 relay_ethernet[6] = { 0x02, 0xb4, 0xa1, 0xd0, 0x00, 0x02 };

static __always_inline int to_relay(struct __sk_buff *skb, __u32 relay)
{
	if (bpf_skb_store_bytes(skb, 0, relay_ethernet, sizeof(relay_ethernet), 0))
		return TC_ACT_SHOT;
	return bpf_redirect(relay, 0);
}

#endif
