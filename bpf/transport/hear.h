/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Does what peers ask for where the pod's policy accepts it, and undoes it.
 */
#ifndef BRAID_TRANSPORT_HEAR_H
#define BRAID_TRANSPORT_HEAR_H

#include "heed_credit.h"

enum {
	BPF_EXIST = 2,

	LONGER_THAN_THAT = -28, /* ENOSPC: there is such an option */

	CHANGES_IN_A_SECOND = 16, /* of a socket, as its peer asks */
};

/* It hears earlier, so that what is asked first is heard. */
_Static_assert(ASKS_AFTER == 2 * SETTLED_AFTER, "a connection asks after it hears");

#define LAPSES_AFTER 10000000000ULL /* ns: what was not asked again is undone */

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
#define BY_AGENT (1U << REQUEST_SCHEDULE | 1U << REQUEST_DELAY_THRESHOLD)

/*
 * Tells the agent, once a second while it is asked for. An endpoint has room for so many, so
 * that peers which flood it take no other's. Returns nothing: what the agent does not know
 * of is not done.
 */
__noinline int tell_agent(struct bpf_sock_ops *ops, struct conversation *with)
{
	struct asked_rate_key key = {};
	struct agent_request request = {};
	__u32 *notable;

	if (!with)
		return 0;
	key.netns = bpf_get_netns_cookie(ops);
	notable = bpf_map_lookup_elem(&agent_request_counts, &key.netns);
	if (!notable)
		return 0;
	read_addresses(ops, &key.local, &key.remote);
	read_ports(ops, &key.local_port, &key.remote_port);
	request.heard = bpf_ktime_get_ns();
	if (with->accepted & 1U << REQUEST_SCHEDULE)
		request.strategy = with->value[REQUEST_SCHEDULE];
	if (with->accepted & 1U << REQUEST_DELAY_THRESHOLD)
		request.delay_threshold = with->value[REQUEST_DELAY_THRESHOLD];
	with->noted = request.heard;
	if (!bpf_map_update_elem(&agent_requests, &key, &request, BPF_EXIST))
		return 0;
	if (*notable < MAX_AGENT_REQUESTS_OF_ENDPOINT && !bpf_map_update_elem(&agent_requests, &key, &request, BPF_NOEXIST))
		__sync_fetch_and_add(notable, 1);
	return 0;
}

/* Only before the first data; later the kernel refuses it, and nothing is lost. */
static __always_inline void grant_initial_window(struct bpf_sock_ops *ops, __u32 window)
{
	bpf_setsockopt(ops, SOL_TCP, TCP_BPF_IW, &window, sizeof(window));
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
		grant_initial_window(ops, with->value[REQUEST_INITIAL_WINDOW]);
	if (grant_if(exchange, with, &verdict, REQUEST_RATE, now))
		want_rate(ops, sk, PACER_REQUESTS, with->value[REQUEST_RATE], 0);
	if (verdict.accepted & BY_AGENT &&
	    (grant(exchange, with, &verdict, REQUEST_SCHEDULE, now) | grant(exchange, with, &verdict, REQUEST_DELAY_THRESHOLD, now) ||
	     (verdict.accepted & with->accepted & BY_AGENT && now - with->noted >= SECOND)))
		tell_agent(ops, with);
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
	pace_to_credit(socket, sk, &with->credit, 0);
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
