/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Has a socket send no faster than the credit that its peer gives it.
 */
#ifndef BRAID_TRANSPORT_HEED_CREDIT_H
#define BRAID_TRANSPORT_HEED_CREDIT_H

#include "credit_pace.h"
#include "pacing.h"
#include "exchange.h"

#define SECOND 1000000000ULL

/*
 * Paces to as much of the credit as the last round trip allows; anew: there is another credit,
 * and the queue that is known is that of the last one.
 */
static __always_inline void pace_to_credit(struct bpf_sock_ops *ops, void *sk, struct credit *credit, int anew)
{
	struct tcp_sock *tcp;
	__u32 share;

	if (!credit->rate)
		return;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return;
	share = share_of_credit(credit->rate, ops->mss_cache, tcp->rack.rtt_us, ops->rtt_min);
	/* A link that is narrow elsewhere is not known before its queue grows. */
	if (share > WHOLE_CREDIT && ops->data_segs_out < SEGMENTS_WITHIN_CREDIT)
		share = WHOLE_CREDIT;
	share = next_share(credit->share, share);
	if (share == credit->share && !anew)
		return;
	credit->share = share;
	want_rate(ops, sk, PACER_CREDITS, greater(credit->rate / WHOLE_CREDIT * share, LEAST_CREDIT), 0);
}

static __always_inline void give_up_credit(void *socket, void *sk, struct credit *credit)
{
	__u32 none = NO_CLAMP;

	if (credit->rate)
		want_rate(socket, sk, PACER_CREDITS, 0, 0);
	if (credit->clamp)
		bpf_setsockopt(socket, SOL_TCP, TCP_BPF_SNDCWND_CLAMP, &none, sizeof(none));
	if (credit->backlog)
		bpf_setsockopt(socket, SOL_TCP, TCP_NOTSENT_LOWAT, &credit->own_backlog, sizeof(credit->own_backlog));
	credit->rate = 0;
	credit->backlog = 0;
	credit->clamp = 0;
	credit->share = 0;
}

/*
 * A connection that begins with a credit begins with no more than that carries in a
 * millisecond. Many that begin together have little each.
 */
static __always_inline void narrow_initial_window(struct bpf_sock_ops *ops, __u64 rate)
{
	__u32 segment = ops->mss_cache, window;

	if (!segment || ops->data_segs_out)
		return;
	window = rate / 1000 / segment;
	if (!window)
		window = 1;
	if (window < ops->snd_cwnd)
		bpf_setsockopt(ops, SOL_TCP, TCP_BPF_IW, &window, sizeof(window));
}

/*
 * The kernel takes a clamp for the threshold of slow start too: one that makes no
 * difference now would have a window that losses have narrowed grow too fast.
 */
static __always_inline int binds(__u32 window, __u32 wanted, __u32 clamp)
{
	return (wanted > clamp && window >= clamp) || (wanted < clamp && window > wanted);
}

/* The rate to which a sender paces, as far as its credit goes. */
static __always_inline __u64 rate_within(const struct credit *credit)
{
	__u32 share = credit->share;

	return share && share < WHOLE_CREDIT ? credit->rate / WHOLE_CREDIT * share : credit->rate;
}

/*
 * No more is under way than the pace carries in a round trip and WINDOW_TIME. While the
 * peer still acknowledges each segment at once, one is enough: many that begin together
 * would fill its buffer with two of each.
 */
static __always_inline void clamp_window(struct bpf_sock_ops *ops, struct credit *credit)
{
	__u32 segment = ops->mss_cache, clamp, least = ops->data_segs_out < SEGMENTS_ACKNOWLEDGED_AT_ONCE ? 1 : 2;
	__u64 time = (ops->srtt_us >> 3) + WINDOW_TIME, bytes;

	if (!segment || !credit->rate)
		return;
	bytes = lesser(rate_within(credit) * lesser(time, 10000000) / 1000000, 1 << 30);
	clamp = greater(bytes / segment + least - 1, least);
	if (credit->clamp && !binds(ops->snd_cwnd, clamp, credit->clamp))
		return;
	if (!bpf_setsockopt(ops, SOL_TCP, TCP_BPF_SNDCWND_CLAMP, &clamp, sizeof(clamp)))
		credit->clamp = clamp;
}

/*
 * A subflow of MPTCP takes no more from its connection than it sends in BACKLOG_TIME: the
 * rest goes to those that are idle sooner. The kernel deals it out 64 kB at a time, of
 * which some would wait long at the pace of a credit.
 */
static __always_inline void bound_backlog(struct bpf_sock_ops *ops, struct bpf_sock *sk, struct credit *credit)
{
	__u32 segment = ops->mss_cache, backlog;
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	if (!tcp || !tcp->is_mptcp)
		return;
	if (!credit->backlog && bpf_getsockopt(ops, SOL_TCP, TCP_NOTSENT_LOWAT, &credit->own_backlog, sizeof(credit->own_backlog)))
		return;
	backlog = lesser(greater(credit->rate / 1000 * BACKLOG_TIME, segment * SEGMENTS_OF_BACKLOG), 1 << 30);
	if (!bpf_setsockopt(ops, SOL_TCP, TCP_NOTSENT_LOWAT, &backlog, sizeof(backlog)))
		credit->backlog = backlog;
}

/* So often in a second a peer may have the pace changed. */
static __always_inline int may_pace_anew(struct credit *credit, __u64 now)
{
	if (now - credit->changes_since >= SECOND) {
		credit->changes_since = now;
		credit->changes = 0;
	}
	return credit->changes++ < CREDITS_IN_A_SECOND;
}

static __always_inline void heed_credit(struct bpf_sock_ops *ops, struct bpf_sock *sk, struct exchange *exchange,
					struct credit *credit, __u32 number)
{
	__u64 rate = rate_of(number), now = bpf_ktime_get_ns();

	if (!rate)
		return;
	rate = greater(rate, LEAST_CREDIT);
	if (rate != credit->rate && !may_pace_anew(credit, now))
		return;
	credit->heard = now;
	if (rate == credit->rate)
		return;
	if (!credit->rate)
		__sync_fetch_and_add(&exchange->honoured[REQUEST_CREDIT], 1);
	credit->share = share_of_other(credit->share, credit->rate, rate);
	credit->rate = rate;
	pace_to_credit(ops, sk, credit, 1);
	clamp_window(ops, credit);
	bound_backlog(ops, sk, credit);
	narrow_initial_window(ops, rate);
}

#endif
