/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What is read of the kernel's MPTCP sockets; the real layout is found on loading. */
#ifndef BRAID_MPTCP_SOCKETS_H
#define BRAID_MPTCP_SOCKETS_H

#include "kernel.h"

enum {
	FIELD_EXISTS = 2, /* for __builtin_preserve_field_info */
};

struct inet_connection_sock {
	void *icsk_ulp_data; /* of a subflow, its struct mptcp_subflow_context */
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	_Bool is_mptcp;
} __attribute__((preserve_access_index));

struct mptcp_subflow_context {
	__u64 remote_key; /* 0: not known, or not the first subflow of its connection */
	__u32 token;
	__u32 subflow_id; /* 0: the peer has joined it, and the join is not finished */
} __attribute__((preserve_access_index));

static long (*const bpf_probe_read_kernel)(void *to, __u32 size, const void *from) = (void *)113;
static struct tcp_sock *(*const bpf_skc_to_tcp_sock)(void *sk) = (void *)137;

#endif
