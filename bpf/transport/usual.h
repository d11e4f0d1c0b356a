/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Most connections are short, and what lies with a socket costs them more than all that they
 * get. So a socket that has what is usual in its namespace gets its settings and no note of its
 * own: what such a socket had, and what it got, is noted once for the namespace. A flag says so
 * at the socket, until the connection has lasted and has a note of its own.
 */
#ifndef BRAID_TRANSPORT_USUAL_H
#define BRAID_TRANSPORT_USUAL_H

#include "young.h"

enum {
	/* The mark. The kernel calls for it when nothing comes back, which costs nothing until then. */
	GIVEN_AS_USUAL = BPF_SOCK_OPS_RTO_CB_FLAG,
	/*
	 * Beside it: the connection may ask once it has lasted. The kernel calls for it when it
	 * retransmits. It stays, as nobody knows whether another program wants it too.
	 */
	MAY_ASK = BPF_SOCK_OPS_RETRANS_CB_FLAG,

	YOUNG_SEGMENTS = 8, /* with data, both ways: more than that is no short connection */
};

/*
 * What the usual socket of a namespace had, and what it gets by the settings of this revision.
 * The agent writes it once no socket has less than that, and takes it away last.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_NAMESPACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64); /* cookie of the network namespace */
	__type(value, struct own);
} transport_usual SEC(".maps");

/* The callbacks that are on. Clang would compute the field's address, which the verifier refuses. */
static __always_inline __u32 callbacks_on(struct bpf_sock_ops *ops)
{
	__u32 flags;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(flags) : "r"(ops), "i"(__builtin_offsetof(struct bpf_sock_ops, bpf_sock_ops_cb_flags)));
	return flags;
}

/* A connection that has been established, too, has the callback of round trips. */
static __always_inline int is_given_as_usual(__u32 flags)
{
	return (flags & (GIVEN_AS_USUAL | BPF_SOCK_OPS_RTT_CB_FLAG)) == (GIVEN_AS_USUAL | BPF_SOCK_OPS_RTT_CB_FLAG);
}

/* A number that the kernel gives and takes. */
struct number {
	__u32 setting;
	int level, option;
};

#define USUAL_NUMBERS                                                                            \
	{                                                                                        \
		{ SETTING_USER_TIMEOUT, SOL_TCP, TCP_USER_TIMEOUT },                             \
		{ SETTING_KEEPALIVE_IDLE, SOL_TCP, TCP_KEEPIDLE },                               \
		{ SETTING_KEEPALIVE_INTERVAL, SOL_TCP, TCP_KEEPINTVL },                          \
		{ SETTING_KEEPALIVE_PROBES, SOL_TCP, TCP_KEEPCNT },                              \
		{ SETTING_KEEPALIVE, SOL_SOCKET, SO_KEEPALIVE },                                 \
	}

enum { COUNT_OF_USUAL_NUMBERS = 5 };

static __always_inline int is_usual(struct bpf_sock_ops *ops, const struct settings *settings, const struct own *usual)
{
	const struct number numbers[] = USUAL_NUMBERS;
	struct congestion congestion = {};
	__u32 i, now = 0;

#pragma unroll
	for (i = 0; i < COUNT_OF_USUAL_NUMBERS; i++)
		if (settings->given & 1U << numbers[i].setting &&
		    (bpf_getsockopt(ops, numbers[i].level, numbers[i].option, &now, sizeof(now)) || now != usual->value[numbers[i].setting]))
			return 0;
	return !(settings->given & 1U << SETTING_CONGESTION_CONTROL) ||
	       (!bpf_getsockopt(ops, SOL_TCP, TCP_CONGESTION, congestion.name, sizeof(congestion.name)) &&
		same(&congestion, &usual->congestion_control));
}

static __always_inline void give_number(struct bpf_sock_ops *ops, struct settings *settings, __u32 setting, int level, int option)
{
	__u32 value = settings->value[setting], bit = 1U << setting;

	if (settings->given & bit && bpf_setsockopt(ops, level, option, &value, sizeof(value)))
		settings->refused |= bit;
}

