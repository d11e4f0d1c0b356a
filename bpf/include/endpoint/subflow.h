/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the endpoint half remembers, and the maps that it shares with the agent.
 * The maps are pinned by their names; a change of layout needs a new version
 * directory. Keys of MPTCP connections are hashed at once: no map holds one.
 *
 * Arrays of two are by enum direction, that of the packets: what FROM_ENDPOINT
 * holds was sent by the endpoint.
 */
#ifndef BRAID_SUBFLOW_H
#define BRAID_SUBFLOW_H

#include "context.h"
#include "state.h"

enum subflow_limit {
	MAX_SUBFLOWS = 65536,
	MAX_MPTCP_CONNECTIONS = 32768,
	BYPASS_SLOTS = 4096, /* of each CPU; a power of two */
	EVENT_BYTES = 1 << 20,
	PATHS = 8,
	PATH_UNKNOWN = 0xff,
	REMEMBERED_RULES = 8, /* a power of two */
};

enum subflow_role {
	ENDPOINT_UNKNOWN = 0, /* the subflow's SYN was not seen */
	ENDPOINT_INITIATED,   /* the endpoint sent the SYN */
	ENDPOINT_ANSWERED,
};

/* What is known of a subflow; bits of subflow.known. */
enum subflow_known {
	KNOWN_SYN = 1 << 0,          /* initial_sequence of the SYN's direction */
	KNOWN_SYN_ACK = 1 << 1,      /* and of the answer's */
	KNOWN_MPTCP = 1 << 2,        /* the SYN asked for MPTCP; seeded: it is MPTCP */
	KNOWN_JOIN = 1 << 3,         /* by MP_JOIN: not the connection's first */
	KNOWN_ANSWERED = 1 << 4,     /* the peer takes part in MPTCP */
	KNOWN_HANDSHAKE = 1 << 7,    /* over: nothing more is to be learnt from it */
};

/* What was asked to be reported; each once. */
enum subflow_reported {
	REPORTED_CONNECTION = 1,
	REPORTED_SUBFLOW = 2,
	REPORTED_END = 4,
};

enum subflow_ended {
	ENDED_FIN_FROM = 1 << FROM_ENDPOINT,
	ENDED_FIN_TO = 1 << TO_ENDPOINT,
	ENDED_RESET = 1 << 2,
};

/* Events that a rule asked for and that wait until all about them is known. */
enum reports_due {
	DUE_CONNECTION = 1,
	DUE_SUBFLOW = 2,
};

/* What went in one direction. */
struct traffic {
	__u64 bytes;             /* payload, repetitions included */
	__u64 packets;           /* segments */
	__u64 position;          /* in the subflow's stream, beyond the highest byte seen */
	__u64 counted;           /* of position, in the connection's record */
	__u32 highest;           /* sequence number at position */
	__u32 initial_sequence;  /* of the SYN; of the first packet seen without one */
	__u32 retransmitted;     /* segments */
	__u32 reordered;         /* segments that came after later ones, not repeated */
	__u32 gap_begin;         /* the highest sequence number before the last gap */
	__u32 gap_end;
	__u64 gap_seen;          /* ns; 0: no gap */
	/* One segment at a time is timed, until its answer passes. */
	__u64 timed_at;          /* ns; 0: none */
	__u32 timed_sequence;    /* its end */
	__u32 timed_timestamp;   /* its timestamp */
	__u64 timed_tick;        /* jiffies when timing last began */
	__u32 smoothed_rtt;      /* us, from here to this direction's receiver and back; 0: unknown */
	__u32 minimum_rtt;       /* us */
	__u8 timed_by;           /* enum timed_by */
	__u8 timed_others;       /* packets of the other direction that did not answer it yet */
	__u8 window_scale;       /* 1 + shift of the windows in this direction; 0: unknown */
	__u8 begun;              /* 1: highest and initial_sequence are set */
	__u32 last_timestamp;    /* highest that passed; valid when not 0 */
};

enum timed_by {
	TIMED_BY_SEQUENCE = 1,
	TIMED_BY_TIMESTAMP,
};

/* A subflow. What each packet reads comes first. */
struct subflow {
	/* The memo of the classification, for the chain `word`: bit n is rule n. */
	__u64 word;              /* attachment.chain; 0: not classified yet */
	__u64 sure[2];           /* rules that match each packet of a direction */
	__u64 maybe[2];          /* rules whose selectors must be looked at each time */
	__u64 latched[2];        /* rules all of whose actions have been noted and last */
	__u32 token;             /* of the connection, the responder's; 0: unknown */
	__u32 ingress;           /* by which packets for the endpoint come in, as arrival_of() has it; 0: none came */
	__u8 path;               /* of that interface; PATH_UNKNOWN */
	__u8 role;               /* enum subflow_role */
	__u8 engaged;            /* 1: an actor has something to do on each packet */
	__u8 known;              /* enum subflow_known */
	__u8 backup;             /* 1 << direction: its sender asked for backup */
	__u8 ended;              /* enum subflow_ended */
	__u8 seeded;             /* 1: made by the agent from the pod's socket */
	__u8 handshake_packets;  /* after the SYNs, counted until KNOWN_HANDSHAKE */
	__u8 needs[2];           /* enum rule_needs of the rules in sure and maybe */
	__u8 due;                /* enum reports_due */
	__u8 due_rule;           /* the rule that asked for it */
	__u8 recorded;           /* 1: a rule records it; its RTT is measured in all ways */
	__u8 reported;           /* enum subflow_reported */
	__u8 needs_connection;   /* 1: a rule of the chain asks for the connection */
	__u8 pad;

