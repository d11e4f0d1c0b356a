/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What is read of the kernel's own structures, whose real layout is found on loading, and
 * the helpers that lead to them.
 */
#ifndef BRAID_KERNEL_STRUCTS_H
#define BRAID_KERNEL_STRUCTS_H

#include "kernel.h"

enum {
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	/* For __builtin_preserve_field_info: of fields of bits, how to get them out of 64. */
	BYTE_OFFSET = 0,
	FIELD_EXISTS = 2,
	LEFT_SHIFT = 4,
	RIGHT_SHIFT = 5,
};

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	__u64 net_cookie;
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

struct in6_addr {
	union {
		__be32 u6_addr32[4];
	} in6_u;
} __attribute__((preserve_access_index));

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} __attribute__((preserve_access_index));

struct bpf_local_storage;

struct sock {
	struct sock_common __sk_common;
	__u8 sk_shutdown;
	struct bpf_local_storage *sk_bpf_storage; /* what programs keep with it */
} __attribute__((preserve_access_index));

struct inet_sock {
	struct sock sk;
} __attribute__((preserve_access_index));

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	void *icsk_ulp_data; /* of a subflow, its struct mptcp_subflow_context */
} __attribute__((preserve_access_index));

struct tcp_rack {
	__u32 rtt_us; /* the round trip of what was sent last of all that was delivered */
} __attribute__((preserve_access_index));

struct rb_root {
	void *rb_node; /* 0: empty */
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	struct rb_root out_of_order_queue;
	__u64 bytes_received;
	__u64 bytes_acked;
	__u32 segs_out;
	__u32 snd_nxt;
	struct {
		__u64 time; /* us: when the buffer for what comes in was looked at last; at first when it was established */
	} rcvq_space;
	struct tcp_rack rack;
	__u8 syn_data_acked : 1; /* the connection began with data in its SYN */
	_Bool is_mptcp;
	__u64 tcp_mstamp; /* us: when it sent or got something last */
	__u8 bpf_sock_ops_cb_flags;
} __attribute__((preserve_access_index));

struct mptcp_subflow_context {
	__u64 remote_key; /* 0: not known, or not the first subflow of its connection */
	__u32 token;
	__u32 request_mptcp : 1; /* it sent the connection's first SYN */
	__u32 subflow_id; /* 0: the peer has joined it, and the join is not finished */
} __attribute__((preserve_access_index));

#define REQUEST_MPTCP(what) __builtin_preserve_field_info(((struct mptcp_subflow_context *)0)->request_mptcp, what)
#define SYN_DATA_ACKED(what) __builtin_preserve_field_info(((struct tcp_sock *)0)->syn_data_acked, what)

/* What programs of iterators get. */
struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

static void *(*const bpf_sk_storage_get)(void *map, void *sk, void *value, __u64 flags) = (void *)107;
static long (*const bpf_sk_storage_delete)(void *map, void *sk) = (void *)108;
static long (*const bpf_probe_read_kernel)(void *to, __u32 size, const void *from) = (void *)113;
static long (*const bpf_seq_write)(struct seq_file *seq, const void *data, __u32 length) = (void *)127;
static struct tcp_sock *(*const bpf_skc_to_tcp_sock)(void *sk) = (void *)137;

/* A field of one bit, by what is above: READ_BIT(tcp, SYN_DATA_ACKED). 0 where it cannot be read. */
static __always_inline int read_bit(const void *at, __u32 left, __u32 right)
{
	__u32 bits = 0;

	if (bpf_probe_read_kernel(&bits, sizeof(bits), at))
		return 0;
	return (__u64)bits << left >> right & 1;
}

#define READ_BIT(of, field) read_bit((const void *)(of) + field(BYTE_OFFSET), field(LEFT_SHIFT), field(RIGHT_SHIFT))

#endif
