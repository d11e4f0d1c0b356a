/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Further subflows for a guest, made by its host alone.
 *
 * The guest is told on its connections that its peer has further ports at the address
 * that it talks to (ADD_ADDR, RFC 8684, section 3.4.1). A guest that follows joins there;
 * the port is put back before anything else on the host sees the packet, and forth in
 * what comes back. The peer sees joins to the port that it listens at.
 *
 * All flows of a guest, and the keys of its connections, are in a map of its own: what it
 * forges, or how many connections it opens, is nobody else's concern.
 */
#ifndef BRAID_GUEST_H
#define BRAID_GUEST_H

#include "bare_ack.h"
#include "shared.h"
#include "suboption.h"
#include "tagged.h"

enum guest_limit {
	MAX_GUESTS = 1024,
	MAX_GUEST_FLOWS = 4096,     /* of one guest */
	ANNOUNCED_PORTS = 8,        /* a power of two */
	FIRST_ANNOUNCED_PORT = 64001,
	FIRST_ANNOUNCED_ID = 0xe1,
	ANNOUNCE_EVERY = 100000000, /* ns; twice as long after each one that brought nothing */
	MOST_DOUBLINGS = 8,
	UNHEARD_ANNOUNCEMENTS = 4,  /* so many without a join: the guest follows none */
};

enum {
	BPF_MAP_TYPE_HASH_OF_MAPS = 13,
	CAPABLE_NO_JOINS = 0x20, /* flag C: none to the address and port of the first subflow */
	LENGTH_CAPABLE_ACK = 20,
	LENGTH_CAPABLE_DATA = 22,
	LENGTH_CAPABLE_CHECKSUM = 24,
	LENGTH_ADD_IPV4_PORT = 18,
	LENGTH_ADD_IPV6_PORT = 30,
	SHORTEST_ANNOUNCEMENT = 28, /* bytes of options of an ACK with timestamps that announces */
};

/* What the policy wants for the connections of a guest. */
struct guest {
	__u64 bytes; /* in both directions together, before it is told; 0: they do not count */
	__u64 time;  /* ns; 0: it does not count. Neither: at once */
	__u32 joins; /* further subflows of each connection */
	__u32 once;  /* 1: what closes is not opened again */
};

enum flow_kind {
	FLOW_PLAIN = 0,   /* a connection that nothing is done for */
	FLOW_OPENING = 1, /* it asked for MPTCP */
	FLOW_FIRST = 2,   /* the first subflow of a connection whose keys are known */
	FLOW_JOIN = 3,    /* a further one, as its peer sees it */
	FLOW_GUEST = 4,   /* the same as the guest sees it, with an announced port */
	FLOW_TOKEN = 5,   /* no flow: the connection of a token */
};

struct flow_key {
	struct address guest;
	struct address peer;
	__be16 guest_port;
	__be16 peer_port;
	__u32 token; /* of FLOW_TOKEN alone, which has zeros before; else the VLANs, by tagged_networks */
};

struct flow {
	struct flow_key first; /* but of FLOW_FIRST: where the connection is */
	__u32 key[4];          /* of FLOW_FIRST: the peer's, and then the guest's */
	__u64 began;           /* ns */
	__u64 announced;       /* ns, when the guest was told last */
	__u32 sent;            /* the first sequence numbers of guest and peer */
	__u32 received;
	__u32 announcements;   /* how many there were */
	__u32 unechoed;        /* those whose echo may still come */
	__u32 joins;           /* that live */
	__u32 ever_joined;     /* those that ended among them */
	__u32 offered;         /* a bit for each port that was announced */
	__u32 used;            /* that a join uses */
	__u32 barred;          /* that the peer announces itself, or its id */
	__be16 other_port;     /* of a join: the peer's as the other side knows it */
	__u8 kind;
	__u8 ended;            /* 1: reset, or closed */
};

/* What happened, by guest, and in total at index 0. */
struct guest_counts {
	__u64 connections;   /* whose keys were learned */
	__u64 announcements;
	__u64 echoes;
	__u64 joins;         /* that came to announced ports */
	__u64 refused;       /* joins that would have been a flow that there is */
	__u64 unheard;       /* connections in a row that followed no announcement */
};

/* The map within a map does not describe its types by itself. */
SHARED(struct, flow_key);
SHARED(struct, flow);

struct guest_flows {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_GUEST_FLOWS);
	__type(key, struct flow_key);
	__type(value, struct flow);
};

/* By the host's ends of the guests' interfaces. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, MAX_GUESTS);
	__type(key, __u32); /* ifindex */
	__array(values, struct guest_flows);
} guest_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_GUESTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, struct guest);
} guests SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_GUESTS + 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex; 0 for all together */
	__type(value, struct guest_counts);
} guest_counts SEC(".maps");

#define COUNT(index, what)                                                        \
	do {                                                                      \
		__u32 each = (index), all = 0;                                    \
		struct guest_counts *of = bpf_map_lookup_elem(&guest_counts, &each); \
		if (of)                                                           \
			__sync_fetch_and_add(&of->what, 1);                       \
		of = bpf_map_lookup_elem(&guest_counts, &all);                    \
		if (of)                                                           \
			__sync_fetch_and_add(&of->what, 1);                       \
	} while (0)

static __always_inline void *flows_of(__u32 index)
{
	return bpf_map_lookup_elem(&guest_flows, &index);
}

static __always_inline void token_key(struct flow_key *key, __u32 token)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->token = token;
}

/* Writes one of TCP's ports, and the checksum that goes with it. */
static __always_inline void set_port(struct __sk_buff *skb, const struct packet *packet, __u32 at, __be16 from, __be16 to)
{
	__u32 transport = packet->options - sizeof(struct tcphdr);

	if (from == to || bpf_skb_store_bytes(skb, transport + at, &to, sizeof(to), 0))
		return;
	bpf_l4_csum_replace(skb, transport + TCP_CHECKSUM_AT, from, to, sizeof(to));
}

/* A join is over, once: its port can be announced again. */
static __always_inline void end_join(void *flows, struct flow *join)
{
	__u32 place = bpf_ntohs(join->other_port) - FIRST_ANNOUNCED_PORT;
	struct flow_key key = join->first;
	struct flow *first;

	if (join->ended)
		return;
	join->ended = 1;
	first = bpf_map_lookup_elem(flows, &key);
	if (!first || first->kind != FLOW_FIRST)
		return;
	if (first->joins)
		__sync_fetch_and_add(&first->joins, -1);
	if (place < ANNOUNCED_PORTS)
		__sync_fetch_and_and(&first->used, ~(1U << place));
}

#endif
