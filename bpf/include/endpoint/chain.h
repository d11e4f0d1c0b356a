/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The form of a chain, shared by the endpoint half and the agent that compiles
 * it. A chain is one value of a map; which chain an endpoint has is one word
 * that is written in one step.
 */
#ifndef BRAID_CHAIN_H
#define BRAID_CHAIN_H

#include "../address.h"

enum chain_limit {
	MAX_RULES = 64,
	MAX_SELECTORS = 256,
	MAX_ACTIONS = 128,
	MAX_CHAINS = 4096,
	MAX_ENDPOINTS = 4096,
	ATTACHMENTS = 65536,
};

enum direction {
	FROM_ENDPOINT = 0,
	TO_ENDPOINT = 1,
};

/* An interface and its chain; in slot ifindex % ATTACHMENTS. */
struct attachment {
	__u32 interface; /* ifindex: tells interfaces that share a slot */
	__u32 endpoint;  /* the same while the endpoint exists; part of every key */
	__u64 chain;     /* slot of the chain, row of the counters, epoch: one word; 0: none */
	__u32 generation; /* the programs': moves on when a subflow's identity changes */
	__u32 pad;
};

/* The parts of attachment.chain. A new epoch makes subflows be classified anew. */
#define CHAIN_SLOT(word) ((__u32)(word) & 0xffff)
#define CHAIN_ROW(word) ((__u32)((word) >> 16) & 0xffff)
#define CHAIN_EPOCH(word) ((__u32)((word) >> 32))

/* What a selector looks at. Those from SELECT_TYPES on differ between the packets
 * of one subflow; the others are decided once. */
enum selector_kind {
	SELECT_ANYTHING = 0,
	SELECT_TOKEN,               /* mask: the token of either end */
	SELECT_LOCAL_ADDRESS,       /* address, netmask */
	SELECT_REMOTE_ADDRESS,
	SELECT_SOURCE_ADDRESS,
	SELECT_DESTINATION_ADDRESS,
	SELECT_LOCAL_PORT,          /* from, to: both included */
	SELECT_REMOTE_PORT,
	SELECT_SOURCE_PORT,
	SELECT_DESTINATION_PORT,
	SELECT_DIRECTION,           /* mask: 1 << direction */
	SELECT_PATH,                /* mask: 1 << path */
	SELECT_TYPES = 32,          /* mask: packet types */
	SELECT_DATA_SEQUENCE,       /* from, to: both included, counted from the beginning */
	SELECT_SUBFLOW_SEQUENCE,
	SELECT_SUBFLOW_SENT,
	SELECT_CONNECTION_SENT,
	SELECT_BACKUP,              /* mask: 1 for backups, 0 for others */
	SELECT_PROGRAM,             /* mask: slot in custom_blocks; from: its parameter; index */
};

/*
 * One condition, and where to go on with either result: the index of a later
 * selector of the same rule, or one of these two. Negation is pushed down to the
 * conditions, so that what is not known yet bounds the result from both sides.
 */
enum selector_result {
	MATCHED = 0xffff,
	NOT_MATCHED = 0xfffe,
	ASKS = 0x8000, /* plus the index of a selector: its program has to answer first */
};

struct selector {
	__u8 kind;
	__u8 negated;
	__u16 if_true;
	__u16 if_false;
	__u16 index;   /* its own; of SELECT_PROGRAM alone */
	__u32 mask;
	__u32 pad2;
	__u64 from;
	__u64 to;
	struct address address;
	struct address netmask;
};

enum action_kind {
	ACTION_RATE_LIMIT = 1, /* rate; mechanism, scope, limit */
	ACTION_SET_BACKUP,     /* FLAG_CHOSEN: backup, else not */
	ACTION_SUPPRESS_ADD_ADDR,  /* FLAG_CHOSEN: answer with an echo */
	ACTION_RELEASE_ADD_ADDR,
	ACTION_REPORT_CONNECTION,
	ACTION_REPORT_SUBFLOW,
	ACTION_RECORD,
	ACTION_DROP,
	ACTION_RESET,
	ACTION_RUN_PROGRAM,         /* slot in custom_blocks; value */
	ACTION_STACK,          /* governed in the pod's stack: nothing to do here */
};

