/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Writes what a socket asks its peer for, and the credits that it gives.
 */
#ifndef BRAID_TRANSPORT_ASK_H
#define BRAID_TRANSPORT_ASK_H

#include "asked_by_rules.h"
#include "exchange.h"

static __always_inline __u32 rate_to_ask(const struct conversation *with)
{
	return with->rate & 0xffff;
}

/* That of a rule goes before the policy's. */
static __always_inline __u32 congestion_control_to_ask(const struct exchange *exchange, const struct conversation *with)
{
	__u32 of_rule = with->rate >> 16;

	return of_rule ? of_rule : exchange->number[REQUEST_CONGESTION_CONTROL];
}

static __always_inline __u32 number_to_ask(const struct exchange *exchange, const struct conversation *with, __u32 type)
{
	if (type == REQUEST_CREDIT)
		return with->credit.number;
	if (type == REQUEST_CONGESTION_CONTROL)
		return congestion_control_to_ask(exchange, with);
	if (type == REQUEST_SCHEDULE && with->schedule)
		return with->schedule;
	return type == REQUEST_RATE ? rate_to_ask(with) : exchange->number[type];
}

/* Nothing but the handshake has been sent or has come. */
static __always_inline int is_before_data(struct bpf_sock_ops *ops)
{
	return !ops->data_segs_out && !ops->data_segs_in;
}

/* It is of use before the peer's first data alone. */
static __always_inline __u32 initial_window_to_ask(struct bpf_sock_ops *ops, const struct exchange *exchange,
						   const struct conversation *with)
{
	return with->initiator && is_before_data(ops) ? exchange->asked & 1U << REQUEST_INITIAL_WINDOW : 0;
}

static __always_inline __u32 to_ask(const struct exchange *exchange, const struct conversation *with)
{
	__u32 due = exchange->asked & ~(1U << REQUEST_INITIAL_WINDOW);

	if (rate_to_ask(with))
		due |= 1U << REQUEST_RATE;
	if (with->rate >> 16)
		due |= 1U << REQUEST_CONGESTION_CONTROL;
	if (with->schedule)
		due |= 1U << REQUEST_SCHEDULE;
	return due;
}

/* The rate of the subflow's path; 0 for none. */
static __always_inline __u32 rate_of_path(struct bpf_sock_ops *ops, const struct exchange *exchange)
{
	struct asked_rate_key key = {};
	__u32 *rate;

	if (!(exchange->flags & EXCHANGE_RATES))
		return 0;
	key.netns = bpf_get_netns_cookie(ops);
	read_addresses(ops, &key.local, &key.remote);
	read_ports(ops, &key.local_port, &key.remote_port);
	rate = bpf_map_lookup_elem(&asked_rates, &key);
	return rate ? *rate & 0xffff : 0;
}

/*
 * Adds what rules ask for on the subflow: of two rates the lesser, whose number is the
 * lesser, too.
 */
static __always_inline __u32 with_rules(struct bpf_sock_ops *ops, const struct exchange *exchange,
					struct conversation *with, __u32 rate, __u64 now)
{
	struct asked_by_rules *asked;
	struct bpf_sock *sk = ops->sk;

	with->schedule = 0;
	if (!(exchange->flags & EXCHANGE_RULES) || !sk)
		return rate;
	asked = bpf_sk_storage_get(&asked_by_rules, sk, 0, 0);
	if (!asked || now - asked->looked >= RULES_STALE_AFTER)
		return rate;
	if (asked->rate && (!rate || asked->rate < rate))
		rate = asked->rate & 0xffff;
	with->schedule = asked->schedule & 0xffff;
	return rate | asked->congestion_control << 16;
}

/*
 * Once a second all is due again, from when the connection has lasted: what concerns how long
 * ones behave would cost short ones an option in each acknowledgement.
 */
static __always_inline void begin_round(struct bpf_sock_ops *ops, const struct exchange *exchange,
					struct conversation *with, const struct own *own)
{
	__u64 now = bpf_ktime_get_ns();

	if (now - own->since < ASKS_AFTER || (with->rounds >= ROUNDS_AT_ONCE && now - with->round_began < ROUND_AFTER))
		return;
	with->rate = with_rules(ops, exchange, with, rate_of_path(ops, exchange), now);
	with->due = to_ask(exchange, with);
	with->round_began = now;
	if (with->rounds < ROUNDS_AT_ONCE)
		with->rounds++;
}