	__u16 begin[2][REMEMBERED_RULES]; /* of the first rules: the first selector in question */
	__u64 last_seen;         /* ns since boot, coarse */
	__u64 tick;              /* jiffies then */
	__u32 visited[2];        /* of each direction, the lower half */
	__u32 visits[2];         /* since then, without the first */
	__u64 stack;             /* rules with an action in the pod's stack that matched a packet */

	struct traffic traffic[2];

	__u64 paced;             /* bytes a second by sock_ops; 0: not paced */
	__u64 first_seen;
	__u32 initiator_token;   /* 0: unknown */
	__u32 seeded_rtt;        /* us, the socket's smoothed RTT when it was seeded */
	__u32 syn_sequence;      /* of the SYN: tells a repeated SYN from a new subflow */
	__u32 bound;             /* enum enforced: what the cluster's rules asked for */

	/* The actors'. */
	struct limit limit[2];
	struct window_state window[2];
	struct backup_state backup_state;
	struct address_state addresses;
};

struct mptcp_connection_key {
	__u32 endpoint;
	__u32 token;
};

/*
 * A connection; found by the responder's token. One found by the initiator's is
 * an alias: its token is not that of its key, and leads to the other.
 */
struct mptcp_connection {
	__u32 token;             /* the responder's */
	__u32 initiator_token;   /* 0: unknown */
	__u64 initial_data_sequence[2]; /* of the direction's first byte */
	__u64 data_position[2];  /* highest position seen in a DSS; extends those of 4 bytes */
	__u64 sent[2];           /* bytes of all subflows, repetitions on one subflow left out */
	__u64 first_seen;        /* ns since boot, coarse */
	__u32 subflows;          /* that began while the agent looked on */
	__u32 clamped[2];        /* of them, with a lowered window; E2's */
	__u8 sequence_known;     /* 1 << direction: initial_data_sequence is set */
	__u8 role;               /* enum subflow_role of the first subflow */
	__u8 pad;
	__u32 reported;          /* 1: by an event */
	__u32 pad2;
};

/*
 * Subflows that no rule concerns in either direction, of each CPU. The whole key
 * is compared. A new chain or generation voids the entry, and so does another
 * interface; now and then the record is visited all the same, so that it is kept
 * and its position followed.
 */
struct bypass_entry {
	__u64 word;
	struct subflow_key key;
	__u32 generation;
	__u32 ingress;
	__u32 left;              /* bytes until the next visit */
	__u32 pad;
};

struct paths {
	__u32 interface[PATHS];  /* ifindex; 0 where the slot is free */
};

enum event_type {
	EVENT_CONNECTION = 1,    /* ACTION_REPORT_CONNECTION: begun, or met while it lasts */
	EVENT_SUBFLOW,           /* ACTION_REPORT_SUBFLOW */
	EVENT_SUBFLOW_END,       /* of a subflow that was reported */
};

struct event {
	__u64 time;              /* ns since boot, coarse */
	struct subflow_key key;  /* with the endpoint */
	__u32 token;             /* 0: unknown */
	__u32 initiator_token;
	__u32 type;              /* enum event_type */
	__u8 path;
	__u8 role;
	__u8 direction;          /* of the packet that brought the event about */
	__u8 rule;
	__u64 sent[2];           /* positions so far */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ATTACHMENTS);
	__type(key, __u32);
	__type(value, struct attachment);
} attachments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ENDPOINTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct attachment);
} attachments_overflow SEC(".maps");

struct chain_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct chain);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_CHAINS);
	__type(key, __u32);
	__array(values, struct chain_map);
} chains SEC(".maps");

/* Row CHAIN_ROW: no two CPUs add to it at once but those of one endpoint. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ENDPOINTS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct counters);
} chain_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_SUBFLOWS);
	__type(key, struct subflow_key);
	__type(value, struct subflow);
} subflows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_MPTCP_CONNECTIONS);
	__type(key, struct mptcp_connection_key);
	__type(value, struct mptcp_connection);
} mptcp_connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BYPASS_SLOTS);
	__type(key, __u32);
	__type(value, struct bypass_entry);
} bypass_cache SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct paths);
} path_interfaces SEC(".maps");

/*
 * What a run knows; in a map, because actors need the stack. By direction: a reset
 * that answers what the endpoint sent runs through the other program meanwhile.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct context);
} run_context SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENT_BYTES);
} events SEC(".maps");

/*
 * From the endpoint to its peer and back, as the peer or the endpoint would see it;
 * us, 0: unknown. Both parts are measured from here.
 */
static __always_inline __u32 rtt_of(const struct subflow *subflow)
{
	__u32 outer = subflow->traffic[FROM_ENDPOINT].smoothed_rtt;

	return outer ? outer + subflow->traffic[TO_ENDPOINT].smoothed_rtt : subflow->seeded_rtt;
}

#endif
