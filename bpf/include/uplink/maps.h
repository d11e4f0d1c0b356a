/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the two programs of the uplink half and the agent share. Go's view of
 * these structures is generated from the objects; the pinned maps outlive the
 * agent, so a change of layout needs a new version directory in
 * agent/datapath.
 */
#ifndef BRAID_UPLINK_MAPS_H
#define BRAID_UPLINK_MAPS_H

#include "../known_tunnels.h"
#include "../packet.h"

enum uplink_limit {
	MAX_PATHS = 8,
	MAX_PEERS = 16384,        /* the agent makes room for as many as it needs */
	MAX_ENDPOINTS = 4096,
	MAX_ENDPOINT_ADDRESSES = 4096,
	MAX_CLASSES = 8,
	PEER_ADDRESSES = 16,      /* of each, IPv4 and IPv6 on all paths */
	PEER_POD_RANGES = 64,     /* as many as a node may have, and for as many single pods as it has fewer */
	MAX_FLOWS = 131072,
	MAX_HANDSHAKES = 16384,
	MAX_CONNECTIONS = 65536,
	FILTER_BITS = 65536,
	NO_PATH = 0xff,
	MAX_OUTSIDE = 65536,
	MAX_ACCOUNTS = 256,
	OTHER_ACCOUNTS = 255,     /* of all for which there is no number */
	TRAFFIC_OF_NO_PATH = MAX_ACCOUNTS * MAX_PATHS,
};

/* This node: the NIC of each path, and which of them can send. */
struct node {
	__u32 interface[MAX_PATHS]; /* ifindex; 0 where the slot is free */
	__u32 paths_up;             /* a bit for each path */
	__u32 clock;                /* seconds since boot, when the agent looked last */
	__u32 routed;               /* paths whose subnets routers join, a bit for each */
	__u32 picks_up;             /* 1: some endpoint has PREFERENCE_PICK_UP */
};

/*
 * Another node: where it can be reached on each path. On one that is routed that may be the
 * address of a router.
 */
struct peer {
	struct address ipv6[MAX_PATHS];
	__be32 ipv4[MAX_PATHS];
	__u8 ipv4_paths; /* paths on which it is up and has an IPv4 address */
	__u8 ipv6_paths;
	__u8 active; /* a subflow's packet went there since the agent looked */
	__u8 beyond; /* paths that lead over a router: for what is in a tunnel alone */
};

/*
 * How good the paths to a peer are. Each class of preferences has its own idea of
 * what is bad; a path of which nothing is known is not.
 */
struct health {
	__u8 bad[MAX_CLASSES]; /* paths that are not to be preferred now */
	__u8 dead;             /* paths that are left out of the peer's; for the agent */
	__u8 distant;          /* paths whose round trip is much longer than that of others */
	__u8 pad[6];
};

/* A pod whose connections are spread. */
struct endpoint {
	__u32 id;      /* the same for all addresses of one pod; not 0 */
	__u32 interface; /* ifindex of the host's end of its interface; 0: unknown */
	__u64 weights; /* a byte for each path; 0 where the pod may not use it */
	__u64 begun;   /* a byte for each path: the first subflows of this round */
};

/*
 * Which paths an endpoint may send on, and which it would like to. It lies over
 * the flows' own paths: where it changes, each packet goes another way from then
 * on, and where it is taken away the flows are where they were.
 */
struct preference {
	__u8 allowed;
	__u8 preferred; /* while they are good */
	__u8 backup;    /* while no other is usable */
	__u8 class;     /* which paths are good: an index into health.bad */
	__u16 share;    /* flows with a turn below it follow what is preferred */
	__u8 flags;
	__u8 account;   /* what its traffic counts as: see traffic; 0: it is not counted */
};

enum preference_flags {
	PREFERENCE_SET = 1,  /* 0 in an entry of no endpoint */
	PREFERENCE_SAME = 2, /* subflows join on the path of the first one */
	PREFERENCE_PICK_UP = 4, /* flows that began elsewhere are taken in: a machine moved here with them */
};

/* A subflow as this node sees it, whichever side sent the first packet. */
struct flow_key {
	struct address local;
	struct address remote;
	__be16 local_port;
	__be16 remote_port;
};

/*
 * The ends of a packet's flow as its sender's node sees it: a packet begins with them, in this
 * order. To copy them would be a store and a load more before each look-up.
 */
