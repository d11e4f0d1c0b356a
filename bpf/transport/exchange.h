/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Asks the peers of pods, and does what they ask where the pod's policy accepts it. What
 * is asked travels on acknowledgements without data alone, so that no segment grows
 * beyond the MTU, and takes only the room that is left there.
 */
#ifndef BRAID_TRANSPORT_EXCHANGE_H
#define BRAID_TRANSPORT_EXCHANGE_H

#include "pacing.h"
#include "requests.h"
#include "asked_by_rules.h"
#include "settings.h"
#include "credits.h"

enum {
	MAX_ACCEPTED_PREFIXES = 16,
	MAX_ASKED_RATES = 65536,
	MAX_WISHES = 65536,

	BPF_EXIST = 2,

	LONGER_THAN_THAT = -28, /* ENOSPC: there is such an option */

	CHANGES_IN_A_SECOND = 16,   /* of a socket, at its peer's wish */
};

/* It hears earlier, so that what is asked first is heard. */
_Static_assert(ASKS_AFTER == 2 * SETTLED_AFTER, "a connection asks after it hears");
#define LAPSES_AFTER 10000000000ULL /* ns: what was not asked again is undone */
#define SECOND 1000000000ULL

/* What the agent knows too. */
enum wish_limits {
	MAX_WISHES_OF_ENDPOINT = 4096,
	WISH_LAPSES_AFTER = 10, /* s */
};

SHARED(enum, wish_limits);

enum {
	EXCHANGE_RATES = 1 << 0,   /* rates are asked for on some paths */
	EXCHANGE_CREDITS = 1 << 1, /* credits are given to peers, and taken from them */
	EXCHANGE_RULES = 1 << 2,   /* rules ask for something on the subflows that they match */
};

struct prefix {
	struct address address;
	struct address mask;
	__u32 ipv4; /* 1: of IPv4, which addresses of IPv6 are not within, nor the other way round */
};

/* What the sockets of a network namespace ask for, and what they accept. */
struct exchange {
	__u32 revision; /* another one for another content; never 0 */
	__u32 flags;
	__u32 asked;    /* a bit for each type */
	__u32 prefixes; /* so many are in use */
	__u32 failed;   /* a bit for each type that the kernel refused to some socket */
	__u32 credit_prefixes;
	__u32 number[REQUESTS];
	struct prefix from[MAX_ACCEPTED_PREFIXES];
	struct prefix credit_peers[MAX_ACCEPTED_PREFIXES];
	struct acceptance acceptance;
	__u64 honoured[REQUESTS]; /* sockets that got it, and got it anew */
	__u64 refused[REQUESTS];  /* sockets whose peer was refused it */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_NAMESPACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64); /* cookie of the network namespace */
	__type(value, struct exchange);
} transport_exchanges SEC(".maps");

struct asked_rate_key {
	struct address local;
	struct address remote;
	__u64 netns;
	__be16 local_port;
	__be16 remote_port;
	__u32 pad;
};

/* The rates to ask for, by subflow, in the form of the request: the agent knows its path. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_ASKED_RATES);
	__type(key, struct asked_rate_key);
	__type(value, __u32);
} asked_rates SEC(".maps");

/* What the agent has to do at a peer's wish; it takes it out of the map some time after. */
struct wish {
	__u64 heard; /* when it was asked for last: CLOCK_MONOTONIC */
	__u32 strategy;        /* the hash of its name; 0: none */
	__u32 delay_threshold; /* ms; 0: none */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_WISHES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct asked_rate_key);
	__type(value, struct wish);
} transport_wishes SEC(".maps");

/* How many of them the sockets of a network namespace have; the agent counts them anew. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_NAMESPACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64); /* cookie of the network namespace */
	__type(value, __u32);
} transport_wishers SEC(".maps");

/* What a socket asks its peer for, and has been asked for; it goes with the socket. */
struct conversation {
	__u32 revision;     /* of the exchange that it follows */
	__u32 flags;        /* callbacks that are on for it alone */
	__u32 initiator;    /* 1: the socket sent the SYN */
	__u32 accepts;      /* 1: the peer is one of those whose requests are accepted */
	__u32 credits;      /* 1: it is one that gets credits, and whose credits are heeded */

