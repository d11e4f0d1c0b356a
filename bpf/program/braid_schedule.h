/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * For schedules of one's own. No released kernel lets a program choose the subflow
 * for each segment, so a schedule works on the subflows' sockets: it looks at each
 * when it is established and once in each of its round trips, and paces it. The
 * kernel's scheduler then sends on the others what this one does not take.
 *
 *     #include "braid_schedule.h"
 *
 *     BRAID_SCHEDULE(name)
 *     {
 *             if (socket->srtt_us >> 3 > 50000)
 *                     braid_pace(socket, 125000);
 *     }
 *
 * In the body there is `socket`, struct bpf_sock_ops as bpf.h of the kernel has it:
 * that of a subflow (or plain TCP) of a pod whose rules name this schedule.
 */
#ifndef BRAID_SCHEDULE_H
#define BRAID_SCHEDULE_H

#include "socket_ends.h"
#include "braid_ends.h"

enum {
	SOCK_OPS_ACTIVE_ESTABLISHED = 4,
	SOCK_OPS_PASSIVE_ESTABLISHED = 5,
	SOCK_OPS_RTT = 12,
	SOCK_OPS_RTT_FLAG = 1 << 3,
	SOCKET_LEVEL = 1,
	MAX_PACING_RATE = 47,
	BRAID_NAMESPACES = 1024,
};

#define BRAID_UNPACED (~0U)

/* The kernel's structure; where the token is in it is found on loading. */
struct mptcp_sock {
	__u32 token;
} __attribute__((preserve_access_index));

static struct mptcp_sock *(*const bpf_skc_to_mptcp_sock)(void *sk) = (void *)196;

/* The network namespaces of the pods to govern, by their cookies: the agent's to fill. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BRAID_NAMESPACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u8);
} block_namespaces SEC(".maps");

/* The token of the socket's MPTCP connection, at this end; 0 for plain TCP. */
static __always_inline __u32 braid_token(struct bpf_sock_ops *socket)
{
	struct bpf_sock *sk = socket->sk;
	struct mptcp_sock *connection;

	if (!sk)
		return 0;
	connection = bpf_skc_to_mptcp_sock(sk);
	return connection ? connection->token : 0;
}

/* The ends of the socket, by which braid_ends_of_packet knows its packets too. */
static __always_inline void braid_ends_of_socket(struct bpf_sock_ops *socket, struct braid_ends *ends)
{
	read_addresses(socket, &ends->local, &ends->remote);
	read_ports(socket, &ends->local_port, &ends->remote_port);
}

/* Bounds the socket's rate, in bytes a second of payload; BRAID_UNPACED ends that. */
static __always_inline int braid_pace(struct bpf_sock_ops *socket, __u32 rate)
{
	return !bpf_setsockopt(socket, SOCKET_LEVEL, MAX_PACING_RATE, &rate, sizeof(rate));
}

static __always_inline int braid_governs(struct bpf_sock_ops *socket)
{
	__u64 cookie;

	if (socket->op != SOCK_OPS_RTT && socket->op != SOCK_OPS_ACTIVE_ESTABLISHED &&
	    socket->op != SOCK_OPS_PASSIVE_ESTABLISHED)
		return 0;
	cookie = bpf_get_netns_cookie(socket);
	if (!bpf_map_lookup_elem(&block_namespaces, &cookie))
		return 0;
	if (socket->op != SOCK_OPS_RTT)
		bpf_sock_ops_cb_flags_set(socket, socket->bpf_sock_ops_cb_flags | SOCK_OPS_RTT_FLAG);
	return 1;
}

#define BRAID_SCHEDULE(name)                                                         \
	static __always_inline void name##_schedule(struct bpf_sock_ops *socket);    \
	SEC("sockops") int name(struct bpf_sock_ops *socket)                         \
	{                                                                            \
		if (braid_governs(socket))                                           \
			name##_schedule(socket);                                     \
		return 1;                                                            \
	}                                                                            \
	static __always_inline void name##_schedule(struct bpf_sock_ops *socket)

#endif
