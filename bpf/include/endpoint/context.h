/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What one run knows about its packet: parsed once, then read by every selector
 * and actor.
 */
#ifndef BRAID_CONTEXT_H
#define BRAID_CONTEXT_H

#include "chain.h"
#include "../origin.h"

/* A subflow as its endpoint sees it. */
struct subflow_key {
	struct address local;
	struct address remote;
	__be16 local_port;
	__be16 remote_port;
	__u32 endpoint;
};

/* What the TCP options hold; offsets are from the frame's beginning, 0: absent. */
struct options_seen {
	__u32 types;         /* bits of enum packet_type that options tell */
	__u16 timestamps;    /* kind byte of each option */
	__u16 sack;
	__u16 mptcp;         /* the first MPTCP option that is not DSS */
	__u16 dss;
	__u8 mptcp_length;
	__u8 dss_length;
	__u8 window_scale;   /* of a SYN: 1 + shift, 0 when absent */
	__u8 read;           /* 1 when they were read */
	__u32 timestamp;
	__u32 echoed;        /* timestamp echo reply */
	__u32 token;         /* of MP_JOIN in a SYN */
	__u64 data_sequence; /* valid with data_sequence_bytes 4 or 8 */
	__u8 data_sequence_bytes;
	__u8 backup;         /* flag of MP_JOIN in a SYN, or of MP_PRIO */
	__u8 pad[2];
	__u32 mapped_at;     /* subflow sequence number at which data_sequence is, from 1 */
};

/* Where a run is: the rules that are left, and the actions of the rule it is at. */
struct progress {
	__u64 left;
	__u64 sure;
	__u32 rule;
	__u32 action;  /* the next one; from MAX_ACTIONS on the selector whose program is asked */
	__u32 actions; /* that are left */
	__u32 outcome; /* enum result of the rule's actions so far; before them what the rule's match asks for */
	__u32 lasting; /* 1: none of them would do more for another packet */
	__u32 counted; /* rules that matched and had nothing to ask; the first 32 */
};

struct context {
	struct subflow_key key;
	__u16 network;        /* offset of the IP header */
	__u16 transport;      /* offset of the TCP header */
	__u16 options_length;
	__u8 family;
	__u8 flags;           /* of TCP */
	__u8 direction;
	__u8 visits;          /* of the record in this tick and direction, before */
	__u8 differs;         /* 1: another packet like this one may come to something else */
	__u8 stirred;         /* 1: what the rules ask of the subflow has changed */
	__u32 sequence;       /* host order */
	__u32 acknowledgement;
	__u32 payload;        /* bytes, of the whole of a GSO packet */
	__u16 window;         /* host order, not scaled */
	__u16 segments;       /* of a GSO packet, else 1 */
	__u64 now;            /* ns, coarse */
	__u64 chain;          /* attachment.chain */
	struct options_seen options;
	__u32 types;          /* bits of enum packet_type that the header tells */
	__u8 data_known;      /* 1: data_position is set */
	__u8 rule;            /* that acts */
	__u8 fresh_tick;      /* 1: the subflow's first packet in this tick of the clock */
	__u8 fresh_way;       /* 1: and the first in its direction */
	__u64 position;       /* of the first byte of payload in the subflow's stream, from 0 */
	__u64 sent;           /* by the subflow in this direction before this packet */
	__u64 connection_sent; /* by the connection */
	__u64 data_position;  /* of the first byte of payload in the connection's stream */
	__u64 tick;           /* jiffies */
	struct progress progress; /* run_rules.h's own */
};

/* What an actor did. */
enum result {
	UNTOUCHED = 0, /* nothing, or nothing to do */
	ACTED,         /* the packet or a state was changed; pointers are void */
	DROPPED,       /* the packet ends here */
};

#endif