	__u64 round_began;
	__u32 rounds;
	__u32 due;          /* what is still to be asked in this round */
	__u32 rate;         /* to ask for: a rate, and above it 16 bits of a rule's congestion control; 0: none */
	__u32 schedule;     /* to ask for: that of a rule; 0: none */
	__u32 words;        /* of requests in the next segment */
	__u32 user_timeout; /* 1: the next segment has it */
	__be32 option[OPTION_WORDS];

	__u32 accepted;     /* a bit for each type */
	__u32 told_refused; /* likewise; counted already */
	__u64 value[REQUESTS];
	__u64 heard[REQUESTS]; /* when it was asked for last */
	__u64 changes_since;
	__u32 changes;
	__u64 noted;        /* when the agent was told last of what it has to do */
	struct credit credit;
	struct congestion congestion_control;
	struct settings all; /* those of the policy, and over them what the peer asked for */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct conversation);
} transport_conversations SEC(".maps");

static __always_inline __u32 is_ipv4(const struct address *address)
{
	return !address->word[0] && !address->word[1] && address->word[2] == bpf_htonl(0xffff);
}

static __always_inline int is_within(const struct address *address, const struct prefix *prefix)
{
	int i;

	if (is_ipv4(address) != prefix->ipv4)
		return 0;
#pragma unroll
	for (i = 0; i < 4; i++)
		if ((address->word[i] & prefix->mask.word[i]) != prefix->address.word[i])
			return 0;
	return 1;
}

static __always_inline int accepts_from(const struct exchange *exchange, const struct address *peer)
{
	__u32 i;

	if (!exchange->acceptance.allowed)
		return 0;
	for (i = 0; i < MAX_ACCEPTED_PREFIXES && i < exchange->prefixes; i++)
		if (is_within(peer, &exchange->from[i]))
			return 1;
	return 0;
}

static __always_inline int has_credits(const struct exchange *exchange, const struct address *peer)
{
	__u32 i;

	if (!(exchange->flags & EXCHANGE_CREDITS))
		return 0;
	for (i = 0; i < MAX_ACCEPTED_PREFIXES && i < exchange->credit_prefixes; i++)
		if (is_within(peer, &exchange->credit_peers[i]))
			return 1;
	return 0;
}

/*
 * The callbacks that the socket needs for this exchange; none for none. The kernel shows each
 * segment of MPTCP to who hears, so that is left until the connection has lasted: before, the
 * segment that establishes it is seen anyway.
 */
static __always_inline __u32 callbacks_of(const struct exchange *exchange, const struct conversation *with, int lasts)
{
	__u32 flags = 0;

	if (exchange && (exchange->asked || exchange->flags & (EXCHANGE_RATES | EXCHANGE_RULES)))
		flags |= BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	if (exchange && with->credits)
		flags |= BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	if (exchange && ((with->accepts && lasts) || with->credits))
		flags |= BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG;
	return flags;
}

/* Those of others stay: only what was put there is taken away. */
static __always_inline __u32 changed_callbacks(struct conversation *with, __u32 now, __u32 wanted)
{
	__u32 others = now & ~with->flags;

	with->flags = wanted & ~others;
	return others | wanted;
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
}

/* Undoes what the peer was granted; the settings go back when the socket settles. */
static __always_inline void withdraw(void *socket, void *sk, struct conversation *with, struct own *own)
{
	give_up_credit(socket, sk, &with->credit);
	if (with->accepted & 1U << REQUEST_RATE)
		want_rate(socket, sk, PACER_REQUESTS, 0, 0);
	with->accepted = 0;
	own->revision = 0;
}

/*
 * Has the socket follow another exchange of its namespace. What was granted by the last
 * one is judged anew when it is asked for again.
 */
static __always_inline void follow(void *socket, void *sk, const struct exchange *exchange, struct conversation *with,
				   const struct address *peer, struct own *own)
{
	withdraw(socket, sk, with, own);
	with->revision = exchange->revision;
	with->accepts = accepts_from(exchange, peer);
	with->credits = has_credits(exchange, peer);
	own->set &= ~(1U << OWN_CREDITS);
	own->set |= with->credits << OWN_CREDITS;
	with->rounds = 0;
	with->due = 0;
	with->told_refused = 0;
}

