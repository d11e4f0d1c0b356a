// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A congestion control: additive increase by one segment in each round trip,
 * multiplicative decrease to three quarters. It governs each subflow by itself.
 */
#include "kernel.h"

/* What sockets choose it by; up to 15 letters, digits and underscores. */
#ifndef NAME
#define NAME "braid_aimd"
#endif

/* Segments that stay in flight, whatever is lost. */
#ifndef LEAST
#define LEAST 2
#endif

/* What is read and written of the kernel's structure; its layout is found on loading. */
struct tcp_sock {
	__u32 snd_cwnd;
	__u32 snd_cwnd_cnt;
	__u32 snd_cwnd_clamp;
	__u32 snd_ssthresh;
	__u32 prior_cwnd;
	__u32 packets_out;
} __attribute__((preserve_access_index));

/* The members of the kernel's structure that are used, by their names. */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(void *sk);
	void (*cong_avoid)(void *sk, __u32 ack, __u32 acked);
	__u32 (*undo_cwnd)(void *sk);
	char name[16];
};

/* The window after a loss. */
SEC("struct_ops/aimd_ssthresh")
__u32 aimd_ssthresh(__u64 *arguments)
{
	struct tcp_sock *tcp = (void *)arguments[0];
	__u32 window = tcp->snd_cwnd - tcp->snd_cwnd / 4;

	return window > LEAST ? window : LEAST;
}

static __always_inline void set_cwnd(struct tcp_sock *tcp, __u32 window)
{
	tcp->snd_cwnd = window < tcp->snd_cwnd_clamp ? window : tcp->snd_cwnd_clamp;
}

/* Segments were acknowledged. */
SEC("struct_ops/aimd_cong_avoid")
void aimd_cong_avoid(__u64 *arguments)
{
	struct tcp_sock *tcp = (void *)arguments[0];
	__u32 acked = arguments[2], window = tcp->snd_cwnd, count;

	/* A sender that does not fill its window learns nothing about the path. */
	if (tcp->packets_out + acked < window)
		return;
	if (window < tcp->snd_ssthresh) {
		set_cwnd(tcp, window + acked);
		return;
	}
	count = tcp->snd_cwnd_cnt + acked;
	if (count >= window) {
		set_cwnd(tcp, window + 1);
		count = 0;
	}
	tcp->snd_cwnd_cnt = count;
}

/* The loss was none. */
SEC("struct_ops/aimd_undo_cwnd")
__u32 aimd_undo_cwnd(__u64 *arguments)
{
	struct tcp_sock *tcp = (void *)arguments[0];

	return tcp->snd_cwnd > tcp->prior_cwnd ? tcp->snd_cwnd : tcp->prior_cwnd;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops aimd = {
	.ssthresh = (void *)aimd_ssthresh,
	.cong_avoid = (void *)aimd_cong_avoid,
	.undo_cwnd = (void *)aimd_undo_cwnd,
	.name = NAME,
};

char _license[] SEC("license") = "GPL";