static __always_inline struct flow_key *ends_of(struct packet *packet)
{
	_Static_assert(__builtin_offsetof(struct packet, destination) == __builtin_offsetof(struct flow_key, remote) &&
			       __builtin_offsetof(struct packet, source_port) == __builtin_offsetof(struct flow_key, local_port) &&
			       __builtin_offsetof(struct packet, destination_port) == __builtin_offsetof(struct flow_key, remote_port),
		       "a packet does not begin with its flow's key");
	return (struct flow_key *)&packet->source;
}

/*
 * The same number at both ends of a flow. The product mixes all bits into those
 * that are kept: the ports that Linux gives to clients are all even.
 */
static __always_inline __u32 mix_ends(const struct flow_key *key)
{
	__u32 folded = key->local.word[3] ^ key->remote.word[3] ^ key->local_port ^ key->remote_port;

	return folded * 0x9e3779b1;
}

enum flow_role {
	ROLE_INITIATOR = 1, /* this node chose the path */
	ROLE_RESPONDER = 2, /* the peer chose it; this node follows */
};

enum flow_ended {
	ENDED_OUT = 1,
	ENDED_IN = 2,
	ENDED_BOTH = 3,
};

struct flow {
	__be32 sequence;  /* of the SYN; once ANSWERED, about what this end expects next */
	__u32 token;      /* the responder's; 0 until it is known; at a responder, about what it sent last */
	__u32 endpoint;   /* id of this node's end; 0 where its pod is no endpoint */
	__u16 peer;
	__u8 path;
	__u8 allowed;     /* paths that may stand in for it */
	__u8 role;
	__u8 ended;
	__u8 turn;        /* spreads the flows of a dead path over the others */
	__u8 subtype;     /* MP_CAPABLE or MP_JOIN, and flow_subtype */
	__u32 used;       /* the node's clock when this end sent last */
	__u32 from;       /* ifindex by which this end's packets come; 0: unknown */
	__u32 sent;       /* the number behind the last byte that this end sent */
	__u32 received;   /* the highest number that came in */
	__u32 unanswered; /* the tick of the first data after which nothing came in; 0: none */
	__u32 advanced;   /* the tick at which new numbers came in last */
	__u32 avoided_at; /* tick; before that the LASTING_TICK when this node placed a connection's first flow, with BEGAN */
	__u32 redirected; /* ifindex to which a packet is on its way; 0: none */
	__u8 avoided;     /* paths that did not answer */
	__u8 last;        /* the path of what this end sent last, or NO_PATH */
	__u8 slowest;     /* answer of late, in WAIT_UNITs */
	__u8 tries;       /* how often a path was avoided in a row */
	__u8 account;     /* of the endpoint, when this end sent last */
	__u8 incoming;    /* the path by which something came in last, and one; 0: nothing yet */
	__u16 advanced_jiffy; /* the kernel's count of its timer then, its low bits */
	__u32 counted;    /* the slice of time in which its bytes were counted last; 0: never */
	__u32 counted_sent; /* sent and received as they were then */
	__u32 counted_received;
};

enum flow_times {
	BEGAN = 1, /* a bit of avoided_at, which only what is a LASTING_TICK has */
};

enum flow_subtype {
	NOTED = 1 << 1,       /* in busy_flows: what the agent says of it is looked up once in a slice of time */
	SENDS_MUCH = 1 << 2,  /* as of the last slice of time, or is noted: to be looked up with what it sends next */
	TOGETHER = 1 << 3,    /* by one path with the others of its connection; where it is not NOTED it rests */
	TOGETHER_PATH = 4,    /* which: the bits from this one on; of one that rests, whose turn it is */
	TOGETHER_BITS = TOGETHER | 7 << TOGETHER_PATH,
	ANSWERED = 1 << 7,    /* this end has acknowledged something */
};

/*
 * A flow whose two ends have not agreed on it yet. Its SYN may be forged: it costs nobody
 * room, and takes no other flow's place.
 */
struct handshake {
	struct flow flow; /* its sequence is the SYN's */
	__be32 answer;    /* the number of the SYN/ACK, before it ASKED_IN_TUNNEL or 0; in MIDSTREAM of what came in last */
	__u32 answered;   /* handshake_answer */
};

enum handshake_answer {
	NOT_ANSWERED = 0,
	SYN_ANSWERED = 1,
	MIDSTREAM = 2, /* nobody saw a SYN: the flow began before its end came to this node */
};

enum {
	ASKED_IN_TUNNEL = 1,
};

struct connection_key {
	__u32 endpoint;
	__u32 token;
};

/*
 * A range of addresses outside of the cluster, as an endpoint's destination: all bits of the
 * endpoint's id and some of the address.
 */