enum {
	SETTINGS_OF_KEEPALIVE = 1U << SETTING_KEEPALIVE | 1U << SETTING_KEEPALIVE_IDLE | 1U << SETTING_KEEPALIVE_INTERVAL |
				1U << SETTING_KEEPALIVE_PROBES,
};

/* The settings that come of these requests, bit by bit, and the other way round. */
static __always_inline __u32 settings_of(__u32 requests)
{
	__u32 keepalive = requests >> REQUEST_INACTIVITY_TIMEOUT & 1 ? SETTINGS_OF_KEEPALIVE : 0;

	return (requests >> REQUEST_USER_TIMEOUT & 1) << SETTING_USER_TIMEOUT |
	       (requests >> REQUEST_DELAYED_ACK & 1) << SETTING_DELAYED_ACK |
	       (requests >> REQUEST_CONGESTION_CONTROL & 1) << SETTING_CONGESTION_CONTROL | keepalive;
}

static __always_inline __u32 requests_of(__u32 settings)
{
	return (settings >> SETTING_USER_TIMEOUT & 1) << REQUEST_USER_TIMEOUT |
	       (settings >> SETTING_DELAYED_ACK & 1) << REQUEST_DELAYED_ACK |
	       (settings >> SETTING_CONGESTION_CONTROL & 1) << REQUEST_CONGESTION_CONTROL |
	       (settings & SETTINGS_OF_KEEPALIVE ? 1U << REQUEST_INACTIVITY_TIMEOUT : 0);
}

/* A peer that is silent for so long, and answers none of these probes, is given up. */
static __always_inline void probe_within(struct settings *all, __u32 timeout)
{
	__u32 probes = timeout >= 6 ? 3 : 1, interval = timeout >= 6 ? timeout / 6 : 1;

	all->value[SETTING_KEEPALIVE] = 1;
	all->value[SETTING_KEEPALIVE_PROBES] = probes;
	all->value[SETTING_KEEPALIVE_INTERVAL] = interval;
	all->value[SETTING_KEEPALIVE_IDLE] = timeout - probes * interval;
}

/* What its peer asked for goes over what a socket's own policy gives. */
static __always_inline void add_granted(struct settings *all, const struct conversation *with)
{
	all->given |= settings_of(with->accepted);
	if (with->accepted & 1U << REQUEST_USER_TIMEOUT)
		all->value[SETTING_USER_TIMEOUT] = with->value[REQUEST_USER_TIMEOUT];
	if (with->accepted & 1U << REQUEST_DELAYED_ACK)
		all->value[SETTING_DELAYED_ACK] = with->value[REQUEST_DELAYED_ACK];
	if (with->accepted & 1U << REQUEST_CONGESTION_CONTROL)
		all->congestion_control = with->congestion_control;
	if (with->accepted & 1U << REQUEST_INACTIVITY_TIMEOUT)
		probe_within(all, with->value[REQUEST_INACTIVITY_TIMEOUT]);
}

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

/* Whether the segment asks for something: of MPTCP the kernel shows all. */
static __always_inline int asks(struct bpf_sock_ops *ops)
{
	__u8 option[REQUEST_BYTES] = { OPTION_EXPERIMENT, REQUEST_BYTES, EXPERIMENT >> 8, EXPERIMENT & 0xff };
	__u8 timeout[REQUEST_BYTES] = { OPTION_USER_TIMEOUT };
	long length = bpf_load_hdr_opt(ops, option, sizeof(option), 0);

	return length > 0 || length == LONGER_THAN_THAT || bpf_load_hdr_opt(ops, timeout, sizeof(timeout), 0) > 0;
}

static __always_inline void read_options(struct bpf_sock_ops *ops, struct requests *requests)
{
	__u8 option[OPTION_SPACE] = { OPTION_EXPERIMENT, REQUEST_BYTES, EXPERIMENT >> 8, EXPERIMENT & 0xff };
	__u8 timeout[REQUEST_BYTES] = { OPTION_USER_TIMEOUT };
	long length = bpf_load_hdr_opt(ops, option, sizeof(option), 0);

	if (length > 0 && length <= OPTION_SPACE)
		read_requests(option, length, requests);
	if (bpf_load_hdr_opt(ops, timeout, sizeof(timeout), 0) == sizeof(timeout))
		read_user_timeout(timeout, requests);
}