/* Those whose effect lasts, until the rules change. */
#define LASTING_ACTIONS                                                                                       \
	(1U << ACTION_RATE_LIMIT | 1U << ACTION_SET_BACKUP | 1U << ACTION_SUPPRESS_ADD_ADDR |                 \
	 1U << ACTION_RELEASE_ADD_ADDR | 1U << ACTION_REPORT_CONNECTION | 1U << ACTION_REPORT_SUBFLOW |       \
	 1U << ACTION_RECORD | 1U << ACTION_STACK)

/* Bits of action.flag. */
enum action_flag {
	FLAG_CHOSEN = 1,      /* as the kind says */
	FLAG_METERED = 0x40,  /* the rate is enforced elsewhere too */
	FLAG_ENFORCED = 0x80,  /* of the cluster's rules: those of tenants do not undo it */
};

enum mechanism {
	MECHANISM_AUTO = 0,
	MECHANISM_PACE,
	MECHANISM_WINDOW,
	MECHANISM_POLICE,
};

enum scope {
	SCOPE_SUBFLOW = 0,
	SCOPE_CONNECTION,
	SCOPE_ENDPOINT,
};

struct action {
	__u8 kind;
	__u8 mechanism;
	__u8 scope;
	__u8 flag;      /* enum action_flag */
	__u32 limit;  /* number of the limit in its endpoint; slot of a custom block */
	__u64 rate;   /* bytes a second */
	__s64 value;  /* parameter of a custom block */
};

enum rule_needs {
	NEEDS_OPTIONS = 1,    /* the TCP options of each packet */
	NEEDS_CONNECTION = 2, /* the connection's record */
};

enum rule_enforces {
	ENFORCES_BACKUP = 1,
	ENFORCES_SUPPRESSION = 2,
	ENFORCES_RELEASE = 4,
	ENFORCES_RATE = 8,
};

struct rule {
	__u16 first_selector; /* MATCHED: every packet */
	__u16 first_action;
	__u8 actions;
	__u8 needs;
	__u8 directions;      /* 1 << direction: a bound that spares classifying */
	__u8 enforces;           /* enum rule_enforces, of its actions with FLAG_ENFORCED */
};

struct chain {
	__u32 rules;
	__u32 needs; /* of all rules */
	struct rule rule[MAX_RULES];
	struct selector selector[MAX_SELECTORS];
	struct action action[MAX_ACTIONS];
};

/* What the rules of one endpoint did; a row for each endpoint and chain. */
struct counters {
	struct {
		__u64 hits;  /* packets that the rule matched */
		__u64 bytes; /* their payload */
		__u64 acted; /* packets that its actions changed, dropped or answered */
	} rule[MAX_RULES];
};

/* The bits of SELECT_TYPES. */
enum packet_type {
	TYPE_SYN = 1 << 0,
	TYPE_MP_CAPABLE = 1 << 1,
	TYPE_MP_JOIN = 1 << 2,
	TYPE_DSS = 1 << 3,
	TYPE_DATA = 1 << 4,
	TYPE_PURE_ACK = 1 << 5,
	TYPE_DATA_ACK = 1 << 6,
	TYPE_ADD_ADDR = 1 << 7,
	TYPE_ADD_ADDR_ECHO = 1 << 8,
	TYPE_REMOVE_ADDR = 1 << 9,
	TYPE_MP_PRIO = 1 << 10,
	TYPE_MP_FAIL = 1 << 11,
	TYPE_FAST_CLOSE = 1 << 12,
	TYPE_RESET = 1 << 13,
	TYPE_FIN = 1 << 14,
};

#endif
