/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the actors remember of a subflow. */
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
	WHY_SHORT_RTT,      /* too short for a window to be exact */
	WHY_NO_RTT,         /* not measured yet */
};

#endif