/* So often in a second a peer may have settings changed. */
static __always_inline int may_change(struct conversation *with, __u64 now)
{
	if (now - with->changes_since >= SECOND) {
		with->changes_since = now;
		with->changes = 0;
	}
	return with->changes++ < CHANGES_IN_A_SECOND;
}

static __always_inline void count_refused(struct exchange *exchange, struct conversation *with, const struct verdict *verdict)
{
	__u32 anew = verdict->refused & ~with->told_refused, type;

	with->told_refused |= anew;
#pragma unroll
	for (type = 0; type < REQUESTS; type++)
		if (anew & 1U << type)
			__sync_fetch_and_add(&exchange->refused[type], 1);
}

/* Notes what is granted of one type; 1 where that is something else than before. */
__noinline int grant(struct exchange *exchange, struct conversation *with, const struct verdict *verdict, __u32 type, __u64 now)
{
	__u32 bit;
	__u64 value;

	if (!exchange || !with || !verdict || type >= REQUESTS)
		return 0;
	bit = 1U << type;
	value = verdict->value[type];
	if (!(verdict->accepted & bit))
		return 0;
	if (with->accepted & bit && with->value[type] == value) {
		with->heard[type] = now;
		return 0;
	}
	if (!may_change(with, now))
		return 0;
	with->heard[type] = now;
	with->accepted |= bit;
	with->value[type] = value;
	if (type == REQUEST_CONGESTION_CONTROL)
		with->congestion_control = exchange->acceptance.congestion_control[value & (MAX_CONGESTION_CONTROLS - 1)];
	__sync_fetch_and_add(&exchange->honoured[type], 1);
	return 1;
}

/* What the node's agent has to carry out, because no program can. */
#define WISHES (1U << REQUEST_SCHEDULE | 1U << REQUEST_DELAY_THRESHOLD)

/*
 * Tells the agent, once a second while it is asked for. An endpoint has room for so many, so
 * that peers which flood it take no other's. Returns nothing: what the agent does not know
 * of is not done.
 */
__noinline int note_wish(struct bpf_sock_ops *ops, struct conversation *with)
{
	struct asked_rate_key key = {};
	struct wish wish = {};
	__u32 *notable;

	if (!with)
		return 0;
	key.netns = bpf_get_netns_cookie(ops);
	notable = bpf_map_lookup_elem(&transport_wishers, &key.netns);
	if (!notable)
		return 0;
	read_addresses(ops, &key.local, &key.remote);
	read_ports(ops, &key.local_port, &key.remote_port);
	wish.heard = bpf_ktime_get_ns();
	if (with->accepted & 1U << REQUEST_SCHEDULE)
		wish.strategy = with->value[REQUEST_SCHEDULE];
	if (with->accepted & 1U << REQUEST_DELAY_THRESHOLD)
		wish.delay_threshold = with->value[REQUEST_DELAY_THRESHOLD];
	with->noted = wish.heard;
	if (!bpf_map_update_elem(&transport_wishes, &key, &wish, BPF_EXIST))
		return 0;
	if (*notable < MAX_WISHES_OF_ENDPOINT && !bpf_map_update_elem(&transport_wishes, &key, &wish, BPF_NOEXIST))
		__sync_fetch_and_add(notable, 1);
	return 0;
}

