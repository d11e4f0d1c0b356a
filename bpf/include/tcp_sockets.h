/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What programs on TCP sockets use of the kernel: helpers, and what is read of its
 * structures, whose real layout is found on loading.
 */
#ifndef BRAID_TCP_SOCKETS_H
#define BRAID_TCP_SOCKETS_H

#include "kernel.h"
#include "sock_ops.h"

enum {
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,

	BPF_SOCK_OPS_TCP_CONNECT_CB = 3,
	BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB = 4,
	BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB = 5,
	BPF_SOCK_OPS_TCP_LISTEN_CB = 11,
	BPF_SOCK_OPS_RTT_CB = 12,
	BPF_SOCK_OPS_PARSE_HDR_OPT_CB = 13,
	BPF_SOCK_OPS_HDR_OPT_LEN_CB = 14,
	BPF_SOCK_OPS_WRITE_HDR_OPT_CB = 15,
	BPF_SOCK_OPS_RTT_CB_FLAG = 1 << 3,
	BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG = 1 << 5,
	BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG = 1 << 6,

	SOL_SOCKET = 1,
	SOL_TCP = 6,
	TCP_CONGESTION = 13,
	TCP_BPF_SOCK_OPS_CB_FLAGS = 1008,

	TCP_LISTEN = 10,

	TCP_FIN_SYN_RST_PSH_URG = 0x2f,
	TCP_ACKNOWLEDGES = 0x10,
	TCP_SYNCHRONIZES = 0x02,

	CONGESTION_NAME = 16,
};

struct net {
	__u64 net_cookie;
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

struct tcp_sock;

struct bpf_iter__tcp {
	void *meta;
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

static long (*const bpf_setsockopt)(void *socket, int level, int option, void *value, int length) = (void *)49;
static long (*const bpf_getsockopt)(void *socket, int level, int option, void *value, int length) = (void *)57;
static long (*const bpf_sock_ops_cb_flags_set)(struct bpf_sock_ops *ops, int flags) = (void *)59;
static void *(*const bpf_sk_storage_get)(void *map, void *sk, void *value, __u64 flags) = (void *)107;
static long (*const bpf_sk_storage_delete)(void *map, void *sk) = (void *)108;
static __u64 (*const bpf_get_netns_cookie)(void *ctx) = (void *)122;
static struct tcp_sock *(*const bpf_skc_to_tcp_sock)(void *sk) = (void *)137;
static long (*const bpf_load_hdr_opt)(struct bpf_sock_ops *ops, void *option, __u32 length, __u64 flags) = (void *)142;
static long (*const bpf_store_hdr_opt)(struct bpf_sock_ops *ops, const void *option, __u32 length, __u64 flags) = (void *)143;
static long (*const bpf_reserve_hdr_opt)(struct bpf_sock_ops *ops, __u32 length, __u64 flags) = (void *)144;

/* An acknowledgement without data, which is being made. */
static __always_inline int is_pure_ack(struct bpf_sock_ops *ops)
{
	return !ops->args[0] && !ops->skb_len &&
	       (ops->skb_tcp_flags & (TCP_FIN_SYN_RST_PSH_URG | TCP_ACKNOWLEDGES)) == TCP_ACKNOWLEDGES;
}

/* The name of a congestion control, in whole words. */
struct congestion {
	char name[CONGESTION_NAME];
} __attribute__((aligned(8)));

static __always_inline int same(const struct congestion *a, const struct congestion *b)
{
	const __u64 *x = (const void *)a->name, *y = (const void *)b->name;

	return x[0] == y[0] && x[1] == y[1];
}

#endif
