/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What sockets get, what they had before, and how one goes from the one to the other. */
#ifndef BRAID_TRANSPORT_SETTINGS_H
#define BRAID_TRANSPORT_SETTINGS_H

#include "tcp_sockets.h"
#include "shared.h"

enum {
	MAX_NAMESPACES = 4096,

	SO_RCVBUF = 8,
	SO_KEEPALIVE = 9,
	TCP_KEEPIDLE = 4,
	TCP_KEEPINTVL = 5,
	TCP_KEEPCNT = 6,
	TCP_USER_TIMEOUT = 18,
	TCP_BPF_IW = 1001,
	TCP_BPF_DELACK_MAX = 1003,
	TCP_BPF_RTO_MIN = 1004,

	/* The kernel's own, in microseconds: programs cannot read those of a socket. */
	OWN_DELAYED_ACK = 200000,
	OWN_MIN_RTO = 200000,

	/* MPTCP gives a joined subflow what the connection has, after it was established. */
	SETTLED_AFTER = 50000000, /* ns */
};

/* The settings that a namespace can have: numbers of bits. */
enum setting {
	SETTING_CONGESTION_CONTROL,
	SETTING_INITIAL_WINDOW,
	SETTING_USER_TIMEOUT,
	SETTING_KEEPALIVE_IDLE,
	SETTING_KEEPALIVE_INTERVAL,
	SETTING_KEEPALIVE_PROBES,
	SETTING_KEEPALIVE, /* it is on; behind the three others */
	SETTING_DELAYED_ACK,
	SETTING_MIN_RTO,
	SETTING_RECEIVE_BUFFER,
	SETTINGS,
	OWN_ASKS_ONCE = 26,    /* not one: the socket asks for an initial window and later for nothing */
	OWN_RESERVED = 27,     /* not one: the next segment has room for that */
	OWN_INITIATOR = 28,    /* not one: the socket sent the SYN */
	OWN_WRITES = 29,       /* not one: it has the callback for options, and no conversation yet that says so */
	OWN_CREDITS = 30,      /* not one: the socket gives and gets credits, from its first segment on */
	SETTING_EXCHANGE = 31, /* not one: there is an exchange with peers */
};

SHARED(enum, setting);

/* What the sockets of a network namespace get. */
struct settings {
	__u32 given;           /* a bit for each setting */
	__u32 refused;         /* likewise, those that the kernel refused to some socket */
	__u32 value[SETTINGS]; /* in the units of the kernel's option */
	__u32 revision;        /* another one for other settings; never 0 */
	struct congestion congestion_control;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_NAMESPACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64); /* cookie of the network namespace */
	__type(value, struct settings);
} transport_settings SEC(".maps");

/* What a socket had before, and what it got; it goes with the socket. */
struct own {
	__u32 set;      /* a bit for each setting that it got */
	__u32 revision; /* of the settings that it got last; 0 while it has yet to settle */
	__u64 since;    /* when it was seen first */
	__u32 value[SETTINGS];
	__u32 given[SETTINGS]; /* of the initial window what it asks its peer for, before its first data */
	struct congestion congestion_control, given_congestion_control;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct own);
} transport_sockets SEC(".maps");

/*
 * One setting, which the kernel has as a number. The socket's own is noted before it gets
 * another; one that is not given any more goes back, unless the application chose another
 * meanwhile. Returns 1 where it has.
 */
static __always_inline int settle_number(void *socket, struct own *own, struct settings *settings, __u32 setting,
					  int level, int option)
{
	__u32 value = settings ? settings->value[setting] : 0, now = 0, bit = 1U << setting;
	int given = settings && settings->given & bit, chosen;

	if (!given && !(own->set & bit))
		return 0;
	if (bpf_getsockopt(socket, level, option, &now, sizeof(now))) {
		if (settings)
			settings->refused |= given ? bit : 0;
		return 0;
	}
	if (!given) {
		own->set &= ~bit;
		if (now != own->given[setting])
			return 1;
		value = own->value[setting];
		bpf_setsockopt(socket, level, option, &value, sizeof(value));
		return 0;
	}
	chosen = own->set & bit && now != own->given[setting];
	if (chosen || !(own->set & bit))
		own->value[setting] = now;
	if (now == value && own->set & bit)
		return 0;
	if (bpf_setsockopt(socket, level, option, &value, sizeof(value))) {
		settings->refused |= bit;
		return 0;
	}
	own->set |= bit;
	own->given[setting] = value;
	return chosen;
}

/* One that programs can set and not read; default_value is what sockets have. */
static __always_inline void settle_unseen(void *socket, struct own *own, struct settings *settings, __u32 setting,
					  int option, __u32 default_value)
{
	__u32 value = default_value, bit = 1U << setting;
	int given = settings && settings->given & bit;

	if (!given && !(own->set & bit))
		return;
	if (given)
		value = settings->value[setting];
	own->set &= ~bit;
	if (bpf_setsockopt(socket, SOL_TCP, option, &value, sizeof(value))) {
		if (settings)
			settings->refused |= given ? bit : 0;
		return;
	}
	if (given)
		own->set |= bit;
}

