/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The two ends of a subflow, as the pod sees them: a key for what programs on packets and
 * programs in the stack share (sharedState in the policy, docs/programs.md).
 */
#ifndef BRAID_ENDS_H
#define BRAID_ENDS_H

#include "packet.h"

/* IPv4 addresses are mapped into IPv6. All bytes have a meaning. */
struct braid_ends {
	struct address local; /* the pod's */
	struct address remote;
	__be16 local_port;
	__be16 remote_port;
};

#endif