struct outside_key {
	__u32 bits;
	__u32 endpoint; /* 0: for any of them */
	struct address address;
};

/* A range of addresses of pods, those of IPv4 in their mapped form. */
struct range_key {
	__u32 bits;
	struct address address;
};

/* How many subflows of a connection are on each path, a byte for each. */
struct connection {
	__u64 subflows;
};

/* Packets as the wire has them, those that a NIC makes of one or made one of. */
struct traffic {
	__u64 sent_bytes;
	__u64 sent_packets;
	__u64 received_bytes;
	__u64 received_packets;
};

struct filter {
	__u64 bits[FILTER_BITS / 64];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct node);
} node SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PEERS);
	__type(key, __u32);
	__type(value, struct peer);
} peers SEC(".maps");

/* By a peer's index, as in peers. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PEERS);
	__type(key, __u32);
	__type(value, struct health);
} health SEC(".maps");

/* By an endpoint's id. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ENDPOINTS);
	__type(key, __u32);
	__type(value, struct preference);
} preferences SEC(".maps");

/*
 * By account * MAX_PATHS + path; by TRAFFIC_OF_NO_PATH + account for NICs that belong to
 * no path. An account is the pods of a namespace that one policy selects.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TRAFFIC_OF_NO_PATH + MAX_ACCOUNTS);
	__type(key, __u32);
	__type(value, struct traffic);
} traffic SEC(".maps");

/*
 * The tick at which a peer answered on a path last: what a flow sent, or a probe of the
 * agent's. By the peer's index * MAX_PATHS + path.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PEERS * MAX_PATHS);
	__type(key, __u32);
	__type(value, __u32);
} answered SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PEERS * PEER_ADDRESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, __u32);
} peer_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ENDPOINT_ADDRESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

/*
 * The index in peers of what leads there: an entry of its own, with the gateway of each path.
 * NO_PEER keeps a part of a range out of it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, MAX_OUTSIDE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct outside_key);
	__type(value, __u32);
} outside SEC(".maps");

/*
 * The index in peers of the node whose pods have addresses of this range, where routes lead to
 * it over a router; OUTER_OF_THIS_NODE and NEVER_ENCAPSULATED stand for this node. A Node mostly
 * has one or two; single pods are there too.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, MAX_PEERS * PEER_POD_RANGES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct range_key);
	__type(value, __u32);
} pod_ranges SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_HANDSHAKES);
	__type(key, struct flow_key);
	__type(value, struct handshake);
} handshakes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_CONNECTIONS);
	__type(key, struct connection_key);
	__type(value, struct connection);
} connections SEC(".maps");

/*
 * A Bloom filter with one hash over the local addresses that may have flows: it
 * spares all other packets the look-up. Bits are never cleared; a stale one
 * costs a look-up and nothing else.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE); /* the agent sets bits in place too */
	__type(key, __u32);
	__type(value, struct filter);
} local_filter SEC(".maps");

static __always_inline __u32 filter_bit(const struct address *address)
{
	__u32 folded = address->word[0] ^ address->word[1] ^ address->word[2] ^ address->word[3];

	return (folded ^ folded >> 16) & (FILTER_BITS - 1);
}

static __always_inline __u64 *filter_word(__u32 bit)
{
	__u32 zero = 0, word = bit / 64;
	struct filter *filter = bpf_map_lookup_elem(&local_filter, &zero);

	/* The verifier of Linux 6.1 forgets the bounds of what the call spilled. */
	barrier_var(word);
	return filter ? &filter->bits[word & (FILTER_BITS / 64 - 1)] : 0;
}

static __always_inline int may_have_flows(const struct address *local)
{
	__u32 bit = filter_bit(local);
	__u64 *word = filter_word(bit);

	return word && (*word >> (bit & 63) & 1);
}

static __always_inline void note_local(const struct address *local)
{
	__u32 bit = filter_bit(local);
	__u64 *word = filter_word(bit);

	if (word)
		__sync_fetch_and_or(word, 1ULL << (bit & 63));
}

static __always_inline struct node *this_node(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&node, &zero);
}

/* The path whose NIC has this ifindex, or NO_PATH. */
static __always_inline __u8 path_of_interface(const struct node *node, __u32 ifindex)
{
	int path;

#pragma clang loop unroll(full)
	for (path = 0; path < MAX_PATHS; path++)
		if (node->interface[path] == ifindex)
			return path;
	return NO_PATH;
}

#endif