/* The requests that are due, one after the other; returns how many. */
__noinline __u32 compose(struct exchange *exchange, struct conversation *with)
{
	__u32 words = 0, turn;

	if (!exchange || !with)
		return 0;
#pragma unroll
	for (turn = REQUEST_INITIAL_WINDOW; turn < REQUESTS; turn++) {
		__u32 type = in_turn(turn);

		if (!(with->due & 1U << type))
			continue;
		words++;
		with->option[words & (OPTION_WORDS - 1)] =
			request_word(type, number_to_ask(exchange, with, type));
	}
	return words;
}

/* Takes what the next segment says off the list. */
__noinline int note_asked(struct conversation *with)
{
	struct portion portion;

	if (!with)
		return 0;
	portion.words = with->words;
	portion.user_timeout = with->user_timeout;
	with->due = due_after(with->due, portion);
	return 0;
}

/* Reserves as much of these bytes as there is room for. */
static __always_inline __u32 reserve(struct bpf_sock_ops *ops, __u32 bytes)
{
	int i;

#pragma clang loop unroll(disable)
	for (i = 0; i < REQUESTS + 1 && bytes; i++, bytes -= REQUEST_BYTES)
		if (!bpf_reserve_hdr_opt(ops, bytes, 0))
			return bytes;
	return 0;
}

/* The answer to a SYN, but for one with a cookie, which nothing is remembered of. */
static __always_inline int is_answer(struct bpf_sock_ops *ops)
{
	return !ops->args[0] && (ops->skb_tcp_flags & (TCP_SYNCHRONIZES | TCP_ACKNOWLEDGES)) == (TCP_SYNCHRONIZES | TCP_ACKNOWLEDGES);
}

/*
 * Gives a credit with the answer to a SYN, so that it is there before the first data. The
 * socket is made later.
 */
__noinline int answer_with_credit(struct bpf_sock_ops *ops, const struct exchange *exchange)
{
	__u32 is_written = ops->op == BPF_SOCK_OPS_WRITE_HDR_OPT_CB, number;
	struct address local = {}, remote = {};
	__be32 option[2];

	if (!exchange)
		return 0;
	read_addresses(ops, &local, &remote);
	if (!has_credits(exchange, &remote))
		return 0;
	number = first_number(ops, !is_written);
	if (!is_written) {
		bpf_reserve_hdr_opt(ops, sizeof(option), 0); /* joins have no room, and get it with the next one */
		return 0;
	}
	option[0] = option_head(1);
	option[1] = request_word(REQUEST_CREDIT, number);
	bpf_store_hdr_opt(ops, option, sizeof(option), 0);
	return 0;
}

static __always_inline __u32 beginning_of(struct bpf_sock_ops *ops, const struct conversation *with)
{
	if (with->credit.told_at || ops->data_segs_in)
		return UNDER_WAY;
	if (with->initiator)
		return BEGINS_BY_ITSELF;
	return ops->data_segs_out ? UNDER_WAY : BEGINS_AS_ANSWER;
}

/* The verifier takes this and others by themselves. */
__noinline int reserve_room(struct bpf_sock_ops *ops, struct exchange *exchange, struct conversation *with, struct own *own)
{
	struct portion portion;
	__u32 words, timeout;

	if (!exchange || !with || !own)
		return 0;
	with->words = 0;
	with->user_timeout = 0;
	if (!with->due)
		begin_round(ops, exchange, with, own);
	with->due &= ~(1U << REQUEST_INITIAL_WINDOW);
	with->due |= initial_window_to_ask(ops, exchange, with);
	if (with->credits && hand_out(ops, &with->credit, beginning_of(ops, with)))
		with->due |= 1U << REQUEST_CREDIT;
	if (!with->due)
		return 0;
	words = compose(exchange, with);
	timeout = with->due >> REQUEST_USER_TIMEOUT & 1;
	portion = portion_of(words, timeout, reserve(ops, bytes_of(words, timeout)));
	with->words = portion.words;
	with->user_timeout = portion.user_timeout;
	note_asked(with);
	with->option[0] = option_head(with->words);
	return 0;
}

static __always_inline void write_options(struct bpf_sock_ops *ops, const struct exchange *exchange,
					  struct conversation *with)
{
	__be32 timeout = user_timeout_word(exchange->number[REQUEST_USER_TIMEOUT]);
	__u32 bytes = size_within(REQUEST_BYTES * (with->words + 1), sizeof(with->option));

	if (with->words && bytes)
		bpf_store_hdr_opt(ops, with->option, bytes, 0);
	if (with->user_timeout)
		bpf_store_hdr_opt(ops, &timeout, sizeof(timeout), 0);
	with->words = 0;
	with->user_timeout = 0;
}

#endif