static __always_inline void give_congestion_control(struct bpf_sock_ops *ops, struct settings *settings, const struct own *usual)
{
	struct congestion wanted = settings->congestion_control;

	if (settings->given & 1U << SETTING_CONGESTION_CONTROL && !same(&wanted, &usual->congestion_control) &&
	    bpf_setsockopt(ops, SOL_TCP, TCP_CONGESTION, wanted.name, sizeof(wanted.name)))
		settings->refused |= 1U << SETTING_CONGESTION_CONTROL;
}

/* Gives a socket its settings. Returns 0 where it needs a note of its own, and gets nothing yet. */
__noinline int give_as_usual(struct bpf_sock_ops *ops, struct settings *settings, struct own *usual)
{
	const struct number numbers[] = USUAL_NUMBERS;
	__u32 i;

	if (!settings || !usual || usual->revision != settings->revision ||
	    callbacks_on(ops) & (GIVEN_AS_USUAL | MAY_ASK | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG) || !is_usual(ops, settings, usual))
		return 0;
#pragma unroll
	for (i = 0; i < COUNT_OF_USUAL_NUMBERS; i++)
		give_number(ops, settings, numbers[i].setting, numbers[i].level, numbers[i].option);
	give_number(ops, settings, SETTING_DELAYED_ACK, SOL_TCP, TCP_BPF_DELACK_MAX);
	give_number(ops, settings, SETTING_MIN_RTO, SOL_TCP, TCP_BPF_RTO_MIN);
	give_congestion_control(ops, settings, usual);
	return 1;
}

static __always_inline int has_asked(struct bpf_sock_ops *ops)
{
	return callbacks_on(ops) & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG ? 1 : 0;
}

/*
 * It sends data of its own, or is about to: their acknowledgement has a call for the round
 * trip, and until then it needs none for each packet. One that only receives has no other.
 */
static __always_inline int rest_until_acknowledged(struct bpf_sock_ops *ops)
{
	if (has_asked(ops))
		bpf_sock_ops_cb_flags_set(ops, callbacks_on(ops) & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	return 1;
}

/* When it was established is known until the application reads: it is at least so old. */
static __always_inline int is_no_more_young(struct bpf_sock_ops *ops, void *sk)
{
	struct tcp_sock *tcp;

	if (ops->data_segs_in + ops->data_segs_out > YOUNG_SEGMENTS)
		return 1;
	tcp = bpf_skc_to_tcp_sock(sk);
	return tcp && tcp->tcp_mstamp - tcp->rcvq_space.time >= SETTLED_AFTER / 1000;
}

static __always_inline int waits_to_ask(struct bpf_sock_ops *ops, void *sk)
{
	return (callbacks_on(ops) & (MAY_ASK | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)) == MAY_ASK && !receives_no_more(sk);
}

static __always_inline int rests_as_receiver(struct bpf_sock_ops *ops, void *sk)
{
	if (is_before_data(ops))
		return 0;
	if (receives_no_more(sk))
		return rest_until_acknowledged(ops);
	return !is_no_more_young(ops, sk);
}

/* A call for each packet. Returns 1 where it needs no look at what the namespace has. */
static __always_inline int rests(struct bpf_sock_ops *ops, void *sk)
{
	__u32 op = ops->op;

	if (op == BPF_SOCK_OPS_RTT_CB)
		return !waits_to_ask(ops, sk) && !is_no_more_young(ops, sk);
	if (op == BPF_SOCK_OPS_WRITE_HDR_OPT_CB)
		return !is_before_data(ops);
	if (op == BPF_SOCK_OPS_HDR_OPT_LEN_CB)
		return !is_pure_ack(ops) ? rest_until_acknowledged(ops) : rests_as_receiver(ops, sk);
	return op == BPF_SOCK_OPS_PARSE_HDR_OPT_CB;
}

static __always_inline int asks_window(const struct exchange *exchange)
{
	return exchange && exchange->asked & 1U << REQUEST_INITIAL_WINDOW;
}

/* Asks for an initial window with the segment that ends the handshake. */
static __always_inline void ask_window(struct bpf_sock_ops *ops, const struct exchange *exchange)
{
	__be32 option[2] = { option_head(1), request_word(REQUEST_INITIAL_WINDOW, exchange->number[REQUEST_INITIAL_WINDOW]) };

	if (ops->op == BPF_SOCK_OPS_HDR_OPT_LEN_CB)
		bpf_reserve_hdr_opt(ops, sizeof(option), 0);
	else
		bpf_store_hdr_opt(ops, option, sizeof(option), 0);
}

/* What the connection needs at once. Returns 1 where it has to converse. */
static __always_inline int begin_as_usual(struct bpf_sock_ops *ops, struct settings *settings, struct exchange *exchange)
{
	__u32 wanted = GIVEN_AS_USUAL | BPF_SOCK_OPS_RTT_CB_FLAG;
	int heard = HEARD_NOTHING;

	if (exchange && asks_later(exchange))
		wanted |= MAY_ASK | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	else if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && asks_window(exchange))
		wanted |= BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	bpf_sock_ops_cb_flags_set(ops, callbacks_on(ops) | wanted);
	if (exchange)
		heard = hear_beginning(ops, exchange);
	if (heard != HEARD_WINDOW)
		widen_initial_window(ops, settings);
	return heard == HEARD_MORE;
}

