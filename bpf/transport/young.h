/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Connections that are young. Most stay so, and what lies with a socket for its conversation
 * with the peer costs more than anything else here. So it is made once the connection has
 * lasted, or the peer asks for more than an initial window. Credits are there from the first segment on.
 */
#ifndef BRAID_TRANSPORT_YOUNG_H
#define BRAID_TRANSPORT_YOUNG_H

#include "ask.h"
#include "hear.h"

enum heard {
	HEARD_NOTHING,
	HEARD_WINDOW, /* an initial window, which the socket has */
	HEARD_MORE,
};

/* Does what peers ask for before anything else. */
static __always_inline enum heard hear_window(struct bpf_sock_ops *ops, struct exchange *exchange, __u32 number)
{
	struct verdict verdict = {};

	if (!(exchange->acceptance.allowed & 1U << REQUEST_INITIAL_WINDOW)) {
		__sync_fetch_and_add(&exchange->refused[REQUEST_INITIAL_WINDOW], 1);
		return HEARD_NOTHING;
	}
	judge_initial_window(&exchange->acceptance, number, &verdict);
	if (!verdict.accepted)
		return HEARD_NOTHING;
	grant_initial_window(ops, verdict.value[REQUEST_INITIAL_WINDOW]);
	__sync_fetch_and_add(&exchange->honoured[REQUEST_INITIAL_WINDOW], 1);
	return HEARD_WINDOW;
}

/* What the segment asks for that establishes the connection. */
__noinline int hear_beginning(struct bpf_sock_ops *ops, struct exchange *exchange)
{
	struct address local = {}, remote = {};
	struct requests requests = {};

	if (!exchange || !exchange->acceptance.allowed)
		return HEARD_NOTHING;
	read_addresses(ops, &local, &remote);
	if (!accepts_from(exchange, &remote))
		return HEARD_NOTHING;
	read_options(ops, &requests);
	if (!requests.given)
		return HEARD_NOTHING;
	if (requests.given != 1U << REQUEST_INITIAL_WINDOW)
		return HEARD_MORE;
	return hear_window(ops, exchange, requests.number[REQUEST_INITIAL_WINDOW]);
}

/* Returns the callbacks for what the connection may ask for. */
static __always_inline __u32 ask_beginning(struct bpf_sock_ops *ops, const struct exchange *exchange, struct own *own)
{
	int asks_window = own->set & 1U << OWN_INITIATOR && exchange->asked & 1U << REQUEST_INITIAL_WINDOW;
	int later = asks_later(exchange);

	if (asks_window)
		own->given[SETTING_INITIAL_WINDOW] = exchange->number[REQUEST_INITIAL_WINDOW];
	if (!asks_window && !later)
		return 0;
	if (!(ops->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG))
		own->set |= 1U << OWN_WRITES | (__u32)!later << OWN_ASKS_ONCE;
	return BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
}

/* What a connection needs at once when it is established. Returns 1 where it has to converse. */
static __always_inline int begin(struct bpf_sock_ops *ops, struct settings *settings, struct exchange *exchange, struct own *own)
{
	__u32 wanted = BPF_SOCK_OPS_RTT_CB_FLAG;
	int heard = HEARD_NOTHING;

	if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		own->set |= 1U << OWN_INITIATOR;
	if (exchange && !(exchange->flags & EXCHANGE_CREDITS)) {
		heard = hear_beginning(ops, exchange);
		wanted |= ask_beginning(ops, exchange, own);
	}
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | wanted);
	if (heard != HEARD_WINDOW)
		widen_initial_window(ops, settings);
	return heard == HEARD_MORE;
}

static __always_inline void reserve_window(struct bpf_sock_ops *ops, struct own *own)
{
	own->set &= ~(1U << OWN_RESERVED);
	if (own->given[SETTING_INITIAL_WINDOW] && is_before_data(ops) && !bpf_reserve_hdr_opt(ops, 2 * REQUEST_BYTES, 0))
		own->set |= 1U << OWN_RESERVED;
}

static __always_inline void write_window(struct bpf_sock_ops *ops, struct own *own)
{
	__be32 option[2] = { option_head(1), request_word(REQUEST_INITIAL_WINDOW, own->given[SETTING_INITIAL_WINDOW]) };

	if (own->set & 1U << OWN_RESERVED)
		bpf_store_hdr_opt(ops, option, sizeof(option), 0);
	own->set &= ~(1U << OWN_RESERVED);
}

/* Data has been acknowledged: an initial window is not asked for any more. */
static __always_inline void stop_asking(struct bpf_sock_ops *ops, struct own *own)
{
	if (!(own->set & 1U << OWN_ASKS_ONCE))
		return;
	own->set &= ~(1U << OWN_ASKS_ONCE | 1U << OWN_WRITES);
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

/*
 * A call for each packet: a young connection needs nothing for it but to ask for an initial
 * window. Returns 1 where it is young.
 */
static __always_inline int is_done_young(struct bpf_sock_ops *ops, struct bpf_sock *sk)
{
	__u32 op = ops->op;
	struct own *own;

	if (op != BPF_SOCK_OPS_RTT_CB && op != BPF_SOCK_OPS_HDR_OPT_LEN_CB && op != BPF_SOCK_OPS_WRITE_HDR_OPT_CB)
		return 0;
	own = bpf_sk_storage_get(&transport_sockets, sk, 0, 0);
	if (!own || own->set & 1U << OWN_CREDITS || bpf_ktime_get_coarse_ns() >= own->since + SETTLED_AFTER)
		return 0;
	if (op == BPF_SOCK_OPS_HDR_OPT_LEN_CB)
		reserve_window(ops, own);
	else if (op == BPF_SOCK_OPS_WRITE_HDR_OPT_CB)
		write_window(ops, own);
	else
		stop_asking(ops, own);
	return 1;
}

#endif
