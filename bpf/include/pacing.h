/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The pace of a socket. Several may want one: the socket has the least, and never more
 * than the application's own, which comes back when nobody wants one any more. Programs
 * share the map through the agent (agent/pacing).
 */
#ifndef BRAID_PACING_H
#define BRAID_PACING_H

#include "tcp_sockets.h"

enum {
	SO_MAX_PACING_RATE = 47,
};

/* SO_MAX_PACING_RATE as BPF programs may set it: 32 bits, all of them for none. */
#define NOT_PACED 0xffffffffU
#define FASTEST_PACE (NOT_PACED - 1)

enum pacer {
	PACER_RULES,
	PACER_REQUESTS,
	PACER_CREDITS,
	PACERS,
};

struct pacing {
	__u64 rate[PACERS]; /* bytes a second; 0 where none is wanted */
	__u32 own_rate;     /* the application's */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct pacing);
} paced_sockets SEC(".maps");

static __always_inline int is_paced(const struct pacing *pacing)
{
	return pacing->rate[PACER_RULES] || pacing->rate[PACER_REQUESTS] || pacing->rate[PACER_CREDITS];
}

static __always_inline __u32 least_rate(const struct pacing *pacing)
{
	__u64 least = FASTEST_PACE;
	int i;

#pragma unroll
	for (i = 0; i < PACERS; i++)
		if (pacing->rate[i] && pacing->rate[i] < least)
			least = pacing->rate[i];
	return is_paced(pacing) && least < pacing->own_rate ? least : pacing->own_rate;
}

static __always_inline void learn_own_rate(void *socket, struct pacing *pacing)
{
	if (bpf_getsockopt(socket, SOL_SOCKET, SO_MAX_PACING_RATE, &pacing->own_rate, sizeof(pacing->own_rate)))
		pacing->own_rate = NOT_PACED;
}

/*
 * Has one of the pacers want this rate, 0 for none. own_rate is the application's where
 * it is known already, else 0. Returns the application's.
 */
static __always_inline __u32 want_rate(void *socket, void *sk, enum pacer pacer, __u64 rate, __u32 own_rate)
{
	struct pacing *pacing = bpf_sk_storage_get(&paced_sockets, sk, 0, rate ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	__u32 pace = own_rate;

	if (pacing) {
		if (!is_paced(pacing) && own_rate)
			pacing->own_rate = own_rate;
		else if (!is_paced(pacing))
			learn_own_rate(socket, pacing);
		pacing->rate[pacer] = rate;
		pace = least_rate(pacing);
		own_rate = pacing->own_rate;
		if (!is_paced(pacing))
			bpf_sk_storage_delete(&paced_sockets, sk);
	}
	if (pace)
		bpf_setsockopt(socket, SOL_SOCKET, SO_MAX_PACING_RATE, &pace, sizeof(pace));
	return own_rate;
}

#endif