/* Only before the first data; later the kernel refuses it, and nothing is lost. */
static __always_inline void grant_initial_window(struct bpf_sock_ops *ops, const struct conversation *with)
{
	__u32 window = with->value[REQUEST_INITIAL_WINDOW];

	bpf_setsockopt(ops, SOL_TCP, TCP_BPF_IW, &window, sizeof(window));
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

/*
 * No more is under way than the rate carries in a round trip and WINDOW_TIME. While the
 * peer still acknowledges each segment at once, one is enough: many that begin together
 * would fill its buffer with two of each.
 */
static __always_inline void clamp_window(struct bpf_sock_ops *ops, struct credit *credit)
{
	__u32 segment = ops->mss_cache, clamp, least = ops->data_segs_out < SEGMENTS_ACKNOWLEDGED_AT_ONCE ? 1 : 2;
	__u64 time = (ops->srtt_us >> 3) + WINDOW_TIME, bytes;

	if (!segment || !credit->rate)
		return;
	bytes = lesser(credit->rate * lesser(time, 10000000) / 1000000, 1 << 30);
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
	credit->rate = rate;
	want_rate(ops, sk, PACER_CREDITS, rate, 0);
	clamp_window(ops, credit);
	bound_backlog(ops, sk, credit);
	narrow_initial_window(ops, rate);
}

/* Most segments ask for few of all types, and a call has its price. */
static __always_inline int grant_if(struct exchange *exchange, struct conversation *with, const struct verdict *verdict,
				    __u32 type, __u64 now)
{
	return verdict->accepted & 1U << type ? grant(exchange, with, verdict, type, now) : 0;
}

/* Returns 1 where the socket is to get something else. */
__noinline int hear(struct bpf_sock_ops *ops, struct exchange *exchange, struct conversation *with, struct own *own)
{
	struct requests requests = {};
	struct bpf_sock *sk = ops->sk;
	struct verdict verdict = {};
	__u64 now;

	if (!sk || !exchange || !with || !own)
		return 0;
	read_options(ops, &requests);
	if (requests.given & 1U << REQUEST_CREDIT && with->credits)
		heed_credit(ops, sk, exchange, &with->credit, requests.number[REQUEST_CREDIT]);
	requests.given &= ~(1U << REQUEST_CREDIT);
	if (!requests.given || !with->accepts)
		return 0;
	judge(&exchange->acceptance, &requests, &verdict);
	now = bpf_ktime_get_ns();
	count_refused(exchange, with, &verdict);
	if (grant_if(exchange, with, &verdict, REQUEST_INITIAL_WINDOW, now))
		grant_initial_window(ops, with);
	if (grant_if(exchange, with, &verdict, REQUEST_RATE, now))
		want_rate(ops, sk, PACER_REQUESTS, with->value[REQUEST_RATE], 0);
	if (verdict.accepted & WISHES &&
	    (grant(exchange, with, &verdict, REQUEST_SCHEDULE, now) | grant(exchange, with, &verdict, REQUEST_DELAY_THRESHOLD, now) ||
	     (verdict.accepted & with->accepted & WISHES && now - with->noted >= SECOND)))
		note_wish(ops, with);
	if (grant_if(exchange, with, &verdict, REQUEST_USER_TIMEOUT, now) |
	    grant_if(exchange, with, &verdict, REQUEST_CONGESTION_CONTROL, now) |
	    grant_if(exchange, with, &verdict, REQUEST_INACTIVITY_TIMEOUT, now) |
	    grant_if(exchange, with, &verdict, REQUEST_DELAYED_ACK, now)) {
		own->revision = 0;
		return 1;
	}
	return 0;
}

/*
 * What was not asked for again for a while lapses. That is looked at when the peer
 * acknowledges data, so that silence of a path does not undo a user timeout.
 */
static __always_inline void lapse(struct bpf_sock_ops *socket, void *sk, struct conversation *with, struct own *own)
{
	__u64 now;
	__u32 type;

	if (with->credit.rate && bpf_ktime_get_ns() - with->credit.heard >= CREDIT_LAPSES_AFTER)
		give_up_credit(socket, sk, &with->credit);
	clamp_window(socket, &with->credit);
	if (!(with->accepted & ~(1U << REQUEST_INITIAL_WINDOW)))
		return;
	now = bpf_ktime_get_ns();
#pragma unroll
	for (type = 0; type < REQUESTS; type++) {
		if (type == REQUEST_INITIAL_WINDOW || !(with->accepted & 1U << type) || now - with->heard[type] < LAPSES_AFTER)
			continue;
		with->accepted &= ~(1U << type);
		own->revision = 0;
		if (type == REQUEST_RATE)
			want_rate(socket, sk, PACER_REQUESTS, 0, 0);
	}
}

#endif
