/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Announcements that wait, and the packets that bring them in the end. */
#ifndef BRAID_ANNOUNCEMENTS_H
#define BRAID_ANNOUNCEMENTS_H

#include "bare_ack.h"
#include "kernel_structs.h"
#include "suboption.h"

enum hold_limit {
	MAX_INTERFACES = 4096,
	MAX_CARRIED = 4096,
	PLACES = 8,           /* for announcements of a connection; a power of two */
	TOLD_BYTES = 65536,   /* more than each interface once */
	MAX_ANSWERS = 1000,   /* to a join that is kept back, before one is let go */
	LET_GO_EVERY = 10000000, /* ns; a peer drops what comes while it has not handled the one before */
	PLACE_EVERY = 250000000, /* ns, from one place to the next where no agent says how many there are */
	TURN_EVERY = 62500000,   /* ns, from one connection of a tenant that rests to the next */
	TURNS_AT_ONCE = 64,      /* of those */
	MOVES = 65536,           /* bytes: who moved as many does not rest */
	THERE_ALREADY = -17,     /* EEXIST */
};

enum {
	SAYS_LITTLE = 16, /* segments that it sent */
	LENGTH_ADD_IPV4 = 16, /* each with its HMAC */
	LENGTH_ADD_IPV6_PORT = 30,
	LONGEST_ACK = sizeof(struct ethhdr) + 60 + 60,
};

/*
 * What a connection of a pod waits for; whichever comes first. Neither: for nothing. With AGENT_OPENS
 * it waits for the agent, and nothing that is announced is held.
 */
struct wait {
	__u64 bytes; /* in both directions together; 0: they do not count */
	__u64 time;  /* ns; 0: it does not count */
	__u32 room;  /* that of its tenant: see rooms */
	__u32 tells; /* of what the agent is to be told, once, and how the pod is: enum tells */
};

/* Of what the agent of a pod is told to whose events it does not listen. */
enum tells {
	TELLS_LASTING = 1 << 0, /* a connection that the pod began has lasted */
	TELLS_ANSWER = 1 << 1,  /* an MPTCP socket of it listens: a peer's SYN was answered */
	TELLS_SERVED = 1 << 2,  /* a connection that a peer began has lasted, and nothing is announced on it */
	TELLS_ARRIVAL = 1 << 3, /* a peer's SYN was answered, again: see whether that one lasts */
	TELLS_BEGUN = 1 << 4,   /* the pod began a connection: see whether that one lasts */
	TELLS_JOIN = 1 << 5,    /* a peer joins a connection, and nobody listens */

	AGENT_OPENS = 1 << 8,   /* the agent opens the subflows; not to be told, as what follows */
	REFUSES_JOINS = 1 << 9, /* nobody listens to the pod's events: its kernel would refuse joins */
	MAY_BE_JOINED = 1 << 10, /* its connections may get further subflows */
};

/* A peer may join a connection that it began as soon as that lasts: somebody is to listen by then. */
enum {
	SERVED_BYTES_PART = 4, /* of those that a connection waits for */
	SERVED_TIME_PART = 2,
};

/* What the agent is told: one of these, of one interface. */
struct told {
	__u32 index;
	__u32 what;
	__u32 token; /* of the connection that has lasted; 0 where none has */
};

/*
 * For how many more connections of a tenant there is room on the node's paths: see
 * agent/crowd.
 */
struct room {
	__u64 until; /* ns; from then on a place comes by and by */
	__s32 left;
	__u32 pad;
};

/* Those of a connection, kept with the socket of the subflow that brought them. */
struct held {
	__u64 began;   /* ns, when it was established; from then on when the last one was let go */
	__u32 lasts;   /* 1: the connection waits no more */
	__u32 waiting; /* a bit for each place */
	struct announcement announcement[PLACES]; /* by the lowest bits of their ids */
};

struct ends {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
};

/* As the kernel writes them into most acknowledgements of MPTCP. */
struct usual_options {
	__be32 timestamps[PADDED_TIMESTAMPS / 4];
	__u8 kind;
	__u8 length;
	__u8 subtype; /* the upper half */
	__u8 flags;
};

static void *(*const bpf_sk_fullsock)(void *sk) = (void *)95;

/* By the host's ends of the pods' interfaces. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_INTERFACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, struct wait);
} waits SEC(".maps");

/* By the first interface of a tenant; one that has no entry has no bound. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_INTERFACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, struct room);
} rooms SEC(".maps");

/* ns, until when connections of a tenant that rest have taken their turns; keys as of rooms. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_INTERFACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, __u64);
} turns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct held);
} held_announcements SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_CARRIED);
	__type(key, struct ends);
	__type(value, struct carried);
} carried_announcements SEC(".maps");

/* The answers to joins that were kept back. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} kept_back SEC(".maps");

/* What the agent is told, of interfaces. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, TOLD_BYTES);
} told_interfaces SEC(".maps");

static __always_inline void ends_of(struct ends *ends, const struct packet *packet)
{
	ends->source = packet->source;
	ends->destination = packet->destination;
	ends->source_port = packet->source_port;
	ends->destination_port = packet->destination_port;
}

static __always_inline __u32 lowest(__u32 bits)
{
	__u32 place;

#pragma clang loop unroll(full)
	for (place = 0; place < PLACES - 1; place++)
		if (bits >> place & 1)
			break;
	return place;
}

/* Finds an ADD_ADDR that is no echo; the kernel writes one ADD_ADDR into a packet. */
static __always_inline int find_announcement(struct __sk_buff *skb, const struct packet *packet,
					     struct announcement *announcement)
{
	struct suboption found = {};

	if (!find_suboption(skb, packet->options, packet->options_length, 1 << SUBTYPE_ADD_ADDR, &found))
		return 0;
	if (found.byte[2] & FLAG_ECHO || found.length < LENGTH_ADD_IPV4 || found.length > LENGTH_ADD_IPV6_PORT)
		return 0;
	__builtin_memcpy(announcement->option, found.byte, sizeof(found.byte));
	announcement->length = found.length;
	return 1;
}

static __always_inline int carry(struct __sk_buff *skb)
{
	struct carried *found, carried;
	struct packet packet;
	struct ends ends;

	skb->tc_index = 0;
	if (!parse_packet(skb, &packet))
		return TC_ACT_SHOT;
	ends_of(&ends, &packet);
	found = bpf_map_lookup_elem(&carried_announcements, &ends);
	if (!found)
		return TC_ACT_SHOT;
	carried = *found;
	bpf_map_delete_elem(&carried_announcements, &ends);
	return become_ack(skb, &packet, &carried) ? TCX_NEXT : TC_ACT_SHOT;
}

#endif
