/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a sock_ops program gets, as bpf.h of the kernel has it, and what it can do. */
#ifndef BRAID_SOCK_OPS_H
#define BRAID_SOCK_OPS_H

#include "kernel.h"

struct bpf_sock;

struct bpf_sock_ops {
	__u32 op;
	__u32 args[4];
	__u32 family;
	__be32 remote_ip4;
	__be32 local_ip4;
	__be32 remote_ip6[4];
	__be32 local_ip6[4];
	__u32 remote_port; /* network order, in the upper half on little-endian machines */
	__u32 local_port;  /* host order */
	__u32 is_fullsock;
	__u32 snd_cwnd; /* segments */
	__u32 srtt_us;  /* smoothed round trip, in eighths of a microsecond */
	__u32 bpf_sock_ops_cb_flags;
	__u32 state;
	__u32 rtt_min;
	__u32 snd_ssthresh;
	__u32 rcv_nxt;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 mss_cache;
	__u32 ecn_flags;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u32 packets_out;
	__u32 retrans_out;
	__u32 total_retrans;
	__u32 segs_in;
	__u32 data_segs_in;
	__u32 segs_out;
	__u32 data_segs_out;
	__u32 lost_out;
	__u32 sacked_out;
	__u32 sk_txhash;
	__u64 bytes_received;
	__u64 bytes_acked;
	/* Their second members keep the room of a pointer on machines where it is shorter. */
	union {
		struct bpf_sock *sk;
		__u64 sk_room;
	};
	union {
		void *skb_data; /* the packet's TCP header */
		__u64 skb_data_room;
	};
	union {
		void *skb_data_end;
		__u64 skb_data_end_room;
	};
	__u32 skb_len; /* of a packet that is being made: without its header */
	__u32 skb_tcp_flags;
};

static long (*const bpf_setsockopt)(void *socket, int level, int option, void *value, int length) = (void *)49;
static long (*const bpf_sock_ops_cb_flags_set)(struct bpf_sock_ops *ops, int flags) = (void *)59;
static __u64 (*const bpf_get_netns_cookie)(void *ctx) = (void *)122;

#endif