/* A note of its own for a socket that had none: what it had and got is what is usual. */
static __always_inline struct own *note_usual(void *sk, __u64 netns)
{
	struct own *usual = bpf_map_lookup_elem(&transport_usual, &netns), *own;

	own = bpf_sk_storage_get(&transport_sockets, sk, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!own || own->since)
		return own;
	if (usual)
		*own = *usual;
	own->revision = 0;
	own->since = bpf_ktime_get_ns();
	return own;
}

/* The same of a connection, which has lasted. */
static __always_inline struct own *note_lasting(struct bpf_sock_ops *ops, void *sk, __u64 netns, const struct exchange *exchange)
{
	int is_old = (ops->op == BPF_SOCK_OPS_RTT_CB || ops->op == BPF_SOCK_OPS_HDR_OPT_LEN_CB) && ops->data_segs_in + ops->data_segs_out <= YOUNG_SEGMENTS;
	struct own *own = note_usual(sk, netns);

	if (!own)
		return 0;
	if (is_old)
		own->since -= SETTLED_AFTER;
	if (has_asked(ops) && exchange && (asks_window(exchange) || asks_later(exchange)))
		own->set |= 1U << OWN_WRITES;
	bpf_sock_ops_cb_flags_set(ops, callbacks_on(ops) & ~GIVEN_AS_USUAL);
	return own;
}

/* Its data has been acknowledged: from now on it may only receive. */
static __always_inline void go_on_to_ask(struct bpf_sock_ops *ops, const struct exchange *exchange)
{
	if (exchange && asks_later(exchange))
		bpf_sock_ops_cb_flags_set(ops, callbacks_on(ops) | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

/* A call for a connection that has no note of its own. Returns 1 where it goes on without one. */
static __always_inline int goes_on_as_usual(struct bpf_sock_ops *ops, void *sk, const struct exchange *exchange)
{
	__u32 op = ops->op;

	if (op != BPF_SOCK_OPS_RTT_CB && is_before_data(ops)) {
		if (asks_window(exchange))
			ask_window(ops, exchange);
		return 1;
	}
	if (is_no_more_young(ops, sk))
		return 0;
	if (op == BPF_SOCK_OPS_RTT_CB)
		go_on_to_ask(ops, exchange);
	return 1;
}

/*
 * A connection that begins, or is about to. Returns 1 where that is all. asks: it has to
 * converse at once, with a note of its own.
 */
static __always_inline int starts_as_usual(struct bpf_sock_ops *ops, struct settings *settings, struct exchange *exchange,
					   __u64 *netns, int *asks)
{
	__u32 op = ops->op;

	if (op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB) {
		if (!(callbacks_on(ops) & GIVEN_AS_USUAL))
			return 0;
	} else if (!give_as_usual(ops, settings, bpf_map_lookup_elem(&transport_usual, netns))) {
		return 0;
	}
	if (op == BPF_SOCK_OPS_TCP_CONNECT_CB) {
		bpf_sock_ops_cb_flags_set(ops, callbacks_on(ops) | GIVEN_AS_USUAL);
		return 1;
	}
	*asks = begin_as_usual(ops, settings, exchange);
	return !*asks;
}

#endif