/* The kernel tells of twice what it was asked for. */
static __always_inline void settle_receive_buffer(void *socket, struct own *own, struct settings *settings)
{
	__u32 bit = 1U << SETTING_RECEIVE_BUFFER, now = 0, value;
	int given = settings && settings->given & bit;

	if (!given && !(own->set & bit))
		return;
	if (bpf_getsockopt(socket, SOL_SOCKET, SO_RCVBUF, &now, sizeof(now)))
		return;
	if (given && own->set & bit && now == own->given[SETTING_RECEIVE_BUFFER])
		return;
	if (!given && now != own->given[SETTING_RECEIVE_BUFFER]) {
		own->set &= ~bit;
		return;
	}
	if (given && !(own->set & bit))
		own->value[SETTING_RECEIVE_BUFFER] = now;
	value = given ? settings->value[SETTING_RECEIVE_BUFFER] : own->value[SETTING_RECEIVE_BUFFER] / 2;
	if (bpf_setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value)) ||
	    bpf_getsockopt(socket, SOL_SOCKET, SO_RCVBUF, &now, sizeof(now))) {
		if (settings)
			settings->refused |= given ? bit : 0;
		return;
	}
	own->set = given ? own->set | bit : own->set & ~bit;
	own->given[SETTING_RECEIVE_BUFFER] = now;
	if (settings && given && now < 2 * (__u64)value)
		settings->refused |= bit; /* net.core.rmem_max is smaller */
}

static __always_inline void settle_congestion_control(void *socket, struct own *own, struct settings *settings)
{
	__u32 bit = 1U << SETTING_CONGESTION_CONTROL;
	int given = settings && settings->given & bit;
	struct congestion now = {}, wanted;

	if (!given && !(own->set & bit))
		return;
	if (bpf_getsockopt(socket, SOL_TCP, TCP_CONGESTION, now.name, sizeof(now.name)))
		return;
	if (!given) {
		own->set &= ~bit;
		if (!same(&now, &own->given_congestion_control))
			return;
		wanted = own->congestion_control;
		bpf_setsockopt(socket, SOL_TCP, TCP_CONGESTION, wanted.name, sizeof(wanted.name));
		return;
	}
	wanted = settings->congestion_control;
	if (!(own->set & bit))
		own->congestion_control = now;
	if (!same(&now, &wanted) &&
	    bpf_setsockopt(socket, SOL_TCP, TCP_CONGESTION, wanted.name, sizeof(wanted.name))) {
		settings->refused |= bit;
		return;
	}
	own->set |= bit;
	own->given_congestion_control = wanted;
}

/*
 * An application that chooses how it probes has switched that on, too: nobody sees what
 * was on already. It stays on when the policy goes.
 */
static __always_inline void settle_keepalive(void *socket, struct own *own, struct settings *settings)
{
	int chosen;

	chosen = settle_number(socket, own, settings, SETTING_KEEPALIVE_IDLE, SOL_TCP, TCP_KEEPIDLE);
	chosen |= settle_number(socket, own, settings, SETTING_KEEPALIVE_INTERVAL, SOL_TCP, TCP_KEEPINTVL);
	chosen |= settle_number(socket, own, settings, SETTING_KEEPALIVE_PROBES, SOL_TCP, TCP_KEEPCNT);
	if (chosen)
		own->value[SETTING_KEEPALIVE] = 1;
	settle_number(socket, own, settings, SETTING_KEEPALIVE, SOL_SOCKET, SO_KEEPALIVE);
}

/* All but the initial window, which is for connections that begin. */
static __always_inline void settle(void *socket, struct own *own, struct settings *settings)
{
	settle_congestion_control(socket, own, settings);
	settle_number(socket, own, settings, SETTING_USER_TIMEOUT, SOL_TCP, TCP_USER_TIMEOUT);
	settle_keepalive(socket, own, settings);
	settle_unseen(socket, own, settings, SETTING_DELAYED_ACK, TCP_BPF_DELACK_MAX, OWN_DELAYED_ACK);
	settle_unseen(socket, own, settings, SETTING_MIN_RTO, TCP_BPF_RTO_MIN, OWN_MIN_RTO);
	settle_receive_buffer(socket, own, settings);
}

static __always_inline void widen_initial_window(void *socket, struct settings *settings)
{
	__u32 window = settings->value[SETTING_INITIAL_WINDOW];

	if (!(settings->given & 1 << SETTING_INITIAL_WINDOW))
		return;
	if (bpf_setsockopt(socket, SOL_TCP, TCP_BPF_IW, &window, sizeof(window)))
		settings->refused |= 1 << SETTING_INITIAL_WINDOW;
}

#endif
