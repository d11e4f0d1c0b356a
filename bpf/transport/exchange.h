/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What pods ask their peers for and accept of them, as the agent writes it, and what each
 * socket has of it. What is asked travels on acknowledgements without data alone, so that no
 * segment grows beyond the MTU, and takes only the room that is left there.
 */
#ifndef BRAID_TRANSPORT_EXCHANGE_H
#define BRAID_TRANSPORT_EXCHANGE_H

#include "requests.h"
#include "settings.h"
#include "credits.h"

enum {
	MAX_ACCEPTED_PREFIXES = 16,
	MAX_ASKED_RATES = 65536,
	MAX_AGENT_REQUESTS = 65536,
};

/* What the agent knows too. */
enum agent_request_limits {
	MAX_AGENT_REQUESTS_OF_ENDPOINT = 4096,
	AGENT_REQUEST_LAPSES_AFTER = 10, /* s */
};

SHARED(enum, agent_request_limits);

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

/* What a peer asks for and the agent has to do; it takes it out of the map some time after. */
struct agent_request {
	__u64 heard; /* when it was asked for last: CLOCK_MONOTONIC */
	__u32 strategy;        /* the hash of its name; 0: none */
	__u32 delay_threshold; /* ms; 0: none */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_AGENT_REQUESTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct asked_rate_key);
	__type(value, struct agent_request);
} agent_requests SEC(".maps");

/* How many of them the sockets of a network namespace have; the agent counts them anew. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_NAMESPACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64); /* cookie of the network namespace */
	__type(value, __u32);
} agent_request_counts SEC(".maps");

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

/* An initial window is asked for before the first data alone. */
static __always_inline int asks_later(const struct exchange *exchange)
{
	return exchange->asked & ~(1U << REQUEST_INITIAL_WINDOW) || exchange->flags & (EXCHANGE_RATES | EXCHANGE_RULES);
}

/*
 * The callbacks that the socket needs for this exchange; none for none. The kernel shows each
 * segment of MPTCP to who hears, so that is left until the connection has lasted: before, the
 * segment that establishes it is seen anyway.
 */
static __always_inline __u32 callbacks_of(const struct exchange *exchange, const struct conversation *with, int lasts,
					  int begins)
{
	__u32 flags = 0;

	if (exchange && (asks_later(exchange) || (begins && with->initiator && exchange->asked)))
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

#endif
