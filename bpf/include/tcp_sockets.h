/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What programs on TCP sockets use of the kernel. */
#ifndef BRAID_TCP_SOCKETS_H
#define BRAID_TCP_SOCKETS_H

#include "kernel_structs.h"
#include "sock_ops.h"

enum {
	BPF_SOCK_OPS_TCP_CONNECT_CB = 3,
	BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB = 4,
	BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB = 5,
	BPF_SOCK_OPS_TCP_LISTEN_CB = 11,
	BPF_SOCK_OPS_RTT_CB = 12,
	BPF_SOCK_OPS_PARSE_HDR_OPT_CB = 13,
	BPF_SOCK_OPS_HDR_OPT_LEN_CB = 14,
	BPF_SOCK_OPS_WRITE_HDR_OPT_CB = 15,
	BPF_SOCK_OPS_RTO_CB_FLAG = 1 << 0,
	BPF_SOCK_OPS_RETRANS_CB_FLAG = 1 << 1,
	BPF_SOCK_OPS_RTT_CB_FLAG = 1 << 3,
	BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG = 1 << 5,
	BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG = 1 << 6,

	SOL_SOCKET = 1,
	SOL_TCP = 6,
	TCP_CONGESTION = 13,
	TCP_NOTSENT_LOWAT = 25,
	TCP_BPF_SOCK_OPS_CB_FLAGS = 1008,

	TCP_SYN_SENT = 2,
	TCP_LISTEN = 10,

	TCP_FIN_SYN_RST_PSH_URG = 0x2f,
	TCP_ACKNOWLEDGES = 0x10,
	TCP_SYNCHRONIZES = 0x02,

	CONGESTION_NAME = 16,
};

static long (*const bpf_getsockopt)(void *socket, int level, int option, void *value, int length) = (void *)57;
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
