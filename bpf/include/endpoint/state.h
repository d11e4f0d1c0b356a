/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the actors remember of a subflow. All of it begins as zeros. Index
 * [direction] is enum direction.
 */
#ifndef BRAID_STATE_H
#define BRAID_STATE_H

#include "chain.h"

/* A rate for one direction of a subflow, noted by the rule that asked for it. */
struct limit {
	__u64 rate;      /* bytes a second; 0: none */
	__u32 id;        /* action.limit */
	__u8 mechanism;  /* asked for */
	__u8 scope;
	__u8 in_use;     /* enum mechanism; 0 while nothing is enforced yet */
	__u8 why;        /* enum why, for the status */
};

/* Why a mechanism is in use, or none. */
enum why {
	WHY_ASKED = 1,      /* the rule insists on it */
	WHY_OWN_SOCKET,     /* the sender's socket is paced */
	WHY_NO_SOCKET,      /* the sender's socket is not on this node */
	WHY_NO_SYN,         /* the SYN was not seen, so the window's scale is unknown */
	WHY_SHORT_RTT,      /* too short for a window to be exact, at this rate */
	WHY_NO_RTT,         /* not measured yet */
};

/*
 * A limit at work, on one subflow or shared by all that have it: a token bucket
 * for Police, and for Window a loop that compares what was delivered with what
 * was asked for.
 */
struct rate_loop {
	__u64 until;     /* Police: ns, when the bucket will be full again */
	__u64 began;     /* Window: ns, of this interval; 0: not begun */
	__u32 delivered; /* bytes in this interval */
	__u32 factor;    /* of rate * RTT, 1 << 16 is 1; 0: not begun */
	__u8 bound;      /* the window was filled in this interval */
	__u8 pad[3];
	__s32 owed;      /* bytes too few so far; negative: too many */
};

/* Bits of window_state.begun. */
enum window_begun {
	WINDOW_BEGUN = 1,   /* acknowledged is valid */
	WINDOW_HOLDS = 2,   /* acknowledgements are held back; see hold.h */
};

/* A limit of what one direction of a subflow carries: window[direction]. */
struct window_state {
	struct rate_loop loop;  /* of a limit whose scope is the subflow */
	__u32 acknowledged;     /* the highest acknowledgement seen */
	__u32 window;           /* bytes, what was last granted at most; 0: nothing yet */
	__u8 begun;             /* enum window_begun */
	__u8 assumed;           /* 1: the loop learnt with an RTT that was assumed */
	__u8 sharers;           /* subflows of the connection with lowered windows */
	__u8 stale;             /* 1: noted before the rules were last asked anew */
	/*
	 * An acknowledgement, and when it passed: the data that it let go passes a round
	 * trip to the sender later. In a hold: the last that its sender was told, and when
	 * one last came.
	 */
	__u32 marked;
	__u64 marked_at;
	__u64 lost_at;          /* ns, when a packet was last dropped to slow its sender; 0: never */
	/* Bytes, the sender's congestion window as far as it showed. In a hold: where what it may know by SACK ends. */
	__u32 congestion;
	__u32 subflows;         /* of the connection so far, as far as known */
};

enum desired_backup {
	BACKUP_AS_IT_IS = 0,
	BACKUP_OFF = 1,
	BACKUP_ON = 2,
};

/*
 * An end is told with MP_PRIO in what it receives: told[direction] is what the
 * receiver of that direction was last told by us. What the ends said themselves is
 * subflow.backup.
 */
struct backup_state {
	__u64 lifted;       /* ns, when the rules were last asked anew */
	__u8 wanted;        /* enum desired_backup, of the rules */
	__u8 told[2];       /* enum desired_backup; 0: nothing */
	__u8 times[2];      /* how often, of this desired state */
	__u8 arrived;       /* 1 << direction: it must have */
	__u8 pad[2];
	__u32 timestamp[2]; /* TSval of the packet that told it last */
};

/*
 * The addresses themselves are in the map `hidden_addresses`: they belong to the
 * connection, whichever subflow carried them.
 */
struct address_state {
	__u64 lifted;      /* ns, when the rules were last asked anew */
	__u8 blocking;     /* a rule hides ADD_ADDR */
	__u8 releasing;    /* a rule wants them given back */
	__u8 hidden;       /* the connection may have hidden addresses */
	__u8 signalled;    /* 1 << direction: its receiver had a DSS and will not fall back */
	__u8 echo_due[2];  /* in this direction; a bit for each place of a hidden address */
	__u8 pad[2];
};

#endif
