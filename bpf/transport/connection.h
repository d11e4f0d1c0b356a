/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The end of a connection: MPTCP's is told by its own sequence, and its subflows live on for a while. */
#ifndef BRAID_TRANSPORT_CONNECTION_H
#define BRAID_TRANSPORT_CONNECTION_H

#include "tcp_sockets.h"

enum {
	TCP_CLOSE_WAIT = 8,
	TCP_LAST_ACK = 9,
	TCP_CLOSING = 11,
	RCV_SHUTDOWN = 1,
};

/* struct mptcp_sock begins with it. */
static struct sock *(*const bpf_skc_to_mptcp_sock)(void *sk) = (void *)196;

static __always_inline int is_state_of_end(__u32 state)
{
	return state == TCP_CLOSE_WAIT || state == TCP_LAST_ACK || state == TCP_CLOSING;
}

/* The peer has ended what it sends, and all of that has come. */
static __always_inline int has_ended(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	const struct sock *connection;

	if (is_state_of_end(ops->state))
		return 1;
	connection = sk ? bpf_skc_to_mptcp_sock(sk) : 0;
	return connection && is_state_of_end(connection->__sk_common.skc_state);
}

/* Nothing more is to come: the peer has ended it, or the application has closed. */
static __always_inline int receives_no_more(void *sk)
{
	const struct sock *connection = bpf_skc_to_mptcp_sock(sk);

	if (!connection)
		connection = (void *)bpf_skc_to_tcp_sock(sk);
	return connection && connection->sk_shutdown & RCV_SHUTDOWN;
}

#endif
